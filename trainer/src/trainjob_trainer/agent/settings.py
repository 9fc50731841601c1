"""The agent's settings, read once from the pod's environment."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainjob_trainer.agent.code import Code, read_code
from trainjob_trainer.contract.files import TOKEN
from trainjob_trainer.contract.restarts import RestartCounts
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.task import Task

VARIABLE = "TRAINJOB_AGENT"
DEFAULT_STATE_DIR = "/run/trainjob/state"


@dataclass(frozen=True)
class Address:
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Settings:
    """The settings of one agent.

    Attributes:
        env: the container's environment.
        task: the replica, and TF_CONFIG's addresses of every role. The writer's agent leads.
        incarnation: the number of the replica's pod, from 1.
        address: where this agent listens.
        leader: where the leading agent listens.
        max_restarts: the limit of counted restarts.
        stall_timeout: seconds without progress that are a failure, or None.
        memory_grows: workers may get more memory after an out-of-memory kill, which doesn't count then.
        warm_standby: a second interpreter waits with TensorFlow imported.
        grace: seconds from SIGTERM to SIGKILL.
        counts: the job's restarts, as the controller knows them.
        token: authenticates the job's agents and the controller to each other.
        code: files to unpack before the first start, or None.
        pod_ip: the pod's own address, or an empty text.
        beat_seconds: the interval of heartbeats.
        lost_seconds: the silence after which an agent is lost.
    """

    command: Sequence[str]
    env: Mapping[str, str]
    task: Task
    incarnation: int
    pod: str
    address: Address
    leader: Address
    max_restarts: int
    stall_timeout: float | None
    memory_grows: bool
    warm_standby: bool
    grace: float
    counts: RestartCounts
    token: str
    code: Code | None
    pod_ip: str
    state_dir: Path
    termination_log: Path | None
    beat_seconds: float
    lost_seconds: float

    @property
    def tf_port(self) -> int | None:
        """Return the port that TF_CONFIG gives this replica, or None."""
        address = self.task.address
        return parse_address(address, "TF_CONFIG").port if address else None


def read_settings(command: Sequence[str], env: Mapping[str, str], bundle: Path) -> Settings:
    """Return this pod's settings, with the token in `bundle`; InvalidConfiguration names a wrong one."""
    if not command:
        raise InvalidConfiguration("no command to run: write it after `--`")
    raw = _object(env, VARIABLE)
    task = Task.from_environment(env)
    if not task.cluster:
        raise InvalidConfiguration("TF_CONFIG cluster: must name every role's addresses")
    policy = raw.get("policy", {})
    log = env.get("TRAINJOB_TERMINATION_LOG")
    return Settings(
        command=list(command),
        env=env,
        task=task,
        incarnation=int(_number(raw, "incarnation")),
        pod=_text(raw, "pod"),
        address=parse_address(_text(raw, "address"), f"{VARIABLE}.address"),
        leader=parse_address(_text(raw, "leader"), f"{VARIABLE}.leader"),
        max_restarts=int(_number(raw, "maxRestarts", 0)),
        stall_timeout=_number(raw, "stallTimeoutSeconds") if raw.get("stallTimeoutSeconds") else None,
        memory_grows=raw.get("memoryGrows") is True,
        warm_standby=raw.get("warmStandby") is True,
        grace=_number(raw, "graceSeconds", 30),
        counts=RestartCounts.from_json(raw.get("restarts")),
        token=_token(bundle / TOKEN, raw.get("tokenDigest")),
        code=read_code(raw.get("code"), bundle),
        pod_ip=env.get("TRAINJOB_POD_IP", ""),
        state_dir=Path(env.get("TRAINJOB_STATE_DIR") or DEFAULT_STATE_DIR),
        termination_log=Path(log) if log else None,
        beat_seconds=_number(policy, "beatSeconds", 1),
        lost_seconds=_number(policy, "lostSeconds", 10),
    )


def parse_address(text: str, where: str) -> Address:
    """Return the parts of `host:port`, an IPv6 host without brackets, or raise InvalidConfiguration."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise InvalidConfiguration(f"{where}: must be host:port, got {text[:80]!r}")
    return Address(host[1:-1] if host.startswith("[") and host.endswith("]") else host, int(port))


def _token(path: Path, digest: object) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfiguration(f"{path}: the job's token can't be read ({error})") from error
    if not token:
        raise InvalidConfiguration(f"{path}: holds no token")
    if digest is not None and hashlib.sha256(token.encode()).hexdigest() != digest:
        raise InvalidConfiguration(
            f"{path}: not the job's token: its Secret was replaced; delete the job and create it again"
        )
    return token


def _object(env: Mapping[str, str], variable: str) -> dict[str, Any]:
    text = env.get(variable, "").strip()
    if not text:
        raise InvalidConfiguration(f"{variable}: not set; agents are started by the job's controller")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidConfiguration(f"{variable}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise InvalidConfiguration(f"{variable}: must be a JSON object")
    return value


def _text(raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str) or not value:
        raise InvalidConfiguration(f"{VARIABLE}.{key}: must be a string, got {value!r}")
    return value


def _number(raw: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = raw.get(key, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1e9:
        raise InvalidConfiguration(f"{VARIABLE}.{key}: must be a number from 0, got {value!r}")
    return value
