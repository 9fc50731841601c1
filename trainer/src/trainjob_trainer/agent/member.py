"""The connection to the leading agent: whenever it ends, training here ends too, and it is made again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from trainjob_trainer.agent.log import Seldom, log
from trainjob_trainer.agent.seat import Seat
from trainjob_trainer.agent.wire import FRAME_SECONDS, Channel, WireError, connect

SHORTEST_WAIT = 0.1
LONGEST_WAIT = 1.0
_COMPLAIN_SECONDS = 30.0


class LeaderLink:
    """Joins the leading agent, obeys it, and joins again for ever.

    Args:
        seat: what to do for this seat.
    """

    def __init__(self, seat: Seat) -> None:
        """Not connected."""
        self._seat = seat
        self._settings = seat.settings
        self._channel: Channel | None = None
        self._loop = asyncio.get_running_loop()
        self._lost_at: float | None = self._loop.time()
        self._newest = 0
        self._wait = SHORTEST_WAIT
        self._trouble = Seldom(_COMPLAIN_SECONDS)
        seat.say = self.say

    @property
    def lost_seconds(self) -> float | None:
        """Return for how long there has been no leading agent, or None."""
        return None if self._lost_at is None else self._loop.time() - self._lost_at

    def say(self, message: Mapping[str, Any]) -> None:
        """Tell the leading agent, if there is one."""
        if self._channel is None:
            return
        try:
            self._channel.post(message)
        except WireError as error:
            log(f"could not tell the leading agent of {message.get('type')}: {error}")

    async def run(self) -> None:
        """Never return."""
        while True:
            try:
                await self._attend()
            except WireError as error:
                self._missed(str(error))
            wait = self._wait * random.uniform(0.5, 1.0)  # noqa: S311 - so that not all come at once
            self._wait = min(2 * self._wait, LONGEST_WAIT)
            await asyncio.sleep(wait)

    async def close(self) -> None:
        """Say what is still to be said, and hang up."""
        if self._channel is not None:
            await self._channel.close()

    async def _attend(self) -> None:
        leader = self._settings.leader
        # The name is looked up anew each time: the leading agent's pod may be another one by now.
        channel = await connect(leader.host, leader.port, self._settings.token, FRAME_SECONDS)
        beats = None
        try:
            channel.post(self._seat.join(self._settings.pod_ip or channel.own_host))
            patience = self._welcome(await channel.receive(FRAME_SECONDS))
            self._channel = channel
            beats = asyncio.ensure_future(self._beat())
            while True:
                self._obey(await channel.receive(patience))
        finally:
            self._channel = None
            if beats is not None:
                beats.cancel()
            await channel.close(0)

    def _obey(self, message: Mapping[str, Any]) -> None:
        try:
            self._seat.obey(message)
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(f"its order makes no sense: {error!r}") from error

    def _welcome(self, message: Mapping[str, Any]) -> float:
        """Return how long the leading agent may be silent; raise unless it lets us in."""
        if message.get("type") == "end":
            self._obey(message)
            raise WireError("it sends this seat's agent away")
        incarnation, policy = message.get("incarnation"), message.get("policy")
        if (
            message.get("type") != "welcome"
            or not isinstance(incarnation, int)
            or not isinstance(policy, dict)
        ):
            raise WireError("whoever answers speaks another protocol")
        if incarnation < self._newest:
            raise WireError("whoever answers has been replaced")
        self._newest = incarnation
        self._lost_at = None
        self._wait = SHORTEST_WAIT
        return float(policy.get("lostSeconds", self._settings.lost_seconds))

    def _missed(self, why: str) -> None:
        seat, leader = self._seat, self._settings.leader
        if self._lost_at is None:
            self._lost_at = self._loop.time()
            if not (seat.departure.done() or self._settings.is_observer):
                log(f"lost the leading agent at {leader} ({why}); training stops here until it is back")
        else:
            self._trouble.log(f"waiting for the leading agent at {leader} ({why})")
        if not self._settings.is_observer:
            seat.cut_off()

    async def _beat(self) -> None:
        while True:
            self.say(self._seat.beat())
            await asyncio.sleep(self._settings.beat_seconds)
