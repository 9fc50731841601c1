"""Polls the leading agent of each job that has an agent target, and keeps its reports."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

from trainjob.api import AGENT_PORT
from trainjob.cluster.agents.wire import AgentRefused, AgentUnreachable, sync
from trainjob.cluster.fair_slots import FairSlots
from trainjob.cluster.protocol import Manifest, happens_within
from trainjob.core.agent import job_token
from trainjob.core.agent_reports import finite, mapping, project_report
from trainjob.core.names import LABEL_INDEX, LABEL_LIVE, LABEL_ROLE, JobKey, Replica
from trainjob.core.pods import container_state, read_replica_labels
from trainjob_trainer.contract.replicas import ROLES, replicas_of
from trainjob_trainer.contract.wire import largest_report

_log = logging.getLogger(__name__)

CALLS = 64
"""Concurrent calls over all jobs; one namespace may have half of them."""

UNCONFIRMED_CALLS = 32
"""The part of them for jobs whose leading agent didn't answer the latest call; one namespace may have half.

Such a call holds its slot until its timeout, an answered call for some milliseconds.
"""

CALLS_A_SECOND = 250.0
"""Over all jobs, after a burst of at most `CALLS`: each call takes half a millisecond of CPU time.

A thousand jobs need 200 in the long run; more jobs, or many that change at once, wait longer.
"""

WITNESSES = 3

Report = Mapping[str, Any]
"""An agent report; its keys are in `docs/contract.md`."""

Target = Mapping[str, Any]
Outcome = Literal["answered", "unreachable", "refused"]

Sync = Callable[..., Coroutine[Any, Any, Report]]
"""One call to an agent; see `trainjob.cluster.agents.wire.sync`."""

_DECISIVE = ("phase", "attempt", "world", "failure", "restarts")
_STATE = ("pod", "incarnation", "state")


@dataclass(frozen=True, slots=True)
class AgentAddress:
    """Where a running agent listens.

    Attributes:
        pod: its pod's uid.
    """

    pod: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class JobAgents:
    """The running agents of one job.

    Attributes:
        leader: the leading agent, or None while it doesn't run.
        others: the agents of the other replicas.
        replaced: the agents of pods that led and are being replaced. If the API server can't reach their
            node, only the controller can ask them to leave.
    """

    leader: AgentAddress | None
    others: tuple[AgentAddress, ...]
    replaced: tuple[AgentAddress, ...] = ()


AddressOf = Callable[[Manifest], AgentAddress | None]


def pod_address(pod: Manifest, port: int = AGENT_PORT) -> AgentAddress | None:
    """Return the address of a pod's agent on Kubernetes; None before the pod has an IP."""
    host = pod["status"].get("podIP")
    return AgentAddress(pod["metadata"]["uid"], host, port) if host else None


def find_agents(
    pods: Iterable[Manifest], world: Mapping[str, Any], address_of: AddressOf = pod_address
) -> JobAgents:
    """Return the running agents of these pods.

    Args:
        pods: of the job; of two pods of one replica the later incarnation counts.
        world: number of replicas of each training role; if the job has a chief, the chief's agent leads.
        address_of: see `AgentPolling`.
    """
    leading = Replica("chief" if "chief" in world else "worker", 0)
    newest: dict[Replica, tuple[int, Manifest]] = {}
    replaced = []
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        replica, incarnation = read_replica_labels(labels) or (None, 0)
        if replica is None:
            continue
        if labels.get(LABEL_LIVE) == "true":
            if replica not in newest or newest[replica][0] < incarnation:
                newest[replica] = incarnation, pod
        elif replica == leading:
            replaced.append(pod)

    def address(pod: Manifest) -> AgentAddress | None:
        return address_of(pod) if "running" in container_state(pod.get("status") or {}) else None

    def witness_rank(replica: Replica) -> tuple[int, int]:
        return ROLES.index(replica.role) if replica.role in ROLES else len(ROLES), replica.index

    running = {replica: at for replica, (_, pod) in newest.items() if (at := address(pod)) is not None}
    leader = running.pop(leading, None)
    others = tuple(running[replica] for replica in sorted(running, key=witness_rank))
    return JobAgents(leader, others, tuple(filter(None, map(address, replaced))))


@dataclass(frozen=True)
class AgentIntervals:
    """Intervals and timeouts of the calls to agents, in seconds.

    Attributes:
        steady: between two calls for one job; a random part, up to a tenth, is added.
        hasty: between two calls shortly after a change.
        hasty_for: how long `hasty` applies after a change.
        hasty_calls: how many calls for one job may come earlier than `steady` allows; each steady interval
            earns another. An agent that reports something new at every call, so that its target changes at
            every pass, is called twice as often as others in the long run.
        figures: between two passes over a job for a change of figures alone, such as the step.
        witness: how long a leading agent may be silent before other agents are asked about it.
        timeout: of one call.
        patience: how long a job's agent may be silent without being called less often. It is longer than it
            takes to find that a node is gone (`UNREACHABLE`, also as other agents see it).
        longest: between two calls for a job that has been silent for long.
        refused: how long a job's agent must have been silent for a refusal to count; a warning is logged
            for the second one that counts, since a single one may come from an agent that is just ending.
    """

    steady: float = 5.0
    hasty: float = 1.0
    hasty_for: float = 30.0
    hasty_calls: int = 30
    figures: float = 5.0
    witness: float = 10.0
    timeout: float = 3.0
    patience: float = 20.0
    longest: float = 30.0
    refused: float = 0.0

    def wait(self, *, is_hasty: bool, silent: float) -> float:
        """Return the time from one call for a job to the next.

        Args:
            is_hasty: whether something has changed recently.
            silent: for how long its agent hasn't answered since that change.
        """
        usual = self.hasty if is_hasty else self.steady
        return usual if silent <= self.patience else max(usual, min(silent / 2, self.longest))


@dataclass(frozen=True)
class AgentPolling:
    """How agents are polled; the defaults are for Kubernetes.

    Attributes:
        token_of: returns the token of the job with this uid.
        address_of: returns where the agent of a running pod listens, or None if none does.
        on_call: called after every call, with its outcome and seconds.
        sync: makes one call.
        intervals: intervals and timeouts.
        refusal: the log message of a refused call, with the fields `key`, `host` and `error`.
    """

    token_of: Callable[[str], str] = lambda uid: job_token(b"", uid)
    address_of: AddressOf = pod_address
    on_call: Callable[[Outcome, float], None] = lambda _outcome, _seconds: None
    sync: Sync = sync
    intervals: AgentIntervals = field(default_factory=AgentIntervals)
    refusal: str = "%(key)s: the agent at %(host)s can't be polled: %(error)s"


@dataclass
class _Silence:
    """A leading agent that does not answer.

    Attributes:
        pod: its pod's uid.
        since: time of the first request without an answer.
        witness: the report of another agent, if one was asked.
    """

    pod: str
    since: float
    witness: Report | None = None


class AgentRecord:
    """The latest agent reports of one job. All times are seconds of one monotonic clock.

    Reports are stored unchanged: they come from `project_report`, which bounds them.

    Args:
        figures_seconds: interval at which figures alone, such as the step, count as news.
    """

    def __init__(self, figures_seconds: float) -> None:
        self._figures_seconds = figures_seconds
        self._report: Report | None = None
        self._digest: tuple[object, object] = _digest_of({})
        self._received_at = 0.0
        self._silence: _Silence | None = None
        self._reported: tuple[object, object] | None = None
        self._reported_at = float("-inf")

    def receive(self, report: Report, now: float) -> None:
        """Store the leading agent's report."""
        self._report, self._received_at, self._silence = report, now, None
        self._digest = _digest_of(report)

    def miss(self, pod: str, now: float) -> float:
        """Record that this pod's agent leads and did not answer; return the seconds since the first time."""
        if self._silence is None or self._silence.pod != pod:
            self._silence = _Silence(pod, now)
        return self.silent_seconds(now)

    @property
    def is_silent(self) -> bool:
        """Return whether the leading agent did not answer the latest request."""
        return self._silence is not None

    def silent_seconds(self, now: float) -> float:
        """Return for how many seconds the leading agent has not answered."""
        return now - self._silence.since if self._silence is not None else 0.0

    def receive_witnesses(self, witnesses: Iterable[Report]) -> None:
        """Store the report of the agent that the silent leader answered last."""
        if self._silence is not None:
            self._silence.witness = min(
                witnesses, key=lambda w: finite(w.get("leaderLostSeconds")) or 0.0, default=None
            )

    def clear_silence(self) -> None:
        """Record that no agent leads now, so that none is silent."""
        self._silence = None

    def agent_report(self, now: float) -> dict[str, Any] | None:
        """Return the reports for a snapshot; None while no agent has reported."""
        silence = self._silence
        witness = silence.witness if silence is not None else None
        if self._report is None and witness is None:
            return None
        return {
            **(self._report or {}),
            **({"age": now - self._received_at} if self._report is not None else {}),
            "unreachableSeconds": self.silent_seconds(now),
            **({"witness": witness} if witness is not None else {}),
        }

    def has_news(self, now: float) -> bool:
        """Return whether there is news since the last True; figures alone count every `figures_seconds`."""
        state = self._digest
        if self._silence is not None:
            witness = self._silence.witness
            is_lost = None if witness is None else witness.get("leaderLostSeconds") is not None
            state = (self._silence.pod, is_lost), now  # its duration is a figure
        is_decisive = self._reported is None or self._reported[0] != state[0]
        is_due = now - self._reported_at >= self._figures_seconds and self._reported != state
        if is_decisive or is_due:
            self._reported, self._reported_at = state, now
        return is_decisive or is_due


def _digest_of(report: Report) -> tuple[object, object]:
    """Return the decisive part of a report, and its figures."""
    members = {name: mapping(member) for name, member in mapping(report.get("members")).items()}
    reports = [mapping(member.get("report")) for member in members.values()]
    states = [(name, *(member.get(key) for key in _STATE)) for name, member in members.items()]
    have_stepped = [each.get("step") is not None for each in reports]  # a user waits for the first step
    return ([report.get(key) for key in _DECISIVE], states, have_stepped), reports


@dataclass
class _Watched:
    """One job with an agent target.

    Attributes:
        uid: the job's, since names are used again.
        called_at: when its agent was called last.
        is_due: whether its agent is called next without the usual wait.
        was_alone: whether no agent ran at the latest look.
        hasty_until: until when its agent is called more often.
        allowance: how many calls may come early; see `AgentIntervals.hasty_calls`.
        allowed_at: when `allowance` was last updated.
        spread: factor on the time between two calls, so that jobs don't stay in step.
        changed: set when the next call may be due earlier.
        refusals: refused calls that count, since the latest answer.
        task: polls its agent.
    """

    uid: str
    target: Target
    record: AgentRecord
    called_at: float = float("-inf")
    is_due: bool = True
    was_alone: bool = False
    allowance: float = math.inf
    allowed_at: float = 0.0
    hasty_until: float = float("-inf")
    spread: float = 1.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    refusals: int = 0
    task: asyncio.Task[None] | None = None


class AgentPoller:
    """Polls the leading agent of each job that has an agent target, and keeps its reports.

    Args:
        uid_of: returns the uid of the job of that name; None when there is none.
        pods_of: returns the job's pods.
        changed: called with each job whose agents report something new.
        polling: how agents are polled.
    """

    def __init__(
        self,
        uid_of: Callable[[JobKey], str | None],
        pods_of: Callable[[JobKey], Iterable[Manifest]],
        changed: Callable[[JobKey], None],
        polling: AgentPolling,
    ) -> None:
        self._uid_of = uid_of
        self._pods_of = pods_of
        self._changed = changed
        self._polling = polling
        self._intervals = polling.intervals
        self._watched: dict[JobKey, _Watched] = {}
        self._slots = FairSlots(CALLS, CALLS // 2)
        self._unconfirmed = FairSlots(UNCONFIRMED_CALLS, UNCONFIRMED_CALLS // 2)
        self._next_call = float("-inf")
        self._tasks: asyncio.TaskGroup | None = None

    def set_target(self, key: JobKey, target: Target | None) -> None:
        """See `Cluster.set_target`."""
        uid, watched = self._uid_of(key), self._watched.get(key)
        if target is None or uid is None or (watched is not None and watched.uid != uid):
            self._watched.pop(key, None)
            if watched is not None and watched.task is not None:
                watched.task.cancel()
            watched = None
        if target is None or uid is None:
            return
        if watched is None:
            watched = self._watched[key] = _Watched(uid, target, AgentRecord(self._intervals.figures))
            self._start(key, watched)
        elif watched.target != target:
            watched.target = target
            watched.is_due = True
        else:
            return
        self.hasten(key)

    def hasten(self, key: JobKey) -> None:
        """Poll more often for a while: the job's pods or its agent target have changed."""
        watched = self._watched.get(key)
        if watched is not None:
            watched.hasty_until = _time() + self._intervals.hasty_for
            watched.changed.set()

    def agent_report(self, key: JobKey) -> dict[str, Any] | None:
        """Return the agent report; see `Snapshot.agent_report`."""
        watched = self._watched.get(key)
        return watched.record.agent_report(_time()) if watched is not None else None

    async def run(self) -> None:
        """Poll until cancelled."""
        async with asyncio.TaskGroup() as self._tasks:
            for key, watched in self._watched.items():
                self._start(key, watched)
            await asyncio.Event().wait()

    def _start(self, key: JobKey, watched: _Watched) -> None:
        if self._tasks is not None:
            watched.task = self._tasks.create_task(self._keep_polling(key, watched))

    async def _keep_polling(self, key: JobKey, watched: _Watched) -> None:
        while self._uid_of(key) == watched.uid:
            wait = self._wait(watched)
            if wait > 0:
                watched.changed.clear()
                await happens_within(watched.changed, wait)
                continue
            if _time() - watched.called_at < self._intervals.steady:
                watched.allowance -= 1
            watched.called_at, watched.is_due = _time(), False
            watched.spread = 1 + random.random() / 10  # noqa: S311 - spreads load, no secret
            try:
                await self._poll(key, watched)
            except Exception:  # noqa: BLE001 - one job's agents must not stop the others
                _log.exception("%s: polling its agents failed", key)
        if self._watched.get(key) is watched:
            del self._watched[key]  # the job is gone

    def _wait(self, watched: _Watched) -> float:
        now, intervals = _time(), self._intervals
        earned = (now - watched.allowed_at) / intervals.steady if intervals.steady else math.inf
        watched.allowance, watched.allowed_at = min(watched.allowance + earned, intervals.hasty_calls), now
        may_haste = watched.allowance >= 1
        if watched.is_due and may_haste:
            return 0.0
        changed_at = watched.hasty_until - intervals.hasty_for
        silent = min(watched.record.silent_seconds(now), now - changed_at)
        # Only a change brings an agent where there was none: a thousand jobs may wait for nodes for days.
        may_haste = may_haste and (not watched.was_alone or changed_at > watched.called_at)
        seconds = intervals.wait(is_hasty=may_haste and now < watched.hasty_until, silent=silent)
        return watched.called_at + seconds * watched.spread - now

    async def _poll(self, key: JobKey, watched: _Watched) -> None:
        agents, replicas, largest = self._look(key, watched)
        record = watched.record
        watched.was_alone = agents.leader is None and not agents.replaced
        if agents.leader is None:
            record.clear_silence()
            for agent in agents.replaced:
                await self._call(key, watched, agent, replicas, largest)
            return
        report = await self._call(key, watched, agents.leader, replicas, largest)
        if report is not None:
            record.receive(report, _time())
        elif record.miss(agents.leader.pod, _time()) >= self._intervals.witness:
            witnesses = agents.others[:WITNESSES]
            calls = (self._call(key, watched, agent, replicas, largest) for agent in witnesses)
            reports = await asyncio.gather(*calls)
            record.receive_witnesses(each for each in reports if each is not None)
        if record.has_news(_time()):
            self._changed(key)

    def _look(self, key: JobKey, watched: _Watched) -> tuple[JobAgents, frozenset[str], int]:
        """Return a job's agents, its replicas, and the limit of a report on them.

        Its pods aren't kept: hundreds of calls may wait for their turn, and a pod takes 16 KB.
        """
        pods, world = tuple(self._pods_of(key)), watched.target.get("world") or {}
        agents = find_agents(pods, world, self._polling.address_of)
        labels = (pod["metadata"].get("labels") or {} for pod in pods)
        known = (f"{each.get(LABEL_ROLE)}-{each.get(LABEL_INDEX)}" for each in labels)
        replicas = frozenset((*replicas_of(world), *known))
        return agents, replicas, largest_report(len(replicas), len(pods))

    async def _call(
        self, key: JobKey, watched: _Watched, agent: AgentAddress, replicas: frozenset[str], largest: int
    ) -> Report | None:
        """Return the report on these replicas, at most so large; None if the agent doesn't answer."""
        polling = self._polling
        is_silent = watched.record.is_silent
        unconfirmed = self._unconfirmed.slot(key.namespace, key.name) if is_silent else nullcontext()
        async with unconfirmed, self._slots.slot(key.namespace, key.name):
            began = _time()
            burst = CALLS / CALLS_A_SECOND
            self._next_call = max(self._next_call + 1 / CALLS_A_SECOND, began - burst)
            if self._next_call > began:
                await asyncio.sleep(self._next_call - began)
                began = _time()
            try:
                report = await polling.sync(
                    agent.host,
                    agent.port,
                    polling.token_of(watched.uid),
                    watched.target,
                    timeout=self._intervals.timeout,
                    largest=largest,
                )
            except AgentUnreachable as error:
                _log.debug("%s: the agent at %s: %s", key, agent.host, error)
                polling.on_call("unreachable", _time() - began)
            except AgentRefused as error:
                counts = watched.record.silent_seconds(_time()) >= self._intervals.refused
                watched.refusals += counts
                log = _log.warning if counts and watched.refusals == 2 else _log.debug
                log(polling.refusal, {"key": key, "host": agent.host, "error": error})
                polling.on_call("refused", _time() - began)
            else:
                watched.refusals = 0
                polling.on_call("answered", _time() - began)
                return project_report(report, replicas)
        return None


def _time() -> float:
    return asyncio.get_running_loop().time()
