"""Asks the leading agent of each job that it has an order for, again and again, and keeps what it says."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from trainjob.api import AGENT_PORT
from trainjob.cluster.agents import (
    AgentRefused,
    AgentUnreachable,
    GangRecord,
    Report,
    largest_report,
    sync,
)
from trainjob.cluster.fair_slots import FairSlots
from trainjob.cluster.kube.agent_seats import AgentSeat, find_agents, names_of
from trainjob.cluster.kube.pace import AgentPace
from trainjob.cluster.protocol import JobKey, Manifest
from trainjob.cluster.waiting import happens_within
from trainjob.core.gang import project_report, replica_names
from trainjob.core.token import job_token

_log = logging.getLogger(__name__)

CALLS = 64
"""At once, over all jobs; half of them for one namespace."""

DOUBTFUL_CALLS = 32
"""Of those, for jobs whose agents haven't answered lately; half of them for one namespace.

Such a call keeps its place until its time is over, one that is answered for some milliseconds.
"""

CALLS_A_SECOND = 250.0
"""Over all jobs, after a burst of as many as may be at once: each takes half a millisecond of a processor.

A thousand jobs need 200 in the long run; more jobs than that, or many that change at once, wait longer.
"""

WITNESSES = 3

FIGURES_SECONDS = 5.0
"""How often figures alone, such as the step, are worth a look at a job."""

Order = Mapping[str, Any]
Outcome = Literal["answered", "unreachable", "refused"]


class Sync(Protocol):
    """One call of an agent; see `trainjob.cluster.agents.client.sync`."""

    def __call__(
        self, host: str, port: int, token: str, order: Order, *, timeout: float, largest: int
    ) -> Coroutine[Any, Any, Mapping[str, Any]]:
        """Return the agent's answer."""


@dataclass(frozen=True)
class Asking:
    """How agents are asked.

    Attributes:
        token_of: returns the token of the job with this uid.
        on_call: told of every call, with its seconds.
        sync: makes one call.
        port: where agents listen.
        pace: how often.
    """

    token_of: Callable[[str], str] = lambda uid: job_token(b"", uid)
    on_call: Callable[[Outcome, float], None] = lambda _outcome, _seconds: None
    sync: Sync = sync
    port: int = AGENT_PORT
    pace: AgentPace = field(default_factory=AgentPace)


@dataclass
class _Watched:
    """One job that there is an order for.

    Attributes:
        uid: the job's: names are used again.
        asked_at: when its agent was asked last.
        is_due: its agent is to be asked at once.
        hasty_until: until when it is asked more often.
        credit: how many calls may come early; see `AgentPace.hasty_calls`.
        credited_at: when that was.
        spread: what the time between two calls is multiplied by, so that jobs don't stay in step.
        changed: set when it may be due earlier than it was.
        refusals: calls in a row that ended so.
        task: asks for it.
    """

    uid: str
    order: Order
    record: GangRecord = field(default_factory=lambda: GangRecord(FIGURES_SECONDS))
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
    """What a report may tell of.

    Attributes:
        replicas: names of those that the job is to have, or has pods of.
        pods: how many there are.
    """

    replicas: frozenset[str]
    pods: int

    @property
    def largest_report(self) -> int:
        """Return how many bytes it may have."""
        return largest_report(len(self.replicas), self.pods)


class AgentPoller:
    """See the module.

    Args:
        uid_of: returns the uid of the job of that name; None when there is none.
        pods_of: returns the job's pods.
        changed: called with each job whose agents have said something new.
        asking: how they are asked.
    """

    def __init__(
        self,
        uid_of: Callable[[JobKey], str | None],
        pods_of: Callable[[JobKey], Iterable[Manifest]],
        changed: Callable[[JobKey], None],
        asking: Asking,
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

    def set_order(self, key: JobKey, order: Order | None) -> None:
        """See `Cluster.set_order`."""
        uid, watched = self._uid_of(key), self._watched.get(key)
        if order is None or uid is None or (watched is not None and watched.uid != uid):
            self._forget(key)
            watched = None
        if order is None or uid is None:
            return
        if watched is None:
            watched = self._watched[key] = _Watched(uid, order)
            self._start(key, watched)
        elif watched.order != order:
            watched.order = order
            watched.is_due = True
        else:
            return
        self.hasten(key)

    def hasten(self, key: JobKey) -> None:
        """Ask more often for a while: the job's pods or its order have changed."""
        watched = self._watched.get(key)
        if watched is not None:
            watched.hasty_until = _time() + self._pace.hasty_for
            watched.changed.set()

    def gang(self, key: JobKey) -> dict[str, Any] | None:
        """Return what the agents have said; see `Snapshot.gang`."""
        watched = self._watched.get(key)
        return watched.record.gang(_time()) if watched is not None else None

    async def run(self) -> None:
        """Ask until cancelled."""
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
        pods, world, record = tuple(self._pods_of(key)), watched.order.get("world") or {}, watched.record
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
        doubt = self._doubtful.place(key.namespace, key.name) if watched.record.is_silent else nullcontext()
        async with doubt, self._slots.place(key.namespace, key.name):
            await self._turn()
            began = _time()
            try:
                report = await asking.sync(
                    agent.host,
                    asking.port,
                    asking.token_of(watched.uid),
                    watched.order,
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
        """Return when another call may begin."""
        now = _time()
        self._next_call = max(self._next_call + 1 / CALLS_A_SECOND, now - CALLS / CALLS_A_SECOND)
        if self._next_call > now:
            await asyncio.sleep(self._next_call - now)

    def _tell_refusal(self, key: JobKey, watched: _Watched, agent: AgentSeat, error: AgentRefused) -> None:
        watched.refusals += 1
        # Once may be an agent that was just ending.
        log = _log.warning if watched.refusals == 2 else _log.debug
        log("%s: the agent at %s can't be spoken to: %s", key, agent.host, error)


def _time() -> float:
    return asyncio.get_running_loop().time()
