"""Creation of missing objects, once the pods of the previous attempt are gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from trainjob.core import transitions
from trainjob.core.actions import (
    Action,
    Create,
    CreatePod,
    Creation,
    Event,
    Plan,
    Replace,
    create_agent_objects,
    stop_pods,
)
from trainjob.core.conditions import RESTARTING, RUNNING, find_condition, is_true
from trainjob.core.delays import RECHECK, soonest, start_delay, time_left
from trainjob.core.failure import AT_START, awaited_pods, lost_nodes, time_to_end
from trainjob.core.manifests import build_claim, build_network_policy, build_service
from trainjob.core.names import Replica, desired_replicas, replica_counts, training_replicas
from trainjob.core.observed import Observed, Refusal, is_same_policy
from trainjob.core.pods import SLOW_START, Pod, PodState, is_slow_to_start, slow_start_left
from trainjob.core.policies.elastic_policy import patience_left
from trainjob.core.policies.memory_policy import resize_left
from trainjob.core.policies.startup_policy import (
    describe_slow,
    describe_waiting,
    is_away,
    pause_left,
    start_time_left,
)
from trainjob.core.policies.success_policy import EvaluatorStep, avoids_for_nothing, end_left, evaluator_step
from trainjob.core.stragglers import describe_pause
from trainjob.core.wording import count_roles, quoted, utc
from trainjob_trainer.contract.restarts import restart_delay

SLOW_TO_END = timedelta(seconds=60)
"""How long a pod may take to end before the status reports that the job waits for it."""


POD_OVERDUE = "PodOverdue"


def incomplete(observed: Observed, now: datetime) -> Plan:
    """Create the job's missing objects, and report whether all its training replicas run."""
    if observed.status.start_time is not None:
        return _complete(observed, now)
    message = f"starting {count_roles(replica_counts(observed.effective_job.spec))}"
    begun = replace(observed, status=transitions.start(observed, message, now))
    first = _complete(begun, now, is_new=True)
    return replace(first, events=(Event("Normal", "Created", message), *first.events))


def _complete(observed: Observed, now: datetime, *, is_new: bool = False) -> Plan:
    """Create what is missing.

    Args:
        observed: the job, whose start is part of its status.
        now: the current time.
        is_new: whether the start isn't recorded yet. Then pods may be there before their token: they are
            created at once, and the controller may have died in between.
    """
    obstacle = _obstacle(observed, now)
    if obstacle is not None:
        return replace(obstacle, actions=stop_pods(observed, _too_early(observed)))
    refusal, lost = observed.training_refusal, lost_nodes(observed, now)
    early = _too_early(observed) if refusal is not None and not refusal.role else ()
    misplaced = avoids_for_nothing(observed.training_pods, lost)
    left_over = stop_pods(observed, (*observed.stale_pods, *early, *misplaced))
    leaving = _in_the_way(observed, now)
    if leaving:
        return replace(_leaving(observed, leaving, now), actions=left_over)
    delay = _delay_left(observed, now)
    if delay > timedelta(0):
        return Plan(observed.status, left_over, requeue=delay)
    replicas = training_replicas(observed.effective_job.spec)
    evaluator = evaluator_step(observed, now)
    pods = _missing_pods(observed, replicas, lost)
    agents = create_agent_objects(observed) if pods or evaluator.creating or is_new else ()
    creations = (*_missing_dependents(observed), *agents, *pods, *evaluator.actions)
    if refusal is not None and refusal.patience_left(now) > timedelta(0):
        # Otherwise every event of an existing pod would retry all the missing ones.
        creations = tuple(action for action in creations if not isinstance(action, Creation))
    running = observed.trains(observed.training_replicas, now)
    plan = _running(observed, evaluator, now) if running else _waiting(observed, now)
    return Plan(
        plan.status,
        (*left_over, *creations),
        (*plan.events, *evaluator.events, *_restoration_events(creations)),
        soonest(
            plan.requeue,
            evaluator.requeue,
            refusal.next_attempt(now) if refusal else None,
            _time_to_meet(observed, now),
        ),
    )


def _too_early(observed: Observed) -> tuple[Pod, ...]:
    """Return the pods that were created at once with what they need, which the cluster has refused.

    None of their containers has started: their token comes last.
    """
    if not observed.in_place:
        return ()
    return tuple(p for p in observed.pods if p.state in (PodState.PENDING, PodState.STARTING))


def _time_to_meet(observed: Observed, now: datetime) -> timedelta | None:
    """Return the time until the next decision about training replicas that are starting, or None."""
    times = (
        start_time_left(observed, now),
        patience_left(observed, now),
        observed.first_answer_left(now) if observed.in_place else None,
        *(slow_start_left(p, now) for p in observed.training_pods),
        resize_left(observed, now),
        end_left(observed, now),
    )
    return soonest(*(left for left in times if left is not None and left > timedelta(0)))


def _in_the_way(observed: Observed, now: datetime) -> list[Pod]:
    """Return the earlier pods that a successor waits for: in place, only those of its own replica."""
    stale = [p for p in awaited_pods(observed, now) if p in observed.stale_pods]
    if not observed.in_place:
        return stale
    present = {p.replica for p in observed.training_pods}
    wanted = set(desired_replicas(observed.effective_job.spec)) - present
    return [p for p in stale if p.replica in wanted]


def _obstacle(observed: Observed, now: datetime) -> Plan | None:
    """Return a plan if something in the cluster prevents the creation of the job's objects, else None."""
    refusal = observed.training_refusal
    if refusal is not None and refusal.permanent:
        return Plan(transitions.target_failure(observed, "InvalidTemplate", _describe(refusal), now))
    claim = observed.effective_job.spec.output.claim
    created = claim is not None and claim.size is not None and not claim.retain
    needed = {
        "Service": True,
        # The user's own claim may have any name, and the next job reuses a retained one.
        "PersistentVolumeClaim": created,
        "NetworkPolicy": observed.settings.isolation is not None,
        **{manifest["kind"]: True for manifest in observed.integrated_dependents},
    }
    for kind, found in observed.related.items():
        if needed.get(kind) and not found.ours:
            message = (
                f"{kind} {found.name} exists and doesn't belong to this job; rename the job, or delete that "
                "object"
            )
            return _held_up(observed, f"{kind}Conflict", message, now)
    if observed.pods_of_others and not observed.training_pods:
        # They may answer at the addresses of this job, and may still write into its output.
        other = observed.pods_of_others[0]
        if time_to_end(other, now) <= timedelta(0):
            return _overdue(observed, other, "an earlier job of this name", now)
        message = f"waiting for pod {other.name} of an earlier job of this name to end"
        return _held_up(observed, "PodConflict", message, now)
    return None


def _held_up(observed: Observed, reason: str, message: str, now: datetime) -> Plan:
    return Plan(transitions.wait(observed, reason, message, now), requeue=RECHECK)


def _describe(refusal: Refusal) -> str:
    return f"the cluster refuses {refusal.what}: {quoted(refusal.message)}"


def _leaving(observed: Observed, pods: list[Pod], now: datetime) -> Plan:
    """Wait for pods of the previous attempt; name one that takes long, since its node may be gone."""
    since, pod = min(((p.deleted_at or now, p) for p in pods), key=lambda each: (each[0], each[1].replica))
    overdue = [p for p in pods if time_to_end(p, now) <= timedelta(0)]
    if overdue:
        last = min(overdue, key=lambda p: (p.due_at, p.replica))
        return _overdue(observed, last, f"{last.replica.title} of the previous attempt", now)
    due = min(time_to_end(p, now) for p in pods)
    left = time_left(since, SLOW_TO_END, now)
    if left > timedelta(0):
        return Plan(observed.status, requeue=min(left, due))
    place = f" on node {pod.node}" if pod.node else ""
    message = f"waiting for {pod.replica.title} to end: its pod {pod.name}{place} takes longer than a minute"
    return Plan(transitions.wait(observed, "PodTerminating", message, now), requeue=due)


def _overdue(observed: Observed, pod: Pod, whose: str, now: datetime) -> Plan:
    """Wait for the end of a pod whose node doesn't report it; a pod event (end or deletion) ends the wait."""
    name, place = pod.name, f" on node {pod.node}" if pod.node else ""
    message = (
        f"waiting for {whose}: pod {name}{place} hasn't ended within its grace period and may still write to "
        f"the output; bring the node back, or, if it is certainly off, run `kubectl delete pod {name} -n "
        f"{observed.meta.namespace} --force` or taint the node with node.kubernetes.io/out-of-service"
    )
    held = find_condition(observed.status, RUNNING)
    is_known = held is not None and (held.reason, held.message) == (POD_OVERDUE, message)
    return Plan(
        transitions.wait(observed, POD_OVERDUE, message, now),
        events=() if is_known else (Event("Warning", POD_OVERDUE, message),),
    )


def _delay_left(observed: Observed, now: datetime) -> timedelta:
    restarts = observed.status.restarts
    begun = any(p.incarnation == observed.attempt for p in observed.training_pods)
    if not is_true(observed.status, RESTARTING) or restarts.last_time is None or begun:
        return timedelta(0)
    pause = pause_left(observed, now)
    if pause > timedelta(0):
        return pause
    if {p.replica for p in observed.training_pods}.issuperset(training_replicas(observed.effective_job.spec)):
        return timedelta(0)
    first = observed.status.first_failure
    delay = start_delay if first is not None and first.reason in AT_START else restart_delay
    return time_left(restarts.last_time, delay(restarts.since_progress), now)


def _missing_dependents(observed: Observed) -> tuple[Action, ...]:
    job = observed.effective_job
    desired = (build_claim(job), build_service(job), *observed.integrated_dependents)
    missing = (each for each in desired if each is not None and each["kind"] not in observed.related)
    return (*map(Create, missing), *_network_policy(observed))


def _network_policy(observed: Observed) -> tuple[Action, ...]:
    """Return the action that creates the job's NetworkPolicy, or replaces a changed one without a gap.

    One that is changed again stays as it is: a policy engine would change it after each replacement.
    """
    found, isolation = observed.related.get("NetworkPolicy"), observed.settings.isolation
    if isolation is None:
        return ()
    wanted = build_network_policy(observed.effective_job, isolation)
    if found is None:
        return (Create(wanted),)
    if found.uid in observed.restored or is_same_policy(found.spec, wanted["spec"]):
        return ()
    state = {"uid": found.uid, "resourceVersion": found.resource_version}
    return (Replace({**wanted, "metadata": {**wanted["metadata"], **state}}),)


def _restoration_events(actions: Iterable[Action]) -> Iterable[Event]:
    for action in actions:
        if isinstance(action, Replace):
            what = f"{action.manifest['kind']} {action.manifest['metadata']['name']}"
            yield Event(
                "Warning",
                "PutRight",
                f"{what} was changed; it is restored once, and a further change is kept",
            )


def _missing_pods(
    observed: Observed, replicas: Iterable[Replica], lost: frozenset[str]
) -> tuple[Action, ...]:
    present = {p.replica for p in observed.training_pods}
    attempt = observed.attempt
    return tuple(
        CreatePod(
            observed.effective_job,
            replica,
            incarnation=attempt,
            attempt=attempt,
            source=observed.agent_source,
            avoided=lost,
            spec_digest=observed.spec_digest,
        )
        for replica in replicas
        if replica not in present
    )


def _running(observed: Observed, evaluator: EvaluatorStep, now: datetime) -> Plan:
    message = f"training on {count_roles(Counter(replica.role for replica in observed.training_replicas))}"
    if observed.status.worker is not None and observed.status.worker.memory:
        message += f" with {observed.status.worker.memory} of memory each"
    if observed.attempt > 1:
        message += f", attempt {observed.attempt}"
    trouble = _storage_trouble(observed)
    if trouble:
        message = trouble
    pause, left = describe_pause(observed, now) if not trouble else ("", None)
    problems = pause, observed.size_refusal, evaluator.problem
    message += "".join(f"; {problem}" for problem in problems if problem)
    status = transitions.run(observed, message, now, waits=bool(trouble))
    if not is_true(observed.status, RUNNING):
        return Plan(status, events=(Event("Normal", "Started", message),))
    if message == observed.status.message or (evaluator.creating and not evaluator.problem):
        return Plan(observed.status, requeue=left)
    begins = trouble and observed.status.state != status.state
    events = (Event("Warning", "WaitingForStorage", message),) if begins else ()
    return Plan(status, events=events, requeue=left)


def _storage_trouble(observed: Observed) -> str:
    """Return which replica waits for storage, and why; empty if none does."""
    for replica in observed.training_replicas:
        report = observed.report_of(replica)
        if report is not None and report.waiting_for_storage:
            meanwhile = "; training continues meanwhile" if report.state == "training" else ""
            return f"{replica.title}: {report.waiting_for_storage}{meanwhile}"
    return ""


def _waiting(observed: Observed, now: datetime) -> Plan:
    """Report what keeps the training from running: a refused creation, or the first pod that waits."""
    refusal = observed.training_refusal
    if refusal is not None:
        return Plan(transitions.wait(observed, "CreationRefused", _describe(refusal), now))
    if (message := _why_no_nodes(observed)) is not None:
        return Plan(transitions.wait(observed, _UNSCHEDULABLE, message, now))
    for pod in observed.training_pods:
        if pod.waiting is not None and pod.replica in observed.training_replicas:
            message = describe_waiting(observed, pod, pod.waiting)
            return Plan(transitions.wait(observed, pod.waiting[0], message, now))
    slow = next((p for p in observed.training_pods if is_slow_to_start(p, now)), None)
    if slow is not None:
        return Plan(
            transitions.wait(observed, "SlowStart", describe_slow(observed, slow), now), requeue=RECHECK
        )
    if away := [r.title for r in observed.training_replicas if is_away(observed, r)]:
        started = max((p.started_at for p in observed.training_pods if p.started_at), default=now)
        if (left := time_left(started, SLOW_START, now)) > timedelta(0):
            return Plan(observed.status, requeue=left)
        message = (
            f"{', '.join(away)}: not joined yet, although all pods have been running since {utc(started)}"
        )
        return Plan(transitions.wait(observed, "SlowStart", quoted(message), now))
    held, again = (find_condition(observed.status, kind) for kind in (RUNNING, RESTARTING))
    if held is not None and held.reason == "Starting":
        return Plan(observed.status)
    if again is not None and again.status == "True" and again.message == observed.status.message:
        return Plan(observed.status)  # the cause of the restart is the more useful message
    return Plan(transitions.wait(observed, "Starting", _starting(observed), now))


def _why_no_nodes(observed: Observed) -> str | None:
    """Return a sentence for a gang that gets no nodes; None before its scheduler says so.

    Volcano also reports pods as `Schedulable`, once the others are.
    """
    waiting = [pod.waiting for pod in observed.training_pods if pod.waiting is not None]
    if not observed.waits_for_gang or not waiting:
        return None
    reason, detail = min(waiting, key=lambda each: each[0] != _UNSCHEDULABLE)
    return f"waiting for nodes for {observed.gang_size} replicas at once: {detail or reason}"


_UNSCHEDULABLE = "Unschedulable"


def _starting(observed: Observed) -> str:
    return f"starting {len(observed.training_replicas)} training replicas"
