"""The replica that this process is, from TF_CONFIG in the form that TensorFlow documents."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainjob_trainer.contract.environment import OF_A_JOB, SMOKE
from trainjob_trainer.contract.replicas import EVALUATOR, ROLES
from trainjob_trainer.errors import InvalidConfiguration


def of_the_job(env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the process's environment, without the job's variables in a process of the script's own.

    `bootstrap/trainjob_import_hook.py` sets TRAINJOB_PID in the training process; its children inherit it.
    """
    if env.get("TRAINJOB_PID", str(os.getpid())) == str(os.getpid()):
        return env
    return {name: value for name, value in env.items() if not name.startswith((*OF_A_JOB, SMOKE))}


@dataclass(frozen=True)
class Task:
    """A replica of a job (role and index), with the addresses of all replicas.

    Attributes:
        type: `chief`, `worker`, `ps` or `evaluator`.
        index: number within that role, from 0.
        cluster: addresses (`host:port`) by role; empty for a process that runs alone.
    """

    type: str
    index: int
    cluster: Mapping[str, tuple[str, ...]]

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Task:
        """Read `TF_CONFIG`; if it is absent, blank or without a cluster, the process runs alone.

        Raises:
            InvalidConfiguration: TF_CONFIG doesn't have TensorFlow's form; the message names the field.
        """
        text = of_the_job(env).get("TF_CONFIG", "").strip()
        try:
            config = json.loads(text or "{}")
        except ValueError as error:
            raise InvalidConfiguration(f"TF_CONFIG: not valid JSON ({error})") from error
        _require(isinstance(config, dict), "TF_CONFIG: must be a JSON object", config)
        cluster, task = _parse_cluster(config.get("cluster", {})), config.get("task")
        if task is None and not cluster:
            return cls("worker", 0, {})
        _require(isinstance(task, dict), "TF_CONFIG task: must be an object", task)
        role, index = task.get("type"), task.get("index")
        _require(role in ROLES, f"TF_CONFIG task.type: must be one of {', '.join(ROLES)}", role)
        is_number = isinstance(index, int) and not isinstance(index, bool) and index >= 0
        _require(is_number, "TF_CONFIG task.index: must be a number from 0", index)
        # TensorFlow's cluster doesn't have to list the evaluator.
        count = len(cluster.get(role, ()))
        if cluster and index >= count and (role != EVALUATOR or role in cluster):
            raise InvalidConfiguration(
                f"TF_CONFIG task: {role} {index} is not in the cluster, which lists {count} of that role"
            )
        return cls(role, index, cluster)

    @property
    def replica(self) -> str:
        """The name in logs and status, such as `worker-0`."""
        return f"{self.type}-{self.index}"

    @property
    def is_evaluator(self) -> bool:
        """Whether this process evaluates checkpoints instead of training."""
        return self.type == EVALUATOR

    @property
    def is_writer(self) -> bool:
        """Whether this is the one replica that writes checkpoints: the chief, or worker 0 without a chief."""
        first = "chief" if self.cluster.get("chief") else "worker"
        return self.type == first and self.index == 0

    @property
    def writer_address(self) -> str | None:
        """`host:port` of the replica that writes checkpoints, if the cluster lists it."""
        return next((self.cluster[role][0] for role in ("chief", "worker") if self.cluster.get(role)), None)

    @property
    def is_distributed(self) -> bool:
        """Whether the process trains as a member of a cluster; a cluster of one counts."""
        return bool(self.cluster) and not self.is_evaluator

    @property
    def has_parameter_servers(self) -> bool:
        """Whether `ps` replicas hold the variables, and a chief schedules the steps."""
        return bool(self.cluster.get("ps"))

    @property
    def is_coordinator(self) -> bool:
        """Whether this is the chief that schedules the steps."""
        return self.has_parameter_servers and self.type == "chief"

    @property
    def is_server(self) -> bool:
        """Whether this process only serves the chief, without a training loop of its own."""
        return self.has_parameter_servers and self.type in ("ps", "worker")

    @property
    def num_workers(self) -> int:
        """Number of processes that take steps: the workers, and a chief that doesn't schedule them."""
        chiefs = 0 if self.has_parameter_servers else len(self.cluster.get("chief", ()))
        return max(1, len(self.cluster.get("worker", ())) + chiefs)

    @property
    def rank(self) -> int:
        """Rank of this process among those that take steps; a chief that takes steps comes first."""
        is_after_chief = self.type == "worker" and not self.has_parameter_servers
        return self.index + (len(self.cluster.get("chief", ())) if is_after_chief else 0)

    @property
    def trainees(self) -> list[str]:
        """Names of the chief and the workers, such as `worker-1`; by rank without parameter servers."""
        roles = ("chief", "worker")
        names = [f"{role}-{index}" for role in roles for index in range(len(self.cluster.get(role, ())))]
        return names or [self.replica]

    @property
    def has_peers(self) -> bool:
        """Whether training needs other processes."""
        return self.num_workers > 1 or self.has_parameter_servers

    @property
    def address(self) -> str | None:
        """This replica's own `host:port`, if the cluster lists it."""
        addresses = self.cluster.get(self.type, ())
        return addresses[self.index] if self.index < len(addresses) else None


def _parse_cluster(cluster: Any) -> dict[str, tuple[str, ...]]:
    _require(isinstance(cluster, dict), "TF_CONFIG cluster: must be an object", cluster)
    for role, addresses in cluster.items():
        if role not in ROLES:
            expected = ", ".join(ROLES)
            raise InvalidConfiguration(f"TF_CONFIG cluster: unknown role {role!r}, expected {expected}")
        where = f"TF_CONFIG cluster.{role}"
        _require(isinstance(addresses, list), f'{where}: must be a list of "host:port"', addresses)
        for index, address in enumerate(addresses):
            host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
            is_address = host and port.isascii() and port.isdigit() and 0 < int(port) < 65536
            _require(is_address, f'{where}[{index}]: must be "host:port"', address)
    if len(cluster.get("chief", ())) > 1:
        raise InvalidConfiguration("TF_CONFIG cluster.chief: at most one chief")
    for role in ("chief", "worker"):
        if cluster.get("ps") and not cluster.get(role):
            raise InvalidConfiguration(
                f"TF_CONFIG cluster.{role}: missing; parameter servers need a chief, which hands out the "
                "steps, and workers, which take them"
            )
    return {role: tuple(addresses) for role, addresses in cluster.items()}


def _require(is_right: object, rule: str, value: object) -> None:
    if not is_right:
        text = json.dumps(value)
        raise InvalidConfiguration(f"{rule}, got {text if len(text) <= 60 else text[:57] + '...'}")
