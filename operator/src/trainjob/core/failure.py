"""What failed first, and what that means: not the cascade that every failure sets off among its peers."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from trainjob.api import FirstFailure
from trainjob.core.conditions import RUNNING, is_true
from trainjob.core.exits import PEER_LOST, meaning_of
from trainjob.core.names import Replica
from trainjob.core.observed import Observed
from trainjob.core.pods import Pod, PodState
from trainjob.core.wording import last_line, printable

_LOG_TAIL = 2048
_LATEST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Failure:
    """One replica's failure.

    Attributes:
        pod: None when the pod is gone without a trace.
        reason: CamelCase, for the condition.
        text: what happened, to follow the replica's name.
        permanent: a restart can't help.
        charged: a restart for it counts against `maxRestarts`.
        step: the last step it reported, or None.
        checkpoint_step: the step that training can go on from, or None.
    """

    replica: Replica
    pod: Pod | None
    reason: str
    text: str
    permanent: bool = False
    charged: bool = True
    step: int | None = None
    checkpoint_step: int | None = None

    @property
    def sentence(self) -> str:
        """Return `worker 1 crashed (exit code 1: ValueError: boom) at step 30`."""
        return f"{self.replica.title} {self.text}" + ("" if self.step is None else f" at step {self.step}")


def first_failure(observed: Observed, replicas: Iterable[Replica]) -> Failure | None:
    """Return the failure that started it among these seats of the current attempt, or None.

    A pod that is missing counts once its gang has run: it was taken away. A process that says that it lost a
    peer (exit code 85) is only named when nobody else can be; so is one that ended later than another.
    """
    bad = [p for p in observed.training_pods if p.taken or p.state is PodState.FAILED]
    first = min(bad, key=_blame, default=None)
    if first is not None and not _lost_a_peer(first):
        return _describe(observed, first)
    missing = _missing(observed, replicas)
    if missing is not None:
        step = _checkpoint_step(observed)
        return Failure(missing, None, "PodLost", "lost its pod", charged=False, checkpoint_step=step)
    return _describe(observed, first) if first is not None else None


def _lost_a_peer(pod: Pod) -> bool:
    return pod.exit_code == PEER_LOST and not pod.taken


def _missing(observed: Observed, replicas: Iterable[Replica]) -> Replica | None:
    """Return the first seat whose pod has vanished; one that only a larger world has never had any."""
    if not is_true(observed.status, RUNNING):
        return None
    present = {p.replica for p in observed.training_pods}
    world = next((p.world for p in observed.training_pods if p.world is not None), None)
    seats = (r for r in replicas if world is None or r.index < world.get(r.role, 0))
    return next((r for r in seats if r not in present), None)


def _blame(pod: Pod) -> tuple[bool, datetime, Replica]:
    since = pod.deleted_at if pod.taken else pod.finished_at
    return _lost_a_peer(pod), since or _LATEST, pod.replica


def _describe(observed: Observed, pod: Pod) -> Failure:
    report = observed.reports.get(pod.name)
    return Failure(
        pod.replica,
        pod,
        *_cause(pod),
        step=report.step if report else None,
        checkpoint_step=_checkpoint_step(observed),
    )


def _cause(pod: Pod) -> tuple[str, str, bool, bool]:
    """Return reason, text, permanent and charged of a pod that ended badly, or was taken away."""
    if pod.infrastructure:
        return pod.reason, f"was taken away by the cluster ({pod.reason}{_detail(pod)})", False, False
    if pod.taken:
        return "PodDeleted", "was deleted", False, False
    code = pod.exit_code
    if code is None:
        why = last_line(pod.message) or pod.reason or "the cluster doesn't say why"
        return pod.reason or "PodFailed", f"failed before its training began ({why})", False, True
    if pod.reason == "OOMKilled":
        return "OutOfMemory", f"ran out of memory (OOMKilled, {code})", False, True
    meaning = meaning_of(code)
    what = _signal_name(code) or f"exit code {code}"
    return meaning.name, f"{meaning.text} ({what}{_detail(pod)})", meaning.permanent, meaning.charged


def _signal_name(code: int) -> str | None:
    try:
        return signal.Signals(code - 128).name if code > 128 else None
    except ValueError:
        return None


def _detail(pod: Pod) -> str:
    line = last_line(pod.message)
    return f": {line}" if line else ""


def _checkpoint_step(observed: Observed) -> int | None:
    steps = [r.checkpoint_step for r in observed.reports.values() if r.checkpoint_step is not None]
    known = observed.status.output.checkpoint_step if observed.status.output else None
    return max([*steps, *([known] if known is not None else [])], default=None)


def to_status(failure: Failure, message: str) -> FirstFailure:
    """Return what the job's status keeps of a failure, the last log lines included."""
    pod = failure.pod
    return FirstFailure(
        pod=pod.name if pod else "",
        node=pod.node if pod else "",
        rank=failure.replica.name,
        reason=failure.reason,
        exit_code=pod.exit_code if pod else None,
        step=failure.step,
        log_tail=printable(pod.message)[-_LOG_TAIL:] if pod else "",
        message=message,
    )
