import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from trainjob.cli.run import Interruption


async def test_a_signal_asks_and_a_second_one_insists() -> None:
    seen: list[str] = []
    with Interruption() as interruption:
        interruption.on_second(lambda: seen.append("insisted"))
        os.kill(os.getpid(), signal.SIGTERM)
        await interruption.asked.wait()
        assert seen == []
        interruption.ask()
    assert seen == ["insisted"]


@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.SIG_DFL])
async def test_a_program_under_nohup_outlives_its_terminal(before: signal.Handlers) -> None:
    with _hangup(before):
        with Interruption():
            heard = signal.getsignal(signal.SIGHUP) is not before
        assert signal.getsignal(signal.SIGHUP) is before
    assert heard is (before is signal.SIG_DFL)


@contextmanager
def _hangup(handler: signal.Handlers) -> Iterator[None]:
    earlier = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, earlier)
