"""When the job has succeeded: a TrainJob waits for all that train, a TFJob by default for one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainjob.api.wording import shown
from trainjob.convert.ledger import Ledger, Path
from trainjob.convert.replicas import ReplicaSet

PATH: Path = ("spec", "successPolicy")


def note_success(policy: Any, roles: Mapping[str, ReplicaSet], ledger: Ledger) -> None:
    """Note where the success policy can't be carried over."""
    if policy not in (None, "", "AllWorkers"):
        ledger.refuse(PATH, f'must be "" or AllWorkers, got {shown(policy)}')
    elif policy == "" and "ps" not in roles and not _is_alone(roles):
        ledger.note(
            PATH,
            "is AllWorkers here: the job is complete when chief and workers have all ended with exit code 0",
        )
    elif policy == "AllWorkers" and "ps" in roles:
        ledger.note(
            PATH,
            "left out: with parameter servers the job is complete when the chief has ended with exit code 0",
        )


def _is_alone(roles: Mapping[str, ReplicaSet]) -> bool:
    return "chief" not in roles and "worker" in roles and roles["worker"].count == 1


def note_dynamic_workers(enabled: Any, ledger: Ledger) -> None:
    """Note what becomes of `enableDynamicWorker`."""
    path: Path = ("spec", "enableDynamicWorker")
    if enabled is True:
        ledger.note(
            path,
            "left out: TF_CONFIG always has the whole cluster; kubectl scale changes the number of workers,"
            " and with restartStrategy InPlace spec.worker.minReplicas is how few may go on",
        )
    elif enabled not in (None, False):
        ledger.refuse(path, f"must be true or false, got {shown(enabled)}")
