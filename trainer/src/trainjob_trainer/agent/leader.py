"""The leading agent: connections of members and the controller around the rules of `worker_group`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from trainjob_trainer.agent.horovod import Ring
from trainjob_trainer.agent.log import Seldom, log
from trainjob_trainer.agent.messages import Event, Lost, Send, Tick, read_join, read_member_message
from trainjob_trainer.agent.rendezvous import LeaderSettings, is_observer
from trainjob_trainer.agent.replica_agent import ReplicaAgent
from trainjob_trainer.agent.wire import Channel, WireError
from trainjob_trainer.agent.worker_group import WorkerGroup, build_fitting_report
from trainjob_trainer.contract.reports import MEETING
from trainjob_trainer.contract.targets import MalformedMessage, Target

OWN_LINK = 0
LINGER_SECONDS = 2.0
"""Seconds that it stays after the end, so that members and controller receive the last messages."""

_COMPLAIN_SECONDS = 30.0


class Leader:
    """Carries out the worker group's rules; `agent`, its own replica's, takes part as every other one."""

    def __init__(self, agent: ReplicaAgent) -> None:
        settings = agent.settings
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        own = LeaderSettings(
            settings.task.replica,
            settings.incarnation,
            settings.task.cluster,
            OWN_LINK,
            settings.beat_seconds,
            settings.lost_seconds,
            unix_time=time.time() - now,
        )
        first = Target(
            max_restarts=settings.max_restarts,
            stall_timeout=settings.stall_timeout,
            memory_grows=settings.memory_grows,
        )
        self.group = WorkerGroup(own, settings.counts, first, now)
        self._agent = agent
        self._host = settings.pod_ip or settings.address.host
        self._ring = Ring(self._host)
        self._links: dict[int, Channel] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(OWN_LINK + 1)
        self._events: deque[Event] = deque()
        self._is_busy = False
        self._alarm: asyncio.TimerHandle | None = None
        self._expects_sync = False
        self._idle = asyncio.Event()
        self._waiting = Seldom(_COMPLAIN_SECONDS)
        self._refused: tuple[int, int] | None = None
        agent.send = self._handle_own

    async def run(self) -> None:
        """Let the own replica join, then send heartbeats; never return."""
        settings = self._agent.settings
        self.handle(read_join(OWN_LINK, self._agent.join(self._host)))
        while True:
            self._agent.send(self._agent.beat())
            for link in list(self._links):
                self._post(link, {"type": "beat"})
            self.handle(Tick())
            self._log_missing()
            await asyncio.sleep(settings.beat_seconds)

    async def serve(self, channel: Channel, first: Mapping[str, Any]) -> None:
        """Serve an authenticated peer until its connection ends."""
        if first.get("type") == "sync":
            self._sync(channel, first)
        elif first.get("type") == "join":
            await self._serve_member(channel, first)

    async def linger(self) -> None:
        """Wait until members and controller have received the end, at most `LINGER_SECONDS`."""
        self._update_idle()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), LINGER_SECONDS)

    def hang_up(self) -> None:
        """Close all connections at once: an agent that has ended must not seem to lead."""
        self._ring.close()
        for link in list(self._links):
            self._hang_up(self._links.pop(link))

    def handle(self, event: Event) -> None:
        """Apply an event and carry out the effects; events that these cause come after it."""
        self._events.append(event)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._events:
                self._take(self._events.popleft())
        finally:
            self._is_busy = False
        self._set_alarm()

    def _take(self, event: Event) -> None:
        failure = self.group.failure
        effects = self.group.handle(event, self._loop.time())
        latest = self.group.failure
        if latest is not None and not latest.is_same(failure):
            end = f"attempt {latest.attempt} ends: {latest.replica}"
            if latest.alone:
                end = f"{latest.replica} is started again alone"
            log(f"{end}: {latest.reason}" + (f": {latest.message}" if latest.message else ""))
        for effect in effects:
            if isinstance(effect, Send):
                self._post(effect.link, self._ring.add_rendezvous(effect.message))
            elif effect.link in self._links:
                self._hang_up(self._links.pop(effect.link))

    def _post(self, link: int, message: Mapping[str, Any]) -> None:
        if link == OWN_LINK:
            self._agent.handle(message)
        elif link in self._links:
            try:
                self._links[link].post(message)
            except WireError as error:
                log(f"a member's connection has failed: {error}")
                self._hang_up(self._links.pop(link))
                self.handle(Lost(link))

    def _hang_up(self, channel: Channel) -> None:
        task = self._loop.create_task(channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _handle_own(self, message: Mapping[str, Any]) -> None:
        event = read_member_message(OWN_LINK, message)
        if event is not None:
            self.handle(event)

    async def _serve_member(self, channel: Channel, first: Mapping[str, Any]) -> None:
        link = next(self._numbers)
        try:
            join = read_join(link, first)
        except MalformedMessage as error:
            raise WireError(str(error)) from error
        self._links[link] = channel
        why = ""
        try:
            self.handle(join)
            while link in self._links:
                message = await channel.receive(self._agent.settings.lost_seconds)
                event = read_member_message(link, message)
                if event is not None:
                    self.handle(event)
        except (WireError, MalformedMessage) as error:
            why = str(error)
        finally:
            is_news = self._links.pop(link, None) is not None and not self.group.is_over
            if is_news and not is_observer(join.replica):
                log(f"lost {join.replica} ({why})")
            self.handle(Lost(link))
            self._update_idle()

    def _sync(self, channel: Channel, first: Mapping[str, Any]) -> None:
        try:
            target = Target.from_json(first.get("order"))
        except MalformedMessage as error:
            log(f"the controller's target is invalid: {error}")
        else:
            self._log_outdated(target)
            self.handle(target)
            if self.group.is_replaced:  # the kubelet would say so, but may be cut off
                self._agent.leave()
        channel.post(build_fitting_report(self.group, self._loop.time()))
        self._expects_sync = not self.group.is_over  # a controller that has asked once asks again
        self._update_idle()

    def _log_outdated(self, target: Target) -> None:
        """Log once that a controller's target is rejected; the controller gets its report all the same."""
        if self.group.accepts(target, self._loop.time()) or self._refused == target.version:
            return
        self._refused = target.version
        newest = self.group.meeting.target
        log(
            f"a controller's target is rejected: it is of generation {target.generation} and lease "
            f"{target.lease}, the newest of generation {newest.generation} and lease {newest.lease}"
        )

    def _update_idle(self) -> None:
        if self._links or self._expects_sync:
            self._idle.clear()
        else:
            self._idle.set()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        due = self.group.wake_at
        if due is not None and due > self._loop.time():
            self._alarm = self._loop.call_at(due, self.handle, Tick())

    def _log_missing(self) -> None:
        group = self.group
        if group.phase == MEETING and self._loop.time() - group.since > _COMPLAIN_SECONDS:
            missing = group.meeting.missing
            if missing:
                self._waiting.log(f"waiting for {', '.join(missing[:8])}")
