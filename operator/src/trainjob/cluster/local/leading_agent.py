"""Requests to a job's leading agent: they send the agent target and return agent reports."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainjob.cluster.agents import AgentError, AgentRecord, AgentRefused, Report, largest_report, sync
from trainjob.cluster.local.launch import LOOPBACK
from trainjob.cluster.local.pod import LocalPod
from trainjob.cluster.protocol import happens_within
from trainjob.core.agent_reports import project_report, replica_names
from trainjob.core.names import EVALUATOR, LABEL_INCARNATION, LABEL_INDEX, LABEL_LIVE, LABEL_ROLE

POLL_SECONDS = 0.5

# An agent that is ending closes connections too, so a refusal is logged only after this time.
_REFUSED_SECONDS = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Leader:
    """The leading agent.

    Attributes:
        pod: its pod's name.
        port: its port on this machine.
        token: the job's.
    """

    pod: str
    port: int
    token: str


class LeadingAgent:
    """Sends the agent target to the leading agent at intervals, from the first target on.

    Args:
        find: returns the agent that leads a world (number of replicas by role), or None while it does not
            run.
        changed: called when its report has news, and when it no longer answers.
        clock: returns seconds of a monotonic clock.
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
        self._record = AgentRecord(POLL_SECONDS)
        self._target: Mapping[str, Any] | None = None
        self._retargeted = asyncio.Event()
        self._complained = False
        self._task: asyncio.Task[None] | None = None

    @property
    def agent_report(self) -> Mapping[str, Any] | None:
        """Return the latest agent report in the form of a snapshot."""
        return self._record.agent_report(self._clock())

    def set_target(self, target: Mapping[str, Any] | None) -> None:
        """Send this agent target from now on; None stops the requests."""
        if target == self._target:
            return
        self._target = target
        self._retargeted.set()
        if self._task is None:
            self._task = asyncio.ensure_future(self._keep_asking())

    async def close(self) -> None:
        """Stop the requests."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep_asking(self) -> None:
        while True:
            self._retargeted.clear()
            if await self._ask():
                self._changed()
            await happens_within(self._retargeted, POLL_SECONDS)

    async def _ask(self) -> bool:
        """Send one request, and return whether it brought news."""
        target = self._target
        leader = self._find(target.get("world") or {}) if target is not None else None
        if target is None or leader is None:
            self._record.rest()
            return False
        try:
            report = await self._call(leader, target)
        except AgentError as error:
            self._record.miss(leader.pod, self._clock())
            if isinstance(error, AgentRefused):
                self._complain(error)
        else:
            self._complained = False
            self._record.hear(report, self._clock())
        return self._record.has_news(self._clock())

    async def _call(self, leader: Leader, target: Mapping[str, Any]) -> Report:
        replicas = frozenset(replica_names({**(target.get("world") or {}), EVALUATOR: 1}))
        largest = largest_report(len(replicas), len(replicas))
        report = await sync(LOOPBACK, leader.port, leader.token, target, largest=largest)
        return project_report(report, replicas)

    def _complain(self, error: AgentRefused) -> None:
        if not self._complained and self._record.silent_seconds(self._clock()) >= _REFUSED_SECONDS:
            self._complained = True
            _log.warning("%s", error)


def find_leader(pods: Iterable[LocalPod], world: Mapping[str, Any]) -> LocalPod | None:
    """Return the pod whose agent leads, if it runs: the chief's, or that of worker 0 without a chief.

    Args:
        pods: in any order; of two pods of one replica the later incarnation counts.
        world: number of replicas by training role.
    """
    wanted = {LABEL_ROLE: "chief" if "chief" in world else "worker", LABEL_INDEX: "0", LABEL_LIVE: "true"}
    seated = [pod for pod in pods if pod.launch.has_agent and wanted.items() <= _labels(pod).items()]
    newest = max(seated, key=lambda pod: int(_labels(pod).get(LABEL_INCARNATION, "0")), default=None)
    return newest if newest is not None and newest.is_running else None


def _labels(pod: LocalPod) -> Mapping[str, str]:
    labels: Mapping[str, str] = pod.manifest["metadata"].get("labels") or {}
    return labels
