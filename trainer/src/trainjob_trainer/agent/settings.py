"""The agent's settings, read once from the pod's environment."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainjob_trainer.agent.budget import RestartCounts
from trainjob_trainer.agent.code import Code, read_code
from trainjob_trainer.agent.messages import OBSERVER, split_replica

VARIABLE = "TRAINJOB_AGENT"
DEFAULT_STATE_DIR = "/run/trainjob/state"


class InvalidSettings(Exception):
    """The pod's environment is invalid for an agent; a restart can't help."""


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
        replica: such as `worker-1`.
        incarnation: the number of the replica's pod, from 1.
        address: where this agent listens.
        leader: where the leading agent listens.
        max_restarts: the limit of counted restarts.
        stall_timeout: seconds without progress that are a failure, or None.
        warm_standby: a second interpreter waits with TensorFlow imported.
        grace: seconds from SIGTERM to SIGKILL.
        counts: the job's restarts, as the controller knows them.
        cluster: TF_CONFIG's addresses of every role.
        token: authenticates the job's agents and the controller to each other.
        code: files to unpack before the first start, or None.
        pod_ip: the pod's own address, or an empty text.
        beat_seconds: the interval of heartbeats.
        lost_seconds: the silence after which an agent is lost.
    """

    command: Sequence[str]
    env: Mapping[str, str]
    replica: str
    incarnation: int
    pod: str
    address: Address
    leader: Address
    max_restarts: int
    stall_timeout: float | None
    warm_standby: bool
    grace: float
    counts: RestartCounts
    cluster: Mapping[str, Sequence[str]]
    token: bytes
    code: Code | None
    pod_ip: str
    state_dir: Path
    termination_log: Path | None
    beat_seconds: float
    lost_seconds: float

    @property
    def role(self) -> str:
        """Return the replica's role."""
        return self.replica.rpartition("-")[0]

    @property
    def index(self) -> int:
        """Return the replica's number within its role."""
        return int(self.replica.rpartition("-")[2])

    @property
    def is_leader(self) -> bool:
        """Return whether this agent leads: the chief's, or worker 0's if the job has no chief."""
        return self.replica == ("chief-0" if self.cluster.get("chief") else "worker-0")

    @property
    def is_observer(self) -> bool:
        """Return whether training starts without this replica."""
        return self.role == OBSERVER

    @property
    def tf_port(self) -> int | None:
        """Return the port that TF_CONFIG gives this replica, or None."""
        addresses = self.cluster.get(self.role, ())
        return parse_address(addresses[self.index], "TF_CONFIG").port if self.index < len(addresses) else None


def read_settings(command: Sequence[str], env: Mapping[str, str], bundle: Path) -> Settings:
    """Return this pod's settings, with the token in `bundle`; InvalidSettings names the invalid value."""
    if not command:
        raise InvalidSettings("no command to run: write it after `--`")
    raw = _object(env, VARIABLE)
    name = _text(raw, "replica")
    if split_replica(name) is None:
        raise InvalidSettings(
            f"{VARIABLE}.replica: must be a role and an index, such as worker-0, got {name!r}"
        )
    policy = raw.get("policy", {})
    log = env.get("TRAINJOB_TERMINATION_LOG")
    return Settings(
        command=list(command),
        env=env,
        replica=name,
        incarnation=int(_number(raw, "incarnation")),
        pod=_text(raw, "pod"),
        address=parse_address(_text(raw, "address"), f"{VARIABLE}.address"),
        leader=parse_address(_text(raw, "leader"), f"{VARIABLE}.leader"),
        max_restarts=int(_number(raw, "maxRestarts", 0)),
        stall_timeout=_number(raw, "stallTimeoutSeconds") if raw.get("stallTimeoutSeconds") else None,
        warm_standby=raw.get("warmStandby") is True,
        grace=_number(raw, "graceSeconds", 30),
        counts=RestartCounts.from_json(raw.get("restarts")),
        cluster=_cluster(env),
        token=_token(bundle / "token", raw.get("tokenDigest")),
        code=read_code(raw.get("code"), bundle),
        pod_ip=env.get("TRAINJOB_POD_IP", ""),
        state_dir=Path(env.get("TRAINJOB_STATE_DIR") or DEFAULT_STATE_DIR),
        termination_log=Path(log) if log else None,
        beat_seconds=_number(policy, "beatSeconds", 1),
        lost_seconds=_number(policy, "lostSeconds", 10),
    )


def parse_address(text: str, where: str) -> Address:
    """Return the parts of `host:port`, an IPv6 host without brackets, or raise InvalidSettings."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise InvalidSettings(f"{where}: must be host:port, got {text[:80]!r}")
    return Address(host[1:-1] if host.startswith("[") and host.endswith("]") else host, int(port))


def _cluster(env: Mapping[str, str]) -> dict[str, list[str]]:
    cluster = _object(env, "TF_CONFIG").get("cluster")
    if not isinstance(cluster, dict) or not cluster:
        raise InvalidSettings("TF_CONFIG.cluster: must name every role's addresses")
    for role, addresses in cluster.items():
        if not isinstance(addresses, list) or not all(isinstance(a, str) for a in addresses):
            raise InvalidSettings(f'TF_CONFIG.cluster.{role}: must be a list of "host:port"')
        for address in addresses:
            parse_address(address, f"TF_CONFIG.cluster.{role}")
    return dict(cluster)


def _token(path: Path, digest: object) -> bytes:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{path}: the job's token can't be read ({error})") from error
    if not token:
        raise InvalidSettings(f"{path}: holds no token")
    if digest is not None and hashlib.sha256(token.encode()).hexdigest() != digest:
        raise InvalidSettings(
            f"{path}: not the job's token: its Secret was replaced; delete the job and create it again"
        )
    return token.encode()


def _object(env: Mapping[str, str], variable: str) -> dict[str, Any]:
    text = env.get(variable, "").strip()
    if not text:
        raise InvalidSettings(f"{variable}: not set; agents are started by the job's controller")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidSettings(f"{variable}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise InvalidSettings(f"{variable}: must be a JSON object")
    return value


def _text(raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str) or not value:
        raise InvalidSettings(f"{VARIABLE}.{key}: must be a text, got {value!r}")
    return value


def _number(raw: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = raw.get(key, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1e9:
        raise InvalidSettings(f"{VARIABLE}.{key}: must be a number from 0, got {value!r}")
    return value
