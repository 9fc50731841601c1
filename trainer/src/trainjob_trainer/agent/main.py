"""The program of one container, from its start to its exit code: alone, as a member, or as the leading agent.

The program is `trainjob.pyz -- COMMAND [ARGUMENT...]`.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from trainjob_trainer.agent.child import Child
from trainjob_trainer.agent.ending import mirror_command
from trainjob_trainer.agent.leader import Leader
from trainjob_trainer.agent.log import Seldom, log
from trainjob_trainer.agent.replica_agent import Departure, ReplicaAgent
from trainjob_trainer.agent.settings import Settings, read_settings
from trainjob_trainer.agent.termination import write_termination
from trainjob_trainer.agent.wire import FRAME_SECONDS, Channel, Listener, WireError, connect
from trainjob_trainer.contract.exits import meaning_of
from trainjob_trainer.contract.reports import Failure
from trainjob_trainer.contract.restarts import RestartCounts
from trainjob_trainer.errors import TrainerError

# The stall of an evaluation: only the evaluator's own agent can notice it.


_SIGNS_OF_LIFE = ("step", "evaluatedBatches", "evaluation")
FIRST_SECONDS = 300.0
"""Least limit for a process's first progress: loading, tracing and compiling come before it."""


class EvaluationWatch:
    """Watches one process's progress reports (docs/contract.md); waiting for files is no stall."""

    def __init__(self) -> None:
        self._signs: tuple[Any, ...] | None = None
        self._since = 0.0
        self._has_scored = False

    def observe(self, report: Mapping[str, Any] | None, now: float) -> None:
        """Record the latest report, None before the first; `now` is from a monotonic clock."""
        if report is None or report.get("state") != "evaluating" or "waitingForStorage" in report:
            self._signs = None
            return
        self._has_scored = self._has_scored or bool(
            report.get("evaluatedBatches") or report.get("evaluation")
        )
        signs = tuple(report.get(name) for name in _SIGNS_OF_LIFE)
        if signs != self._signs:
            self._signs, self._since = signs, now

    def stalled(self, now: float, limit: float) -> bool:
        """Return whether an evaluation runs and has made no progress for `limit` seconds."""
        return self._signs is not None and now - self._since >= self.patience(limit)

    def patience(self, limit: float) -> float:
        """Return the seconds without progress that are a stall."""
        return limit if self._has_scored else max(limit, FIRST_SECONDS)


async def watch_evaluation(agent: ReplicaAgent, clock: Callable[[], float] = time.monotonic) -> None:
    """End a stalled evaluator; return at once if the settings have no limit.

    The pod ends with it. The controller replaces the pod and counts the failure as any other of its own.
    """
    watch, limit = EvaluationWatch(), agent.settings.stall_timeout
    while limit is not None:
        now = clock()
        watch.observe(agent.child.report, now)
        if watch.stalled(now, limit):
            agent.leave_stalled(f"no progress within an evaluation for {watch.patience(limit):g} s")
            return
        await asyncio.sleep(agent.settings.beat_seconds)


# The connection to the leading agent: when it ends, training here ends too, and the agent reconnects.


SHORTEST_WAIT = 0.1
LONGEST_WAIT = 1.0
_COMPLAIN_SECONDS = 30.0
_QUIET_SECONDS = 5.0
"""Agents start in any order, so a wait of a few seconds is no news."""


class LeaderLink:
    """Joins the leading agent, handles its messages, and rejoins after each loss."""

    def __init__(self, agent: ReplicaAgent) -> None:
        self._agent = agent
        self._settings = agent.settings
        self._channel: Channel | None = None
        self._loop = asyncio.get_running_loop()
        self._lost_at: float | None = self._loop.time()
        self._newest = 0
        self._wait = SHORTEST_WAIT
        self._trouble = Seldom(_COMPLAIN_SECONDS)
        agent.send = self.send

    @property
    def lost_seconds(self) -> float | None:
        """Return the seconds since the leading agent was lost, or None."""
        return None if self._lost_at is None else self._loop.time() - self._lost_at

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message to the leading agent, if it is connected."""
        if self._channel is None:
            return
        try:
            self._channel.post(message)
        except WireError as error:
            log(f"could not send {message.get('type')} to the leading agent: {error}")

    async def run(self) -> None:
        """Connect and reconnect; never return."""
        while True:
            try:
                await self._attend()
            except WireError as error:
                self._missed(str(error))
            wait = self._wait * random.uniform(0.5, 1.0)  # noqa: S311 - members must not all connect at once
            self._wait = min(2 * self._wait, LONGEST_WAIT)
            await asyncio.sleep(wait)

    async def close(self) -> None:
        """Send what is pending and close the connection."""
        if self._channel is not None:
            await self._channel.close()

    async def _attend(self) -> None:
        leader = self._settings.leader
        # Each try resolves the name again: the leading agent's pod may have been replaced.
        channel = await connect(leader.host, leader.port, self._settings.token, FRAME_SECONDS)
        beats = None
        try:
            channel.post(self._agent.join(self._settings.pod_ip or channel.own_host))
            patience = self._welcome(await channel.receive(FRAME_SECONDS))
            self._channel = channel
            beats = asyncio.ensure_future(self._beat())
            while True:
                self._handle(await channel.receive(patience))
        finally:
            self._channel = None
            if beats is not None:
                beats.cancel()
            await channel.close(0)

    def _handle(self, message: Mapping[str, Any]) -> None:
        try:
            self._agent.handle(message)
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(f"its target is invalid: {error!r}") from error

    def _welcome(self, message: Mapping[str, Any]) -> float:
        """Return the longest silence of the leading agent in seconds; raise WireError if it refuses."""
        if message.get("type") == "end":
            self._handle(message)
            raise WireError("it rejects this replica's agent")
        incarnation, policy = message.get("incarnation"), message.get("policy")
        if (
            message.get("type") != "welcome"
            or not isinstance(incarnation, int)
            or not isinstance(policy, dict)
        ):
            raise WireError("the peer speaks another protocol")
        if incarnation < self._newest:
            raise WireError("the peer has been replaced")
        self._newest = incarnation
        self._lost_at = None
        self._wait = SHORTEST_WAIT
        return float(policy.get("lostSeconds", self._settings.lost_seconds))

    def _missed(self, why: str) -> None:
        agent, leader = self._agent, self._settings.leader
        if self._lost_at is None:
            self._lost_at = self._loop.time()
            if not (agent.departure.done() or self._settings.task.is_evaluator):
                log(f"lost the leading agent at {leader} ({why}); training stops here until it is back")
        elif self._loop.time() - self._lost_at >= _QUIET_SECONDS:
            self._trouble.log(f"waiting for the leading agent at {leader} ({why})")
        if not self._settings.task.is_evaluator:
            agent.cut_off()

    async def _beat(self) -> None:
        while True:
            self.send(self._agent.beat())
            await asyncio.sleep(self._settings.beat_seconds)


async def run_agent(settings: Settings) -> int:
    """Run the agent of one replica and return its exit code; PortInUse if it can't listen on its port."""
    loop = asyncio.get_running_loop()
    agent = ReplicaAgent(
        settings,
        lambda changed: Child(
            settings.command,
            env=settings.env,
            state_dir=settings.state_dir,
            tf_port=settings.tf_port,
            changed=changed,
            standby=settings.warm_standby,
            code=settings.code.folder if settings.code else None,
            first=mirror_command("become") if settings.env.get("TRAINJOB_OUTPUT_URI") else (),
        ),
    )
    role = _Leading(agent) if settings.task.is_writer else _Following(agent)
    listener = Listener(settings.token, role.serve)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    await listener.open(settings.address)
    work: asyncio.Future[Any] = asyncio.ensure_future(role.run())
    watch: asyncio.Future[Any] | None = None
    if settings.task.is_evaluator:
        agent.start_alone()
        watch = asyncio.ensure_future(watch_evaluation(agent))
    ends: set[asyncio.Future[Any]] = {work, agent.departure}
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not agent.departure.done():
            work.result()
        departure = agent.departure.result()
        await role.part(departure)
    finally:
        work.cancel()
        if watch is not None:
            watch.cancel()
        listener.close()
        await agent.child.close()
    if departure.code != 0:  # after a good end the training process has written its own message
        write_termination(
            settings.termination_log,
            departure.failure,
            agent.counts,
            agent.child.report,
            gave_up=departure.verdict == "failed",
        )
    return departure.code


class _Leading:
    def __init__(self, agent: ReplicaAgent) -> None:
        self._leader = Leader(agent)
        self.run = self._leader.run
        self.serve = self._leader.serve

    async def part(self, departure: Departure) -> None:
        if departure.verdict in ("finished", "failed"):
            await self._leader.linger()
        self._leader.hang_up()


class _Following:
    def __init__(self, agent: ReplicaAgent) -> None:
        self._agent = agent
        self._link = LeaderLink(agent)
        self.run = self._link.run

    async def serve(self, channel: Channel, first: Mapping[str, Any]) -> None:
        if first.get("type") == "sync":
            channel.post(self._report())

    async def part(self, departure: Departure) -> None:
        del departure
        await self._link.close()

    def _report(self) -> dict[str, Any]:
        agent, settings = self._agent, self._agent.settings
        return {
            **agent.beat(),
            "type": "report",
            "role": "member",
            "replica": settings.task.replica,
            "pod": settings.pod,
            "incarnation": settings.incarnation,
            "restarts": agent.counts.to_json(),
            "leaderLostSeconds": self._link.lost_seconds,
        }


def main() -> NoReturn:
    """Run the agent and end the process with its exit code."""
    # A container's first process drops signals without a handler: block them until there is one.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    program = Path(sys.argv[0]).absolute()
    arguments = sys.argv[1:]
    command = arguments[1:] if arguments[:1] == ["--"] else arguments
    code = _run(command, os.environ, program.parent)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)  # a thread may still wait for a name server


def _run(command: Sequence[str], env: Mapping[str, str], bundle: Path) -> int:
    try:
        settings = read_settings(command, dict(env), bundle)
        if settings.code is not None:
            settings.code.unpack()
        # The process ends next; closing the loop would wait for its tasks.
        return asyncio.new_event_loop().run_until_complete(run_agent(settings))
    except TrainerError as error:
        log(str(error))
        path, code = env.get("TRAINJOB_TERMINATION_LOG"), int(error.exit_code)
        permanent = meaning_of(code).permanent
        failure = Failure("", "", 0, 0, error.reason, code, message=str(error), permanent=permanent)
        write_termination(Path(path) if path else None, failure, RestartCounts())
        return code
