"""The agent of one replica: it starts, stops and ends the training process and reports its end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trainjob_trainer.agent.ending import mark_finished
from trainjob_trainer.agent.failure import describe_exit
from trainjob_trainer.agent.horovod import build_variables, find_interface
from trainjob_trainer.agent.log import Seldom, log
from trainjob_trainer.agent.messages import QUIET
from trainjob_trainer.agent.settings import Settings, parse_address
from trainjob_trainer.contract.environment import call_directly
from trainjob_trainer.contract.exits import ExitCode
from trainjob_trainer.contract.reports import FINISHED, IDLE, RUNNING, STALLED, STOPPING, Failure
from trainjob_trainer.contract.restarts import RestartCounts
from trainjob_trainer.contract.wire import integer
from trainjob_trainer.errors import Fenced
from trainjob_trainer.task import Task

if TYPE_CHECKING:
    from trainjob_trainer.agent.child import Child, ChildExit


# Progress reports in messages: strict JSON of a limited size.


_NO_NUMBERS = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}

_LARGEST_REPORT = 1 << 14
"""Characters; a usual report has some hundred."""


def readable_report(report: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a progress report that others can read: JSON has no NaN, and a frame has a limit."""
    if report is None:
        return None
    text = json.dumps(report)
    if len(text) > _LARGEST_REPORT:
        text = json.dumps({key: value for key, value in report.items() if isinstance(value, (int, float))})
    plain: dict[str, Any] = json.loads(text, parse_constant=_NO_NUMBERS.__getitem__)
    return {"state": str(report.get("state", ""))[:64], **plain} if len(text) <= _LARGEST_REPORT else None


_SECONDS_BETWEEN_TRIES = 1.0
_COMPLAIN_SECONDS = 30.0
_LONGEST_MARGIN = 2.0
"""Seconds of the grace that are reserved to kill the rest and to exit."""

_REPORTED = {"TRAINJOB_REPORTED_STEP": "step", "TRAINJOB_REPORTED_CHECKPOINT": "checkpointStep"}
"""Environment variables of the next start, and the fields of the last report that they hold."""


@dataclass(frozen=True)
class Departure:
    """How the agent ends.

    The verdict is the leading agent's, `finished`, `failed` or `dismissed`, or the agent's own, `left`.
    """

    code: int
    verdict: str
    failure: Failure | None = None


class ReplicaAgent:
    """The state machine of one replica's agent; `make_child` gets the callback for the child's changes."""

    def __init__(
        self,
        settings: Settings,
        make_child: Callable[[Callable[[], None]], Child],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.child = make_child(self._changed)
        self.state = IDLE
        self.attempt = 0
        self.counts = settings.counts
        self.send: Callable[[Mapping[str, Any]], None] = lambda _: None
        self.departure: asyncio.Future[Departure] = asyncio.get_running_loop().create_future()
        self._clock = clock
        self._leave_by: float | None = None
        self._stack = ""
        self._generation = ""
        self._is_marking = False
        self._told_of: ChildExit | None = None
        self._waits_for = ""
        self._sent_state: tuple[object, object] = (None, None)
        self._reported: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_leaving(self) -> bool:
        """Return whether the agent was asked to end."""
        return self._leave_by is not None

    def join(self, host: str) -> dict[str, Any]:
        """Return the join message; other pods reach this one at `host`."""
        settings = self.settings
        port = settings.tf_port
        return {
            "type": "join",
            "replica": settings.task.replica,
            "incarnation": settings.incarnation,
            "pod": settings.pod,
            "address": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            "child": self.state,
            "attempt": self.attempt,
            "restarts": self.counts.to_json(),
        }

    def beat(self) -> dict[str, Any]:
        """Return the heartbeat message."""
        more = {"waitingForStorage": self._waits_for} if self._waits_for else {}
        if self.child.report is not None and (line := self.child.log_line):
            more["logLine"] = line
        return {
            "type": "beat",
            "child": self.state,
            "attempt": self.attempt,
            "report": readable_report({**(self.child.report or {}), **more} or None),
            "beatAge": self.child.report_age,
            "stopped": self.child.is_stopped,
        }

    def handle(self, message: Mapping[str, Any]) -> None:
        """Carry out a message of the leading agent; a message type of a later version is ignored."""
        kind = message.get("type")
        if kind == "start":
            self._start(message)
        elif kind == "stop" and message["attempt"] >= self.attempt:
            self._stop(graceful=message.get("graceful") is True, stacks=message.get("stacks") is True)
        elif kind == "end":
            self._do(self._end(message))

    def start_alone(self) -> None:
        """Start without a leading agent, in the container's environment."""
        self._become(RUNNING)
        self.child.start({})

    def cut_off(self) -> None:
        """End the training process at once: without the leading agent its peers are unknown.

        An agent that leaves too grants the grace: the leading one has saved and left before it.
        """
        if self.state not in QUIET:
            self._stop(graceful=self.is_leaving)

    def leave(self) -> None:
        """End the training process within the grace, the writer's before the others', then depart."""
        if self.is_leaving:
            return
        grace = self.settings.grace
        self._leave_by = self._clock() + grace
        self.send({"type": "leaving"})
        if self.state in QUIET:
            self._depart(Departure(int(ExitCode.PREEMPTED), "left"))
        elif self.settings.task.is_evaluator:
            self._stop(graceful=True)
        else:
            asyncio.get_running_loop().call_later(grace / 3, lambda: self._stop(graceful=True))

    def leave_stalled(self, why: str) -> None:
        """Log the stalled process's stacks, then depart; `close` kills the process.

        For a replica without a leading agent; `why` is the failure's message.
        """
        if self.state == RUNNING and not self.is_leaving:
            log(f"{self.settings.task.replica}: {why}")
            self._become(STOPPING)
            self._do(self._depart_stalled(why))

    def _start(self, message: Mapping[str, Any]) -> None:
        if self.state not in QUIET or message["attempt"] <= self.attempt or self.is_leaving:
            return
        self.attempt, self._stack = message["attempt"], ""
        self.counts = self.counts.merge(RestartCounts.from_json(message.get("restarts")))
        log(f"attempt {self.attempt} starts")
        self._generation = str(message["epoch"])
        addresses = (address for role in message["tfConfig"]["cluster"].values() for address in role)
        hosts = (parse_address(address, "TF_CONFIG").host for address in addresses)
        self.child.start(
            {
                "TF_CONFIG": json.dumps(message["tfConfig"], separators=(",", ":")),
                "TRAINJOB_ATTEMPT": str(self.attempt),
                "TRAINJOB_GENERATION": self._generation,
                **{variable: str(step) for variable, step in self._reported.items()},
                **call_directly(hosts, self.settings.env),
                **self._horovod(message),
            }
        )
        self._become(RUNNING)  # without the report of the process before

    def _horovod(self, message: Mapping[str, Any]) -> dict[str, str]:
        """Return the variables for Horovod, which needs the interface that the other replicas reach."""
        config, rendezvous = message["tfConfig"], message.get("rendezvous")
        if not isinstance(rendezvous, Mapping):
            return {}
        task = Task(config["task"]["type"], config["task"]["index"], config["cluster"])
        host = parse_address(task.address or "", "TF_CONFIG").host
        return build_variables(task, rendezvous, find_interface(host), self.settings.env)

    def _stop(self, *, graceful: bool, stacks: bool = False) -> None:
        if self.state in QUIET:
            return
        self._become(STOPPING)
        self._do(self._stop_child(self.attempt, self._stop_seconds() if graceful else 0.0, stacks))

    async def _stop_child(self, attempt: int, patience: float, stacks: bool) -> None:
        if stacks and self.attempt == attempt:
            self._stack = await self.child.dump_stacks()
        if self.attempt == attempt:
            await self.child.stop(patience)
            self._tell_what_is_lost(patience)

    def _tell_what_is_lost(self, patience: float) -> None:
        ended, step = self.child.exit, integer((self.child.report or {}).get("checkpointStep"), 0)
        was_killed = ended is not None and ended.code == 128 + 9 and ended is not self._told_of
        if patience and self.settings.task.is_writer and was_killed:
            self._told_of = ended  # several may have asked for the stop
            kept = f"its newest checkpoint is of step {step}" if step else "it has saved no checkpoint"
            log(f"what was to be saved didn't fit into {patience:.0f} s: {kept}")

    async def _end(self, message: Mapping[str, Any]) -> None:
        self.counts = self.counts.merge(RestartCounts.from_json(message.get("restarts")))
        failure = message.get("failure")
        cause = Failure.from_json(failure) if isinstance(failure, Mapping) else None
        if self.state not in QUIET:
            self._become(STOPPING)
            if cause is not None and cause.reason == STALLED:
                self._stack = await self.child.dump_stacks()
                cause = cause.with_log_of(self._stall("", self._stack))
            await self.child.stop(0)
        self._depart(Departure(int(message["code"]), str(message.get("verdict")), cause))

    async def _depart_stalled(self, why: str) -> None:
        failure = self._stall(why, await self.child.dump_stacks(), int(ExitCode.STALLED))
        self._depart(Departure(int(ExitCode.STALLED), "left", failure))

    def _stall(self, why: str, stack: str, exit_code: int | None = None) -> Failure:
        settings = self.settings
        return Failure(
            settings.task.replica,
            settings.pod,
            settings.incarnation,
            self.attempt,
            STALLED,
            exit_code,
            message=why,
            log_tail=stack,
            step=integer((self.child.report or {}).get("step")),
            time=time.time(),
        )

    def _stop_seconds(self) -> float:
        """Return the seconds from SIGTERM to SIGKILL for the training process."""
        grace = self.settings.grace
        margin = min(_LONGEST_MARGIN, grace / 4)
        left = grace if self._leave_by is None else self._leave_by - self._clock()
        return max(0.0, left - margin)

    def _changed(self) -> None:
        ended = self.child.exit
        if ended is not None and not self.child.running and self.state not in QUIET and not self._is_marking:
            task, in_bucket = self.settings.task, bool(self.settings.env.get("TRAINJOB_OUTPUT_URI"))
            is_marked = task.is_writer or (in_bucket and task.is_evaluator)
            if ended.code == 0 and self.state == RUNNING and is_marked:
                self._is_marking = True
                self._do(self._finish(ended))
            else:
                self._ended(ended)
        report = self.child.report or {}
        for variable, field in _REPORTED.items():
            if integer(report.get(field), 0) is not None:
                self._reported[variable] = report[field]
        state = (report.get("state"), report.get("checkpointStep"))
        if state != self._sent_state:
            self._sent_state = state
            self.send(self.beat())

    async def _finish(self, ended: ChildExit) -> None:
        """Mark training as finished before anything else is told of the writer's success.

        Of a writer and an evaluator whose output is in a bucket the last files are sent first.
        Storage that is away is waited for, unless this replica is stopped: then the next start decides.
        """
        loop, complains = asyncio.get_running_loop(), Seldom(_COMPLAIN_SECONDS)
        while self.state == RUNNING:
            try:
                step = (self.child.report or {}).get("step")
                await loop.run_in_executor(None, mark_finished, self.settings.env, self._generation, step)
                break
            except Fenced as error:
                log(str(error))
                ended = replace(ended, code=int(ExitCode.FENCED), message=str(error))
                break
            except (PermissionError, ValueError) as error:
                log(f"training has finished, but its output doesn't say so: {error}")
                break
            except OSError as error:
                self._waits_for = f"training has finished, and the output can't say so: {error}"
                complains.log(f"waiting for storage: {self._waits_for}")
                await asyncio.sleep(_SECONDS_BETWEEN_TRIES)
        self._is_marking, self._waits_for = False, ""
        self._ended(ended)

    def _ended(self, ended: ChildExit) -> None:
        was_stopped = self.state == STOPPING
        self.state = FINISHED if ended.code == 0 and not was_stopped else IDLE
        settings = self.settings
        failure = None
        if not was_stopped and ended.code != 0:
            failure = describe_exit(
                ended,
                replica=settings.task.replica,
                pod=settings.pod,
                incarnation=settings.incarnation,
                attempt=self.attempt,
            )
            self.send({"type": "failed", "attempt": self.attempt, "failure": failure.to_json()})
        elif was_stopped and self._stack:
            stall = self._stall("", self._stack)
            self.send({"type": "failed", "attempt": self.attempt, "failure": stall.to_json()})
        self.send(self.beat())
        if self.is_leaving:
            # Of the training agents that were asked to end only the leading one reports success.
            is_ours = ended.code in (ExitCode.SUCCESS, ExitCode.PEER_LOST, 128 + 9)
            is_preempted = is_ours and not settings.task.is_evaluator
            code = int(ExitCode.PREEMPTED) if is_preempted else ended.code
            self._depart(Departure(code, "left", failure))
        elif settings.task.is_evaluator or ended.code == ExitCode.FENCED:
            self._depart(Departure(ended.code, "left", failure))

    def _become(self, state: str) -> None:
        if state != self.state:
            self.state = state
            self.send(self.beat())

    def _depart(self, departure: Departure) -> None:
        if not self.departure.done():
            self.departure.set_result(departure)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
