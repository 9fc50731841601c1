"""Polls the leading agent of each job that has an agent target, and keeps its reports."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from trainjob.api import AGENT_PORT, TRAINER_CONTAINER
from trainjob.cluster.agents import AgentRecord, AgentRefused, AgentUnreachable, Report, largest_report, sync
from trainjob.cluster.fair_slots import FairSlots
from trainjob.cluster.kube.informer import AgentPace
from trainjob.cluster.protocol import Manifest, happens_within
from trainjob.core.agent import job_token
from trainjob.core.agent_reports import project_report, replica_names
from trainjob.core.names import LABEL_INCARNATION, LABEL_INDEX, LABEL_LIVE, LABEL_ROLE, JobKey

# The running agents of a job, and which one leads.


_ROLES = ("chief", "worker", "ps", "evaluator")
"""The order in which the other agents are asked when the leading agent doesn't answer."""


@dataclass(frozen=True, slots=True)
class AgentSeat:
    """A running agent.

    Attributes:
        pod: its pod's uid.
        host: its pod's address.
    """

    pod: str
    host: str


@dataclass(frozen=True, slots=True)
class AgentSeats:
    """The running agents of one job.

    Attributes:
        leader: the leading agent, or None while it doesn't run.
        others: the agents of the other replicas.
    """

    leader: AgentSeat | None
    others: tuple[AgentSeat, ...]


def find_agents(pods: Iterable[Manifest], world: Mapping[str, Any]) -> AgentSeats:
    """Return the running agents of these pods.

    Args:
        pods: of the job; of two pods of one replica the later incarnation counts.
        world: number of replicas of each training role; if the job has a chief, the chief's agent leads.
    """
    leading = ("chief" if "chief" in world else "worker", 0)
    newest: dict[tuple[str, int], tuple[int, Manifest]] = {}
    for pod in pods:
        seat = _seat_of(pod)
        if seat is None:
            continue
        place, incarnation = seat
        if place not in newest or newest[place][0] < incarnation:
            newest[place] = incarnation, pod
    running = {place: agent for place, (_, pod) in newest.items() if (agent := _agent_of(pod)) is not None}
    leader = running.pop(leading, None)
    return AgentSeats(leader, tuple(running[place] for place in sorted(running, key=_rank)))


def _seat_of(pod: Manifest) -> tuple[tuple[str, int], int] | None:
    """Return the replica (role and index) and the incarnation of a live pod, or None."""
    labels = pod["metadata"].get("labels") or {}
    if labels.get(LABEL_LIVE) != "true":
        return None
    try:
        return (labels[LABEL_ROLE], int(labels[LABEL_INDEX])), int(labels[LABEL_INCARNATION])
    except (KeyError, ValueError):
        return None


def _agent_of(pod: Manifest) -> AgentSeat | None:
    status = pod.get("status") or {}
    host = status.get("podIP")
    is_running = any(
        container.get("name") == TRAINER_CONTAINER and "running" in (container.get("state") or {})
        for container in status.get("containerStatuses") or ()
    )
    return AgentSeat(pod["metadata"]["uid"], host) if host and is_running else None


def _rank(place: tuple[str, int]) -> tuple[int, int]:
    role, index = place
    return (_ROLES.index(role) if role in _ROLES else len(_ROLES)), index


def names_of(pods: Iterable[Manifest]) -> Iterator[str]:
    """Yield the name of each pod's replica, such as `worker-1`."""
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        yield f"{labels.get(LABEL_ROLE)}-{labels.get(LABEL_INDEX)}"


# Polling of the leading agents.


_log = logging.getLogger(__name__)

CALLS = 64
"""Concurrent calls over all jobs; one namespace may have half of them."""

DOUBTFUL_CALLS = 32
"""The part of them for jobs whose leading agent didn't answer the latest call; one namespace may have half.

Such a call holds its slot until its timeout, an answered call for some milliseconds.
"""

CALLS_A_SECOND = 250.0
"""Over all jobs, after a burst of at most `CALLS`: each call takes half a millisecond of CPU time.

A thousand jobs need 200 in the long run; more jobs, or many that change at once, wait longer.
"""

WITNESSES = 3

FIGURES_SECONDS = 5.0
"""The interval at which a change of figures alone, such as the step, causes a pass over a job."""

Target = Mapping[str, Any]
Outcome = Literal["answered", "unreachable", "refused"]


class Sync(Protocol):
    """One call to an agent; see `trainjob.cluster.agents.protocol.sync`."""

    def __call__(
        self, host: str, port: int, token: str, target: Target, *, timeout: float, largest: int
    ) -> Coroutine[Any, Any, Mapping[str, Any]]:
        """Return the agent report."""


@dataclass(frozen=True)
class AgentPolling:
    """How agents are polled.

    Attributes:
        token_of: returns the token of the job with this uid.
        on_call: called after every call, with its outcome and seconds.
        sync: makes one call.
        port: where agents listen.
        pace: intervals and timeouts.
    """

    token_of: Callable[[str], str] = lambda uid: job_token(b"", uid)
    on_call: Callable[[Outcome, float], None] = lambda _outcome, _seconds: None
    sync: Sync = sync
    port: int = AGENT_PORT
    pace: AgentPace = field(default_factory=AgentPace)


@dataclass
class _Watched:
    """One job with an agent target.

    Attributes:
        uid: the job's, since names are used again.
        asked_at: when its agent was called last.
        is_due: whether its agent is called next without the usual wait.
        hasty_until: until when its agent is called more often.
        credit: how many calls may come early; see `AgentPace.hasty_calls`.
        credited_at: when `credit` was last updated.
        spread: factor on the time between two calls, so that jobs don't stay in step.
        changed: set when the next call may be due earlier.
        refusals: refused calls in a row.
        task: polls its agent.
    """

    uid: str
    target: Target
    record: AgentRecord = field(default_factory=lambda: AgentRecord(FIGURES_SECONDS))
    asked_at: float = float("-inf")
    is_due: bool = True
    credit: float = math.inf
    credited_at: float = 0.0
    hasty_until: float = float("-inf")
    spread: float = 1.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    refusals: int = 0
    task: asyncio.Task[None] | None = None


@dataclass(frozen=True)
class _Seen:
    """What a report may contain.

    Attributes:
        replicas: names of the replicas that the job should have or has pods of.
        pods: the number of the job's pods.
    """

    replicas: frozenset[str]
    pods: int

    @property
    def largest_report(self) -> int:
        """Return how many bytes a report may have."""
        return largest_report(len(self.replicas), self.pods)


class AgentPoller:
    """Polls the leading agent of each job that has an agent target, and keeps its reports.

    Args:
        uid_of: returns the uid of the job of that name; None when there is none.
        pods_of: returns the job's pods.
        changed: called with each job whose agents report something new.
        asking: how agents are polled.
    """

    def __init__(
        self,
        uid_of: Callable[[JobKey], str | None],
        pods_of: Callable[[JobKey], Iterable[Manifest]],
        changed: Callable[[JobKey], None],
        asking: AgentPolling,
    ) -> None:
        self._uid_of = uid_of
        self._pods_of = pods_of
        self._changed = changed
        self._asking = asking
        self._pace = asking.pace
        self._watched: dict[JobKey, _Watched] = {}
        self._slots = FairSlots(CALLS, CALLS // 2)
        self._doubtful = FairSlots(DOUBTFUL_CALLS, DOUBTFUL_CALLS // 2)
        self._next_call = float("-inf")
        self._tasks: asyncio.TaskGroup | None = None

    def set_target(self, key: JobKey, target: Target | None) -> None:
        """See `Cluster.set_target`."""
        uid, watched = self._uid_of(key), self._watched.get(key)
        if target is None or uid is None or (watched is not None and watched.uid != uid):
            self._forget(key)
            watched = None
        if target is None or uid is None:
            return
        if watched is None:
            watched = self._watched[key] = _Watched(uid, target)
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
            watched.hasty_until = _time() + self._pace.hasty_for
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

    # -- one job ----------------------------------------------------------------------------------------

    def _start(self, key: JobKey, watched: _Watched) -> None:
        if self._tasks is not None:
            watched.task = self._tasks.create_task(self._attend(key, watched))

    def _forget(self, key: JobKey) -> None:
        watched = self._watched.pop(key, None)
        if watched is not None and watched.task is not None:
            watched.task.cancel()

    async def _attend(self, key: JobKey, watched: _Watched) -> None:
        while self._uid_of(key) == watched.uid:
            wait = self._wait(watched)
            if wait > 0:
                watched.changed.clear()
                await happens_within(watched.changed, wait)
                continue
            if _time() - watched.asked_at < self._pace.steady:
                watched.credit -= 1
            watched.asked_at, watched.is_due = _time(), False
            watched.spread = 1 + random.random() / 10  # noqa: S311 - spreads load, no secret
            try:
                await self._ask(key, watched)
            except Exception:  # noqa: BLE001 - one job's agents must not stop the others
                _log.exception("%s: its agents could not be asked", key)
        if self._watched.get(key) is watched:
            del self._watched[key]  # the job is gone

    def _wait(self, watched: _Watched) -> float:
        now, pace = _time(), self._pace
        earned = (now - watched.credited_at) / pace.steady if pace.steady else math.inf
        watched.credit, watched.credited_at = min(watched.credit + earned, pace.hasty_calls), now
        may_haste = watched.credit >= 1
        if watched.is_due and may_haste:
            return 0.0
        silent = min(watched.record.silent_seconds(now), now - (watched.hasty_until - pace.hasty_for))
        seconds = pace.wait(is_hasty=may_haste and now < watched.hasty_until, silent=silent)
        return watched.asked_at + seconds * watched.spread - now

    async def _ask(self, key: JobKey, watched: _Watched) -> None:
        pods, world, record = tuple(self._pods_of(key)), watched.target.get("world") or {}, watched.record
        agents = find_agents(pods, world)
        if agents.leader is None:
            record.rest()
            return
        seen = _Seen(frozenset((*replica_names(world), *names_of(pods))), len(pods))
        report = await self._call(key, watched, agents.leader, seen)
        if report is not None:
            record.hear(report, _time())
        elif record.miss(agents.leader.pod, _time()) >= self._pace.witness:
            calls = (self._call(key, watched, agent, seen) for agent in agents.others[:WITNESSES])
            record.testify([said for said in await asyncio.gather(*calls) if said is not None])
        if record.has_news(_time()):
            self._changed(key)

    async def _call(self, key: JobKey, watched: _Watched, agent: AgentSeat, seen: _Seen) -> Report | None:
        asking = self._asking
        doubt = self._doubtful.slot(key.namespace, key.name) if watched.record.is_silent else nullcontext()
        async with doubt, self._slots.slot(key.namespace, key.name):
            await self._turn()
            began = _time()
            try:
                report = await asking.sync(
                    agent.host,
                    asking.port,
                    asking.token_of(watched.uid),
                    watched.target,
                    timeout=self._pace.timeout,
                    largest=seen.largest_report,
                )
            except AgentUnreachable as error:
                _log.debug("%s: the agent at %s: %s", key, agent.host, error)
                asking.on_call("unreachable", _time() - began)
            except AgentRefused as error:
                self._tell_refusal(key, watched, agent, error)
                asking.on_call("refused", _time() - began)
            else:
                watched.refusals = 0
                asking.on_call("answered", _time() - began)
                return project_report(report, seen.replicas)
        return None

    async def _turn(self) -> None:
        """Wait until another call may begin."""
        now = _time()
        self._next_call = max(self._next_call + 1 / CALLS_A_SECOND, now - CALLS / CALLS_A_SECOND)
        if self._next_call > now:
            await asyncio.sleep(self._next_call - now)

    def _tell_refusal(self, key: JobKey, watched: _Watched, agent: AgentSeat, error: AgentRefused) -> None:
        watched.refusals += 1
        # A single refusal may come from an agent that is just ending.
        log = _log.warning if watched.refusals == 2 else _log.debug
        log("%s: the agent at %s can't be spoken to: %s", key, agent.host, error)


def _time() -> float:
    return asyncio.get_running_loop().time()
