from __future__ import annotations

import asyncio

import pytest

from trainjob.controller.agent_key import InvalidKey
from trainjob.controller.election import LeaseLost
from trainjob.controller.operator import cancel, first_end
from trainjob.controller.process_settings import ExitCode


async def go_on() -> None:
    await asyncio.Event().wait()


async def fail(error: BaseException) -> None:
    raise error


async def end() -> None:
    """Return at once, which a part never should."""


async def test_a_request_to_stop_is_no_failure() -> None:
    part, stop = asyncio.create_task(go_on(), name="A part"), asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    assert await first_end([part], stop) is ExitCode.STOPPED
    await cancel(part)
    assert part.cancelled()


@pytest.mark.parametrize(
    ("work", "code", "told"),
    [
        (lambda: fail(LeaseLost("b has it")), ExitCode.LEASE_LOST, "The lease is lost: b has it"),
        (lambda: fail(ValueError("a defect")), ExitCode.FAILED, "A part has failed: stopping"),
        (lambda: fail(InvalidKey("no key there")), ExitCode.FAILED, "no key there: stopping"),
        (end, ExitCode.FAILED, "A part has ended by itself: stopping"),
        (lambda: fail(asyncio.CancelledError()), ExitCode.FAILED, "A part has ended by itself"),
    ],
)
async def test_the_end_of_a_part_is_logged(
    work: object, code: ExitCode, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(work)
    other = asyncio.create_task(go_on())
    assert await first_end([other, asyncio.create_task(work(), name="A part")], asyncio.Event()) is code
    assert told in caplog.text
    assert ("Traceback" in caplog.text) == (told == "A part has failed: stopping")
    await cancel(other)


async def test_of_two_ends_at_once_a_lost_lease_counts() -> None:
    parts = [asyncio.create_task(fail(error)) for error in (ValueError(), LeaseLost("gone"))]
    await asyncio.sleep(0)
    assert await first_end(parts, asyncio.Event()) is ExitCode.LEASE_LOST


async def test_a_part_that_fails_while_it_is_cancelled_holds_nothing_up() -> None:
    async def fail_late() -> None:
        try:
            await go_on()
        finally:
            raise ValueError("too late to matter")

    late = asyncio.create_task(fail_late())
    await asyncio.sleep(0)
    await cancel(late)
    assert late.done()
