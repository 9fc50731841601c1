"""The line to the agent that leads a job's training: orders go there, reports come back."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainjob.cluster.agents import AgentError, AgentRefused, GangRecord, Report, largest_report, sync
from trainjob.cluster.local.launch import LOOPBACK
from trainjob.cluster.local.pod import LocalPod
from trainjob.cluster.protocol import happens_within
from trainjob.core.agent_reports import project_report, replica_names
from trainjob.core.names import EVALUATOR, LABEL_INCARNATION, LABEL_INDEX, LABEL_LIVE, LABEL_ROLE

POLL_SECONDS = 0.5

# An agent that is just ending hangs up too.
_REFUSED_SECONDS = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Leader:
    """The agent to be asked.

    Attributes:
        pod: its pod's name.
        port: on this machine.
        token: the job's.
    """

    pod: str
    port: int
    token: str


class LeadingAgent:
    """Tells the leading agent again and again what is wanted, from the first order on.

    Args:
        find: returns the agent that leads a world of so many replicas of each role, or None while it does
            not run.
        changed: called when its answer says something new, and when it no longer answers.
        clock: gives seconds, and never goes back.
    """

    def __init__(
        self,
        find: Callable[[Mapping[str, Any]], Leader | None],
        changed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find = find
        self._changed = changed
        self._clock = clock
        self._record = GangRecord(POLL_SECONDS)
        self._order: Mapping[str, Any] | None = None
        self._ordered = asyncio.Event()
        self._complained = False
        self._task: asyncio.Task[None] | None = None

    @property
    def gang(self) -> Mapping[str, Any] | None:
        """Return the latest answer, as a snapshot has it."""
        return self._record.gang(self._clock())

    def set_order(self, order: Mapping[str, Any] | None) -> None:
        """Tell this from now on; None: nobody is to be asked."""
        if order == self._order:
            return
        self._order = order
        self._ordered.set()
        if self._task is None:
            self._task = asyncio.ensure_future(self._keep_asking())

    async def close(self) -> None:
        """Ask nobody any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep_asking(self) -> None:
        while True:
            self._ordered.clear()
            if await self._ask():
                self._changed()
            await happens_within(self._ordered, POLL_SECONDS)

    async def _ask(self) -> bool:
        """Ask once, and tell whether that brought anything new."""
        order = self._order
        leader = self._find(order.get("world") or {}) if order is not None else None
        if order is None or leader is None:
            self._record.rest()
            return False
        try:
            report = await self._call(leader, order)
        except AgentError as error:
            self._record.miss(leader.pod, self._clock())
            if isinstance(error, AgentRefused):
                self._complain(error)
        else:
            self._complained = False
            self._record.hear(report, self._clock())
        return self._record.has_news(self._clock())

    async def _call(self, leader: Leader, order: Mapping[str, Any]) -> Report:
        replicas = frozenset(replica_names({**(order.get("world") or {}), EVALUATOR: 1}))
        largest = largest_report(len(replicas), len(replicas))
        report = await sync(LOOPBACK, leader.port, leader.token, order, largest=largest)
        return project_report(report, replicas)

    def _complain(self, error: AgentRefused) -> None:
        if not self._complained and self._record.silent_seconds(self._clock()) >= _REFUSED_SECONDS:
            self._complained = True
            _log.warning("%s", error)


def find_leader(pods: Iterable[LocalPod], world: Mapping[str, Any]) -> LocalPod | None:
    """Return the pod whose agent leads, if it runs: the chief's, or without one that of worker 0.

    Args:
        pods: in any order; of two in one seat the later one counts.
        world: replicas of each training role.
    """
    wanted = {LABEL_ROLE: "chief" if "chief" in world else "worker", LABEL_INDEX: "0", LABEL_LIVE: "true"}
    seated = [pod for pod in pods if pod.launch.has_agent and wanted.items() <= _labels(pod).items()]
    newest = max(seated, key=lambda pod: int(_labels(pod).get(LABEL_INCARNATION, "0")), default=None)
    return newest if newest is not None and newest.is_running else None


def _labels(pod: LocalPod) -> Mapping[str, str]:
    labels: Mapping[str, str] = pod.manifest["metadata"].get("labels") or {}
    return labels
