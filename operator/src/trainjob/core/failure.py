"""The first failure of an attempt, its cause, and the restarts that a job has left."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import reduce

from trainjob.api import FirstFailure, Restarts
from trainjob.core.agent import python_hint
from trainjob.core.agent_reports import read_replica
from trainjob.core.conditions import RUNNING, is_true
from trainjob.core.delays import soonest, time_left
from trainjob.core.memory import grows
from trainjob.core.names import Replica, is_training, leader
from trainjob.core.observed import Observed
from trainjob.core.pods import DEADLINE_EXCEEDED, START_ERROR, UNKNOWN_END, Pod, PodState, start_error
from trainjob.core.wording import last_line, printable, quoted, reason_word
from trainjob_trainer.contract import reports
from trainjob_trainer.contract.exits import ExitCode, Raised, find_exception, is_mistake, meaning_of
from trainjob_trainer.contract.restarts import EARLY_SECONDS, RestartCounts, likeness

# Known checkpoints: where training continues after a stop.


def checkpoint_step(observed: Observed) -> int | None:
    """Return the step of the newest complete checkpoint that is known, or None."""
    reported = [step for r in observed.reports.values() for step in (r.checkpoint_step, r.resumed_from)]
    written = observed.status.output.checkpoint_step if observed.status.output else None
    report = observed.agent_report
    failed = report.failure.checkpoint_step if report is not None and report.failure is not None else None
    return max((step for step in (*reported, written, failed) if step is not None), default=None)


def origin(observed: Observed) -> str:
    """Return ` from step 20` or ` from the beginning`, or an empty text if neither is known.

    The writer reports the checkpoint that it resumed from and each that it writes: once it has reported a
    step, no other checkpoint exists. A pod without an agent sends no reports to the controller, though.
    """
    step = checkpoint_step(observed)
    if step is not None:
        return f" from step {step}"
    writer = observed.report_of(leader(observed.effective_job.spec))
    return " from the beginning" if writer is not None and writer.step is not None else ""


def describe_resume(observed: Observed) -> str:
    """Return `continuing from the last checkpoint`, or `continuing` if no checkpoint is known."""
    return "continuing" + (" from the last checkpoint" if checkpoint_step(observed) is not None else "")


# Training without some workers: with parameter servers it needs only the chief and the `ps`.


def trains_without(observed: Observed, replica: Replica) -> bool:
    """Return whether training continues without this replica, by the leading agent's report."""
    return replica.role == "worker" and _is_coordinated(observed)


def trains_on(observed: Observed) -> bool:
    """Return whether training continues, however many workers are missing."""
    present = {p.replica for p in observed.training_pods if p.state in (PodState.RUNNING, PodState.SUCCEEDED)}
    needed = {
        replica for replica in observed.training_replicas if is_training(replica) and replica.role != "worker"
    }
    return _is_coordinated(observed) and needed <= present


def _is_coordinated(observed: Observed) -> bool:
    report = observed.agent_report
    has_begun = report is not None and report.phase == reports.RUNNING and observed.is_current(report)
    return observed.effective_job.spec.ps is not None and has_begun


# The first failure and its cause, not the cascade of failures that follows among its peers.


UNREACHABLE = timedelta(seconds=10)
"""How long an agent's connection may be lost before its pod counts as failed with its node."""

OVERDUE = timedelta(seconds=10)
"""How late after its grace period the end of a pod may be reported; after that its node is unreachable."""

_INIT_FAILED = "InitContainerFailed"

AT_START = frozenset([_INIT_FAILED, START_ERROR, "PodFailed"])
"""Reasons of pods that failed before their training container ran: what they need may come back."""

_LATEST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Cause:
    """Why a replica failed.

    Attributes:
        reason: CamelCase, for the condition.
        text: what happened, to follow the replica's name.
        permanent: a restart can't help.
        counted: the restart counts against `maxRestarts`.
    """

    reason: str
    text: str
    permanent: bool = False
    counted: bool = True


@dataclass(frozen=True)
class Failure:
    """One replica's failure.

    Attributes:
        pod: None when the pod is gone without a trace.
        step: the last step it reported, or None.
        checkpoint_step: the step that training can resume from, or None.
        exit_code: of the training process, or None.
        log: its last lines.
        replicas: those that the failure is about, if not only `replica`.
        given_up: the agents have decided not to restart training.
        repeated: the same failure has come several times in a row.
        memory: the bytes that its container could use when it was killed for memory; None if that is unknown.
    """

    replica: Replica
    pod: Pod | None
    cause: Cause
    step: int | None = None
    checkpoint_step: int | None = None
    exit_code: int | None = None
    log: str = ""
    replicas: tuple[Replica, ...] = ()
    given_up: bool = False
    repeated: bool = False
    memory: int | None = None

    @property
    def reason(self) -> str:
        """Return the cause in one word."""
        return self.cause.reason

    @property
    def exception(self) -> Raised | None:
        """Return the uncaught exception at the end of its log, if that ended the process."""
        return find_exception(self.exit_code, self.log)

    @property
    def sentence(self) -> str:
        """Return `worker 1 on node n crashed (exit code 1: ValueError: boom) at step 30`."""
        place = f" on node {self.pod.node}" if self.pod is not None and self.pod.node else ""
        when = f" at step {self.step}" if self.step is not None else ""
        return f"{self.replica.title}{place} {self.cause.text}{when}"


def first_failure(observed: Observed, replicas: Iterable[Replica], now: datetime) -> Failure | None:
    """Return the first failure among these replicas of the current attempt, or None.

    A missing pod counts only once all replicas have run: then it was deleted. A process that reports that it
    lost a peer (exit code 85) is named only if there is no other failure; of several failures, the earliest.
    """
    bad = bad_pods(observed, now)
    messages = (p.termination for p in bad if p.termination is not None)
    given_up = next((message.failure for message in messages if message.gave_up and message.failure), None)
    if given_up is not None:
        return describe_child(observed, given_up, given_up=True)
    first = min(bad, key=_blame, default=None)
    if first is not None and not _lost_a_peer(first):
        return describe_pod(observed, first)
    missing = _missing(observed, replicas)
    if missing is not None:
        cause = Cause("PodLost", "lost its pod", counted=False)
        return Failure(missing, None, cause, checkpoint_step=checkpoint_step(observed))
    return describe_pod(observed, first) if first is not None else None


def bad_pods(observed: Observed, now: datetime) -> list[Pod]:
    """Return the training pods that have failed, were deleted, or can't be reached."""
    return [
        p
        for p in observed.training_pods
        if p.deleted or p.state is PodState.FAILED or is_unreachable(observed, p, now)
    ]


def lost_nodes(observed: Observed, now: datetime) -> frozenset[str]:
    """Return the nodes on which pods of this job neither train any more nor confirm their deletion.

    The scheduler learns that a node is lost only after 50 s (`node-monitor-grace-period`), and evictions take
    five minutes more. A node that is back confirms the deletions: then it isn't lost any more.
    """
    replaced = _replaced_as_unreachable(observed)
    return frozenset(
        p.node
        for p in observed.unfinished_pods
        if p.node
        and (p == replaced or time_to_end(p, now) <= timedelta(0) or is_unreachable(observed, p, now))
    )


def awaited_pods(observed: Observed, now: datetime) -> tuple[Pod, ...]:
    """Return the pods that may still run and whose end is waited for.

    Nobody reports the end of a deleted pod on a lost node. Where the output is fenced, it can do no harm;
    elsewhere the job waits until the pod has ended, or its object is gone.
    """
    if not observed.is_fenced:
        return observed.unfinished_pods
    lost = lost_nodes(observed, now)
    return tuple(
        p
        for p in observed.unfinished_pods
        if not p.deleting or (p.node not in lost and time_to_end(p, now) > timedelta(0))
    )


def end_due(pods: Iterable[Pod], now: datetime) -> timedelta | None:
    """Return the time until the first of these pods is waited for no longer, or None."""
    waits = (time_to_end(p, now) for p in pods if p.deleting)
    return soonest(*(wait for wait in waits if wait > timedelta(0)))


def time_to_end(pod: Pod, now: datetime) -> timedelta:
    """Return how long to wait for this pod's end; without limit while it is not being deleted."""
    return pod.due_at + OVERDUE - now if pod.due_at is not None else timedelta.max


def _replaced_as_unreachable(observed: Observed) -> Pod | None:
    """Return the pod whose loss made the latest restart, while its end isn't reported."""
    first = observed.status.first_failure
    if first is None or first.reason != reports.UNREACHABLE:
        return None
    return next((p for p in observed.stale_pods if p.name == first.pod and not p.ended), None)


def is_unreachable(observed: Observed, pod: Pod, now: datetime) -> bool:
    """Return whether this pod's agent has been unreachable for too long, by the report of another agent.

    A new leading agent doesn't know the agents on the node that was lost with the one before it.
    """
    report, longest = observed.agent_report, UNREACHABLE.total_seconds()
    if report is None or pod.state is not PodState.RUNNING:
        return False
    if pod.started_at is not None and time_left(pod.started_at, UNREACHABLE, now) > timedelta(0):
        return False  # the report is about the pod before it
    if pod.replica == leader(observed.effective_job.spec):
        return report.unreachable > longest and (report.leader_lost or 0.0) > longest
    member = report.members.get(pod.replica)
    if member is None or report.unreachable > longest or member.seconds <= longest:
        return False
    lost = _replaced_as_unreachable(observed)
    never_joined = lost is not None and pod.node == lost.node and member.state == reports.ABSENT
    return never_joined or (member.pod, member.state) == (pod.name, reports.LOST)


def _lost_a_peer(pod: Pod) -> bool:
    return pod.exit_code == ExitCode.PEER_LOST and not pod.deleted


def _missing(observed: Observed, replicas: Iterable[Replica]) -> Replica | None:
    """Return the first replica whose pod has vanished; one outside the running world has never had a pod."""
    if not is_true(observed.status, RUNNING):
        return None
    present = {p.replica for p in observed.training_pods}
    world = next((p.world for p in observed.training_pods if p.world is not None), None)
    expected = (r for r in replicas if world is None or r.index < world.get(r.role, 0))
    return next((r for r in expected if r not in present), None)


def _blame(pod: Pod) -> tuple[bool, datetime, Replica]:
    since = pod.deleted_at if pod.deleted else pod.finished_at
    return _lost_a_peer(pod), since or _LATEST, pod.replica


def describe_pod(observed: Observed, pod: Pod) -> Failure:
    """Return the failure of a pod that has failed or was deleted, as far as it is known."""
    report, saved = observed.reports.get(pod.name), checkpoint_step(observed)
    step = report.step if report else None
    child = pod.termination.failure if pod.termination is not None else None
    is_own = not (pod.deleted or pod.disrupted or pod.reason == DEADLINE_EXCEEDED)
    if child is not None and child.pod == pod.name and is_own:
        return describe_child(observed, child)
    return Failure(
        pod.replica,
        pod,
        _cause(observed, pod),
        # It took part in the newest checkpoint, of which it may not have reported the step itself.
        step=max(step, saved or 0) if step is not None else None,
        checkpoint_step=saved,
        exit_code=pod.init_failure.exit_code if pod.init_failure else pod.exit_code,
        log=(pod.init_failure or pod).message if pod.termination is None else "",
    )


def describe_child(observed: Observed, child: reports.Failure, *, given_up: bool = False) -> Failure:
    """Return a training process's failure as its agent has reported it."""
    cause, replica = _cause_of_child(child), read_replica(child.replica)
    assert replica is not None  # noqa: S101 - no other failure is kept
    return Failure(
        replica,
        next((p for p in observed.pods if p.name == child.pod), None),
        replace(cause, permanent=cause.permanent or child.permanent),
        step=child.step,
        checkpoint_step=checkpoint_step(observed),
        exit_code=child.exit_code,
        log=child.log_tail,
        replicas=tuple(one for name in child.replicas if (one := read_replica(name)) is not None),
        given_up=given_up,
        repeated=child.repeated,
        memory=child.memory,
    )


_PREEMPTED = ("PreemptionByScheduler", "Preempting")
"""The scheduler's reason, and that of a kubelet which makes room for a critical pod."""


def _cause(observed: Observed, pod: Pod) -> Cause:
    detail = _detail(pod.message) if pod.termination is None else ""
    if pod.disrupted:
        did = (
            "preempted by a pod of higher priority" if pod.reason in _PREEMPTED else "removed by the cluster"
        )
        text = f"was {did} ({quoted(pod.reason)}{_detail(pod.explanation) or detail})"
        return Cause(reason_word(pod.reason, "Disrupted"), text, counted=False)
    if pod.deleted:
        return Cause("PodDeleted", "had its pod deleted", counted=False)
    code, init = pod.exit_code, pod.init_failure
    if pod.reason == DEADLINE_EXCEEDED:
        return Cause(
            DEADLINE_EXCEEDED, f"ran longer than its pod's activeDeadlineSeconds ({DEADLINE_EXCEEDED})"
        )
    if init is not None:
        text = f"failed in its init container {init.name} ({init.text})"
        return Cause(_INIT_FAILED, text, counted=init.reason != UNKNOWN_END)
    if code is None and pod.state is PodState.RUNNING:
        return Cause(reports.UNREACHABLE, "can't be reached by the others", counted=False)
    if code is None:
        why = f"{pod.reason}: {last_line(pod.message)}" if pod.message and pod.reason else pod.reason
        why = quoted(why) or last_line(pod.message) or "the cluster doesn't say why"
        return Cause("PodFailed", f"failed before its training began ({why})")
    if pod.reason == START_ERROR:
        why = quoted(start_error(pod.message))
        return Cause(START_ERROR, f"can't be started ({why}){python_hint(observed.effective_job.spec, why)}")
    if pod.reason == UNKNOWN_END:
        return Cause(UNKNOWN_END, "ended unseen: its node has lost the container", counted=False)
    if pod.reason == "OOMKilled":
        return _out_of_memory(code, counted=not (pod.replica.role == "worker" and grows(observed)))
    return _cause_of_code(code, detail)


def _cause_of_child(child: reports.Failure) -> Cause:
    if child.reason == reports.OUT_OF_MEMORY:
        return _out_of_memory(child.exit_code or 128 + signal.SIGKILL, counted=child.counted)
    message = last_line(child.message)
    if child.reason == reports.STALLED:
        return Cause(child.reason, f"stalled ({message or 'no progress'})", counted=child.counted)
    if child.exit_code is None:
        return Cause(child.reason, message or "left the training", counted=child.counted)
    return _cause_of_code(child.exit_code, _detail(child.message))


def _out_of_memory(code: int, *, counted: bool) -> Cause:
    return Cause(reports.OUT_OF_MEMORY, f"ran out of memory (OOMKilled, {code})", counted=counted)


def _cause_of_code(code: int, detail: str) -> Cause:
    meaning, sent = meaning_of(code), _signal_name(code)
    what = sent or f"exit code {code}"
    if sent in ("SIGKILL", "SIGTERM"):
        detail = ""  # the last line of its log isn't the cause
    return Cause(meaning.name, f"{meaning.text} ({what}{detail})", meaning.permanent, meaning.counted)


def _signal_name(code: int) -> str | None:
    try:
        return signal.Signals(code - 128).name if code > 128 else None
    except ValueError:
        return None


def _detail(message: str) -> str:
    line = last_line(message)
    return f": {line}" if line else ""


def reached_step(observed: Observed, *more: int | None) -> int | None:
    """Return the furthest known step: of the training pods' reports and `more`; None if none is known."""
    names = {p.name for p in observed.training_pods}
    steps = (r.step for name, r in observed.reports.items() if name in names)
    return max((step for step in (*steps, *more) if step is not None), default=None)


def to_status(failure: Failure, message: str) -> FirstFailure:
    """Return a failure as the job's status has it, with the end of the log."""
    pod = failure.pod
    return FirstFailure(
        pod=pod.name if pod else "",
        node=pod.node if pod else "",
        rank=failure.replica.name,
        reason=failure.reason,
        exit_code=failure.exit_code,
        step=failure.step,
        log_tail=_log_tail(failure.log),
        message=message,
    )


def with_log(first: FirstFailure, observed: Observed) -> FirstFailure:
    """Return the failure with its log, if its agent has sent the log since.

    Agents report a stall at once, and request the stacks of the stalled process only after that.
    """
    failures = [p.termination.failure for p in observed.pods if p.termination is not None]
    failures += [observed.agent_report.failure] if observed.agent_report is not None else []
    logs = (child.log_tail for child in failures if child is not None and _is_same(first, child))
    return first.model_copy(update={"log_tail": _log_tail(next(filter(None, logs), ""))})


def _log_tail(log: str) -> str:
    return printable(log[-4 * reports.LONGEST_LOG_TAIL :])[-reports.LONGEST_LOG_TAIL :]


def _is_same(first: FirstFailure, child: reports.Failure) -> bool:
    same_replica = (first.pod, first.rank) == (child.pod, child.replica)
    return same_replica and (first.reason, first.step) == (child.reason, child.step)


# The restarts that a job has left.
#
# `spec.maxRestarts` limits the restarts for failures of the user's program. Restarts that the cluster
# causes are not counted, and a checkpoint beyond every failure so far resets the count.


def restarts_of(observed: Observed) -> Restarts:
    """Return the restart counts so far, by the status and by the agents, resets included."""
    known = reduce(_merged, observed.agents_counts, observed.status.restarts)
    step, furthest = checkpoint_step(observed), known.furthest_step
    if step is not None and furthest is not None and step > furthest:
        return known.model_copy(update={"counted": 0, "reset": known.reset + known.counted})
    return known


def made(restarts: Restarts) -> int:
    """Return how many restarts there were, whether they count or not."""
    return restarts.counted + restarts.reset + restarts.not_counted


def alike(observed: Observed, failure: Failure) -> int:
    """Return how many times in a row this failure has come, this time included."""
    before = observed.status.first_failure
    if before is None or (failure.step is None and not _is_early(failure)):
        return 1
    key = likeness(failure.replica.name, failure.reason, failure.exit_code, failure.log, failure.step)
    known = likeness(before.rank, before.reason, before.exit_code, before.log_tail or "", before.step)
    is_known = failure.step is not None or failure.exception is not None
    return observed.status.restarts.same_failures + 1 if is_known and key == known else 1


def is_mistake_at_start(observed: Observed, failure: Failure) -> bool:
    """Return whether the first attempt failed before any step, by a mistake that every attempt repeats."""
    has_stepped = bool(failure.step or restarts_of(observed).furthest_step)
    is_first = observed.attempt == 1 and failure.cause.counted and failure.reason != _INIT_FAILED
    no_program = failure.reason == START_ERROR and 'exec: "' in failure.log
    return is_first and not has_stepped and (no_program or is_mistake(failure.exit_code, failure.log))


def _is_early(failure: Failure) -> bool:
    pod = failure.pod
    if pod is None or pod.started_at is None or pod.finished_at is None:
        return False
    return (pod.finished_at - pod.started_at).total_seconds() < EARLY_SECONDS


def _merged(known: Restarts, reported: RestartCounts) -> Restarts:
    """Return the larger of each count: each side sees the other's within seconds, and counts only grow."""
    if reported.restarts <= made(known):
        return known
    reset = max(known.reset, reported.reset)
    furthest = [s for s in (known.furthest_step, reported.furthest_step) if s is not None]
    return known.model_copy(
        update={
            "counted": max(0, max(known.counted + known.reset, reported.counted) - reset),
            "not_counted": max(known.not_counted, reported.not_counted),
            "reset": reset,
            "since_progress": reported.since_progress,
            "furthest_step": max(furthest, default=None),
        }
    )
