"""Replicas that delay the others: slow, short of data, on a suspect node, or without steps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from trainjob.api import Progress, Straggler, TrainJobStatus
from trainjob.core.actions import Event
from trainjob.core.agent_reports import read_replica
from trainjob.core.conditions import RUNNING, find_condition
from trainjob.core.delays import time_left
from trainjob.core.failure import Failure
from trainjob.core.names import Replica, leader
from trainjob.core.observed import Observed
from trainjob.core.wording import listed, quoted, utc
from trainjob_trainer.contract.exits import ExitCode
from trainjob_trainer.contract.reports import Report

# Replicas that wait for their input data, which makes their steps long.


NOTICEABLE_WAIT = 0.2
"""Part of a step's time; less is hardly worth an effort."""


def input_share(step: float | None, waited: float | None) -> float | None:
    """Return the part of a step, from 0 to 1, in which a replica waits for its data; None if unknown.

    Args:
        step: seconds of a step.
        waited: seconds of it in which the replica waits.
    """
    if step is None or waited is None or step <= 0:
        return None
    return min(1.0, max(0.0, waited / step))


def describe_input(steps: Mapping[str, float | None], waited: Mapping[str, float | None]) -> str | None:
    """Return `worker 1 waits for its data for 43 % of a step: …` for the one that waits most, or None.

    Args:
        steps: seconds of a step, by replica.
        waited: seconds of it in which the replica waits, by replica.
    """
    shares = {name: input_share(step, waited.get(name)) or 0.0 for name, step in steps.items()}
    bound = {name: share for name, share in shares.items() if share >= NOTICEABLE_WAIT}
    if not bound:
        return None
    most = max(bound, key=bound.__getitem__)
    who = read_replica(most)
    others = len(bound) - 1
    too = f", {others} other{'s' if others > 1 else ''} too" if others else ""
    return (
        f"{who.title if who else most} waits for its data for {100 * bound[most]:.0f} % of a step{too}: "
        "a faster input pipeline makes training faster"
    )


# Nodes on which a worker's weights have diverged from the others'; the same one twice is suspect.
#
# By far the most likely cause is a faulty memory or device. The workers report which replica it was.


SUSPECT_REASON = "WeightsDiverged"

MOST = 16
"""The number of latest nodes that the status keeps."""


def named_nodes(observed: Observed, failure: Failure) -> dict[Replica, str]:
    """Return the nodes of the replicas whose weights have diverged, as far as they are known."""
    if failure.reason != SUSPECT_REASON:
        return {}
    nodes = {pod.replica: pod.node for pod in observed.training_pods}
    # Each of them ends with this code; an agent reports the first, and names the others.
    ended = [pod.replica for pod in observed.training_pods if pod.exit_code == ExitCode.WEIGHTS_DIVERGED]
    replicas = dict.fromkeys((*failure.replicas, *ended, failure.replica))
    return {replica: nodes[replica] for replica in replicas if nodes.get(replica)}


def nodes_to_keep(observed: Observed, failure: Failure) -> tuple[str, ...]:
    """Return the nodes that the status keeps after this failure."""
    known = observed.status.restarts.diverged_nodes
    return tuple(dict.fromkeys((*known, *named_nodes(observed, failure).values())))[-MOST:]


def describe_suspects(observed: Observed, failure: Failure) -> str:
    """Return what follows the failure's sentence: the nodes of other replicas in it, and suspect nodes."""
    nodes = named_nodes(observed, failure)
    clauses = [f"{who.title} is on node {node}" for who, node in nodes.items() if who != failure.replica]
    return "".join(f"; {clause}" for clause in [*clauses, *_suspicion(nodes, observed)])


def _suspicion(nodes: Mapping[Replica, str], observed: Observed) -> list[str]:
    known = observed.status.restarts.diverged_nodes
    again = [node for node in dict.fromkeys(nodes.values()) if node in known]
    if not again:
        return []
    if len(again) == 1:
        return [f"node {again[0]} has had this before: it is suspect, cordon it"]
    return [f"nodes {', '.join(again[:-1])} and {again[-1]} have had this before: one of them is suspect"]


# Replicas that all others wait for in every step: the whole job is as slow as the slowest.
#
# A replica's own work in a step counts. The whole step takes the same time everywhere, since the fast
# replicas wait for the slow one in it.


SLOW = 1.5
"""Times the others' median: a replica that takes longer is a straggler."""

CAUGHT_UP = 1.25
"""Times the others' median: a replica below it is no straggler any more; in between nothing changes."""

NOTICEABLE = 0.005
"""Seconds above the others' median: tiny steps differ by more than half for no reason."""

APART = timedelta(seconds=20)
"""Time between the two observations that it takes; the status keeps the earlier one."""

REASON = "Straggler"


def find_stragglers(
    earlier: Mapping[str, float], now: Mapping[str, float], known: Collection[str]
) -> dict[str, float]:
    """Return each straggler with the others' median, in seconds.

    Args:
        earlier: each replica's work in a step, in seconds, as observed before: one slow step isn't enough.
        now: the same, as observed now.
        known: replicas that are stragglers already.
    """
    before = {replica for replica, _ in _beyond(earlier, SLOW)}
    found = dict(_beyond(now, SLOW))
    staying = dict(_beyond(now, CAUGHT_UP, margin=0.0))
    return {
        replica: median
        for replica, median in staying.items()
        if replica in known or (replica in before and replica in found)
    }


def straggler_fields(observed: Observed, progress: Progress, now: datetime) -> dict[str, Any]:
    """Return fields of the status: the current stragglers, and those reported in this attempt."""
    status, last = observed.status, observed.status.progress
    if last is None or last.attempt != progress.attempt:
        status, last = TrainJobStatus(), Progress()
    known = {straggler.replica for straggler in status.stragglers}
    is_earlier = last.time is not None and time_left(last.time, APART, now) <= timedelta(0)
    found = find_stragglers(last.work_seconds if is_earlier else {}, progress.work_seconds, known)
    nodes = {pod.replica.name: pod.node for pod in observed.training_pods}
    stragglers = tuple(
        Straggler(
            replica=replica,
            node=nodes.get(replica, ""),
            work_seconds=progress.work_seconds[replica],
            median_seconds=float(f"{median:.4g}"),
        )
        for replica, median in found.items()
    )
    reported = dict.fromkeys((*status.stragglers_reported, *found))
    return {"stragglers": stragglers, "stragglers_reported": tuple(reported)}


def straggler_events(before: TrainJobStatus, status: TrainJobStatus) -> tuple[Event, ...]:
    """Return one event for each straggler that is reported for the first time in its attempt."""
    news = set(status.stragglers_reported).difference(before.stragglers_reported)
    reported = (each for each in status.stragglers if each.replica in news)
    return tuple(Event("Warning", REASON, describe(each)) for each in reported)


def describe(straggler: Straggler) -> str:
    """Return `worker 2 on node n takes 0.41 s of work a step, the others 0.20 s (median): …`."""
    replica = read_replica(straggler.replica)
    who = replica.title if replica is not None else straggler.replica
    place = f" on node {straggler.node}" if straggler.node else ""
    work, median = _duration(straggler.work_seconds), _duration(straggler.median_seconds)
    return (
        f"{who}{place} takes {work} of work a step, the others {median} (median): the whole job waits for it"
    )


def _beyond(
    work: Mapping[str, float], factor: float, margin: float = NOTICEABLE
) -> Iterable[tuple[str, float]]:
    """Yield each replica that takes more than `factor` times the others' median, with that median."""
    ordered = sorted(work.values())
    if len(ordered) < 2:
        return
    for replica, seconds in work.items():
        median = _median_without(ordered, bisect_left(ordered, seconds))
        if seconds >= median + margin and seconds > factor * median:
            yield replica, median


def _median_without(ordered: Sequence[float], left_out: int) -> float:
    rest = len(ordered) - 1
    low, high = ((k if k < left_out else k + 1) for k in ((rest - 1) // 2, rest // 2))
    return (ordered[low] + ordered[high]) / 2


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.0f} ms"


# No replica takes a step, though all have started. It is said, and no failure: `spec.stallTimeoutSeconds`
# makes it one. What rightly takes no steps is said as what it is.


FIRST_STEP = timedelta(minutes=10)
"""How long a process may take for its first step: the model is compiled in it."""

NO_STEP, TIMES = timedelta(minutes=5), 10
"""How long without a step is long: so many times a step, and at least so long, as callbacks take time too."""

LONGEST_STEP = 1e6
"""Seconds; a report may say anything."""

_BUSY = ("preparing", "rereading", "saving", "evaluating", "waiting", "finished")
"""States of a replica that rightly takes no steps."""


def describe_pause(observed: Observed, now: datetime) -> tuple[str, timedelta | None]:
    """Return a clause about training that takes no step for long, else how long until it is long, or None.

    Only agents report steps: of other pods nothing is known.
    """
    running, writer = (
        find_condition(observed.status, RUNNING),
        observed.report_of(leader(observed.effective_job.spec)),
    )
    agents = observed.agent_report
    if agents is None or not observed.is_current(agents) or running is None or running.status != "True":
        return "", None
    known, since = observed.status.progress or Progress(), running.last_transition_time
    step = writer.step_seconds if writer is not None else None
    if writer is not None and writer.step is not None:
        is_new = (known.step, known.state) != (writer.step, writer.state)
        since = max(since, now if is_new else known.since or since)
    longest = FIRST_STEP
    if step is not None:
        longest = max(NO_STEP, TIMES * timedelta(seconds=min(max(step, 0.0), LONGEST_STEP)))
    if (left := since + longest - now) > timedelta(0):
        return "", left
    reports = {replica: observed.report_of(replica) for replica in observed.training_replicas}
    busy = {r: report for r, report in reports.items() if report is not None and report.state in _BUSY}
    if busy:
        return f"{_what_they_do(busy)}, since {utc(since)}", None
    usual = f" (one takes {_duration(step)})" if step is not None else ""
    has_stepped = writer is not None and (writer.step or 0) > (writer.resumed_from or 0)
    first = "first " if step is None and not has_stepped else ""
    return f"no {first}step since {utc(since)}{usual}: {_what_they_do(reports)}", None


def _what_they_do(reports: Mapping[Replica, Report | None]) -> str:
    who: dict[str, list[Replica]] = {}
    for replica, report in reports.items():
        who.setdefault(_what_it_does(report), []).append(replica)
    return listed(
        f"{replicas[0].title}{f' and {len(replicas) - 1} more' if len(replicas) > 1 else ''}: {what}"
        for what, replicas in who.items()
    )


def _what_it_does(report: Report | None) -> str:
    if report is None:
        return "no report"
    at = f" at step {report.step}" if report.step is not None else ""
    done = report.evaluated_batches if report.state == "evaluating" else report.reread_batches
    batches = f", {done} batches so far" if done and report.state in ("evaluating", "rereading") else ""
    log = f" ({quoted(report.log_line, _LOG_LINE)})" if report.log_line else ""
    return f"{report.state}{at}{batches}{log}"


_LOG_LINE = 200
"""Bytes of a log line in a message about several replicas."""
