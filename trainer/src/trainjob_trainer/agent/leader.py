"""The leading agent: the members' connections and the controller's questions around the rules of `gang`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from trainjob_trainer.agent.failure import Failure
from trainjob_trainer.agent.gang import MEETING, Gang, build_fitting_report
from trainjob_trainer.agent.log import Seldom, log
from trainjob_trainer.agent.messages import (
    Event,
    Lost,
    MalformedMessage,
    Order,
    Send,
    Tick,
    read_join,
    read_member_message,
    read_order,
)
from trainjob_trainer.agent.rendezvous import Place, is_observer
from trainjob_trainer.agent.seat import Seat
from trainjob_trainer.agent.wire import Channel, WireError

OWN_LINK = 0
LINGER_SECONDS = 2.0
"""How long it stays after the end, so that members and controller hear of it."""

_COMPLAIN_SECONDS = 30.0


class Leader:
    """Carries out what the gang's rules say; `seat`, this agent's own, takes part as every other one."""

    def __init__(self, seat: Seat) -> None:
        settings = seat.settings
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        place = Place(
            settings.seat,
            settings.incarnation,
            settings.cluster,
            OWN_LINK,
            settings.beat_seconds,
            settings.lost_seconds,
            unix_time=time.time() - now,
        )
        self.gang = Gang(place, settings.ledger, settings.max_restarts, settings.stall_timeout, now)
        self._seat = seat
        self._links: dict[int, Channel] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(OWN_LINK + 1)
        self._events: deque[Event] = deque()
        self._is_busy = False
        self._alarm: asyncio.TimerHandle | None = None
        self._is_expected = False
        self._nobody_waits = asyncio.Event()
        self._waiting = Seldom(_COMPLAIN_SECONDS)
        self._refused: tuple[int, int] | None = None
        seat.say = self._hear_own

    async def run(self) -> None:
        """Let the own seat join, then beat for ever."""
        settings = self._seat.settings
        self.handle(read_join(OWN_LINK, self._seat.join(settings.pod_ip or settings.address.host)))
        while True:
            self._seat.say(self._seat.beat())
            for link in list(self._links):
                self._post(link, {"type": "beat"})
            self.handle(Tick())
            self._complain()
            await asyncio.sleep(settings.beat_seconds)

    async def meet(self, channel: Channel, first: Mapping[str, Any]) -> None:
        """Attend to somebody who knows the token, until they are gone."""
        if first.get("type") == "sync":
            self._sync(channel, first)
        elif first.get("type") == "join":
            await self._attend(channel, first)

    async def linger(self) -> None:
        """Stay for a moment, until everybody has heard of the end."""
        self._note_who_waits()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._nobody_waits.wait(), LINGER_SECONDS)

    def hang_up(self) -> None:
        """Let go of everybody at once: who leads no more must not look as if."""
        for link in list(self._links):
            self._hang_up(self._links.pop(link))

    def handle(self, event: Event) -> None:
        """Let the rules take an event, and do what they say; what that brings about comes after it."""
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
        failure = self.gang.failure
        effects = self.gang.handle(event, self._loop.time())
        if self.gang.failure is not None and not self.gang.failure.is_same(failure):
            _announce(self.gang.failure)
        for effect in effects:
            if isinstance(effect, Send):
                self._post(effect.link, effect.message)
            elif effect.link in self._links:
                self._hang_up(self._links.pop(effect.link))

    def _post(self, link: int, message: Mapping[str, Any]) -> None:
        if link == OWN_LINK:
            self._seat.obey(message)
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

    def _hear_own(self, message: Mapping[str, Any]) -> None:
        event = read_member_message(OWN_LINK, message)
        if event is not None:
            self.handle(event)

    async def _attend(self, channel: Channel, first: Mapping[str, Any]) -> None:
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
                message = await channel.receive(self._seat.settings.lost_seconds)
                event = read_member_message(link, message)
                if event is not None:
                    self.handle(event)
        except (WireError, MalformedMessage) as error:
            why = str(error)
        finally:
            is_news = self._links.pop(link, None) is not None and not self.gang.is_over
            if is_news and not is_observer(join.seat):
                log(f"lost {join.seat} ({why})")
            self.handle(Lost(link))
            self._note_who_waits()

    def _sync(self, channel: Channel, first: Mapping[str, Any]) -> None:
        try:
            order = read_order(first.get("order"))
        except MalformedMessage as error:
            log(f"the controller's order makes no sense: {error}")
        else:
            self._note_outdated(order)
            self.handle(order)
        channel.post(build_fitting_report(self.gang, self._loop.time()))
        self._is_expected = not self.gang.is_over  # who has asked once asks again
        self._note_who_waits()

    def _note_outdated(self, order: Order) -> None:
        """Say once that a controller isn't obeyed; its question is answered all the same."""
        if self.gang.takes(order, self._loop.time()) or self._refused == order.version:
            return
        self._refused = order.version
        newest = self.gang.meeting.order
        log(
            f"a controller's order isn't taken: it is of generation {order.generation} and lease"
            f" {order.lease}, the newest of generation {newest.generation} and lease {newest.lease}"
        )

    def _note_who_waits(self) -> None:
        if self._links or self._is_expected:
            self._nobody_waits.clear()
        else:
            self._nobody_waits.set()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        due = self.gang.wake_at
        if due is not None and due > self._loop.time():
            self._alarm = self._loop.call_at(due, self.handle, Tick())

    def _complain(self) -> None:
        gang = self.gang
        if gang.phase == MEETING and self._loop.time() - gang.since > _COMPLAIN_SECONDS:
            missing = gang.meeting.missing
            if missing:
                self._waiting.log(f"waiting for {', '.join(missing[:8])}")


def _announce(failure: Failure) -> None:
    what = f": {failure.message}" if failure.message else ""
    if failure.alone:
        log(f"{failure.seat} is started again alone: {failure.reason}{what}")
        return
    log(f"attempt {failure.attempt} ends: {failure.seat}: {failure.reason}{what}")
