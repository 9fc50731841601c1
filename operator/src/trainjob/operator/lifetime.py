"""The parts of a process: when one ends, or when it is asked to, all stop in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine

from trainjob.cluster.agents.bundle import BundleMissing
from trainjob.operator.agent_key import InvalidKey
from trainjob.operator.elector import LeaseLost
from trainjob.operator.exits import ExitCode

_log = logging.getLogger(__name__)

Part = asyncio.Task[None]


def start(name: str, work: Coroutine[None, None, None]) -> Part:
    """Start a part that is to run until it is cancelled."""
    return asyncio.create_task(work, name=name)


async def first_end(parts: Collection[Part], stop: asyncio.Event) -> ExitCode:
    """Wait for the request to stop or for the end of a part, and return what the process ends with."""
    asked = asyncio.ensure_future(stop.wait())
    try:
        done, _ = await asyncio.wait({asked, *parts}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        asked.cancel()
    ends = [_tell_end(part) for part in parts if part in done]
    return max(ends, default=ExitCode.STOPPED)


async def cancel(*parts: Part) -> None:
    """Cancel the parts and wait until they have ended; what they raise then is of no use any more."""
    for part in parts:
        part.cancel()
    await asyncio.gather(*parts, return_exceptions=True)


def _tell_end(part: Part) -> ExitCode:
    error = None if part.cancelled() else part.exception()
    if isinstance(error, LeaseLost):
        _log.error("The lease is lost: %s. Leaving, so that only one replica works", error)
        return ExitCode.LEASE_LOST
    if isinstance(error, (InvalidKey, BundleMissing)):
        _log.error("%s: stopping", error)
        return ExitCode.FAILED
    if error is None:
        _log.error("%s has ended by itself: stopping", part.get_name())
    else:
        _log.error("%s has failed: stopping", part.get_name(), exc_info=error)
    return ExitCode.FAILED
