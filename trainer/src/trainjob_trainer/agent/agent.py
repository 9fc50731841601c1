"""What one container does, from its start to its exit code."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from typing import Any

from trainjob_trainer.agent.child import Child
from trainjob_trainer.agent.evaluation_watch import watch_evaluation
from trainjob_trainer.agent.leader import Leader
from trainjob_trainer.agent.listener import Listener
from trainjob_trainer.agent.member import LeaderLink
from trainjob_trainer.agent.seat import Departure, Seat
from trainjob_trainer.agent.settings import Settings
from trainjob_trainer.agent.termination import write_termination
from trainjob_trainer.agent.wire import Channel


async def run_agent(settings: Settings) -> int:
    """Run the agent of one seat, and return its exit code.

    Raises:
        PortTaken: nobody can listen on its port.
    """
    loop = asyncio.get_running_loop()
    seat = Seat(settings, lambda changed: _make_child(settings, changed))
    role = _Leading(seat) if settings.is_leader else _Following(seat)
    listener = Listener(settings.token, role.meet)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, seat.leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    await listener.open(settings.address)
    work: asyncio.Future[Any] = asyncio.ensure_future(role.run())
    watch: asyncio.Future[Any] | None = None
    if settings.is_observer:
        seat.start_alone()
        watch = asyncio.ensure_future(watch_evaluation(seat))
    ends: set[asyncio.Future[Any]] = {work, seat.departure}
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not seat.departure.done():
            work.result()
        departure = seat.departure.result()
        await role.part(departure)
    finally:
        work.cancel()
        if watch is not None:
            watch.cancel()
        listener.close()
        await seat.close()
    _leave_words(seat, departure)
    return departure.code


class _Leading:
    def __init__(self, seat: Seat) -> None:
        self._leader = Leader(seat)
        self.run = self._leader.run
        self.meet = self._leader.meet

    async def part(self, departure: Departure) -> None:
        if departure.verdict in ("finished", "failed"):
            await self._leader.linger()
        self._leader.hang_up()


class _Following:
    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._link = LeaderLink(seat)
        self.run = self._link.run

    async def meet(self, channel: Channel, first: Mapping[str, Any]) -> None:
        if first.get("type") == "sync":
            channel.post(self._report())

    async def part(self, departure: Departure) -> None:
        del departure
        await self._link.close()

    def _report(self) -> dict[str, Any]:
        seat, settings = self._seat, self._seat.settings
        return {
            **seat.beat(),
            "type": "report",
            "role": "member",
            "seat": settings.seat,
            "pod": settings.pod,
            "incarnation": settings.incarnation,
            "ledger": seat.ledger.to_json(),
            "leaderLostSeconds": self._link.lost_seconds,
        }


def _make_child(settings: Settings, changed: Any) -> Child:
    return Child(
        settings.command,
        env=settings.env,
        state_dir=settings.state_dir,
        tf_port=settings.tf_port,
        changed=changed,
        standby=settings.warm_standby,
    )


def _leave_words(seat: Seat, departure: Departure) -> None:
    """Say why, unless it is a good end: then the training process has left its own words."""
    path = seat.settings.termination_log
    if departure.code == 0 or path is None:
        return
    failure = departure.failure
    write_termination(
        path,
        gave_up=departure.gave_up,
        failure=failure.to_json() if failure else None,
        ledger=seat.ledger.to_json(),
        report=seat.child.report,
    )
