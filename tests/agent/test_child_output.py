"""What the training process prints reaches the agent's stdout whole, in order and at once."""

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from support.agents.own_process import Trainee, in_own_process
from trainjob_trainer.agent.log import TAIL_CHARACTERS, LogCopy, readable

MANY = 20_000_000


@in_own_process
async def test_nothing_is_lost_of_much(tmp_path: Path) -> None:
    program = (
        "import hashlib, os, random\n"
        f"data = random.Random(1).randbytes({MANY})\n"
        "rest = memoryview(data)\n"
        "while rest: rest = rest[os.write(1, rest[:100_003]):]\n"
        "open(os.environ['HOME'] + '/sum', 'w').write(hashlib.sha256(data).hexdigest())\n"
    )
    one = Trainee(tmp_path, program)
    one.child.start({})
    assert (await one.ends()).code == 0
    await one.child.close()
    written = (tmp_path / "output").read_bytes()
    assert len(written) == MANY
    assert hashlib.sha256(written).hexdigest() == (tmp_path / "sum").read_text(encoding="ascii")


@in_own_process
async def test_parts_of_lines_come_at_once_and_both_streams_in_order(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    program = (
        "import os\n"
        "def pause(): open(os.environ['HOME'] + '/go').read()\n"
        "os.write(1, b'step 1 ... '); pause()\n"
        "os.write(2, b'a warning, '); pause()\n"
        "os.write(1, b'done')\n"
    )
    one = Trainee(tmp_path, program)
    one.child.start({})
    for text in ("step 1 ... ", "step 1 ... a warning, "):
        await one.prints(text)
        assert one.output == text
        (tmp_path / "go").write_text("", encoding="ascii")
    await one.ends()
    await one.child.close()
    assert one.output == "step 1 ... a warning, done"
    assert one.child.exit.message == "step 1 ... a warning, done"


@in_own_process
async def test_a_reader_that_sleeps_holds_up_the_process_not_its_agent(tmp_path: Path) -> None:
    program = (
        "import os\n"
        f"block, rest = bytes(range(256)) * 256, {MANY}\n"
        "while rest > 0: rest -= os.write(1, block[:rest])\n"
        "os._exit(5)\n"
    )
    one = Trainee(tmp_path, program)
    reader, writer = os.pipe()
    os.dup2(writer, 1)
    os.close(writer)
    one.child.start({})
    # Not `is_full`: that ends with the first chunk, which the pipe has room for.
    await one.until(lambda: one.child._sink._waiting)
    waiting = one.child._sink._pending
    await one.child.stop(0)
    assert one.child.exit.signal == 9
    assert one.child._sink._pending < waiting + 2_000_000  # bounded, although no one reads

    one.child.start({})
    received = await asyncio.to_thread(read, reader, waiting + MANY)
    assert (await one.ends()).code == 5
    await one.child.close()
    assert len(received) >= MANY


async def test_output_that_was_taken_by_the_time_it_is_looked_for_is_not_the_last() -> None:
    copy = LogCopy()
    copy.begin()
    os.write(copy.writer, b"first")
    await copy.settle(60)
    copy._copy()  # as the loop does that has seen something before another took it
    os.write(copy.writer, b"second")
    await copy.settle(60)
    assert copy.recent == "firstsecond"
    copy.close_writer()
    copy.finish()


def read(reader: int, least: int) -> bytes:
    """Read so much at least."""
    received = bytearray()
    while len(received) < least:
        received += os.read(reader, 1 << 20)
    return bytes(received)


@in_own_process
async def test_training_continues_without_a_reader(tmp_path: Path) -> None:
    one = Trainee(
        tmp_path, f"import os\nfor _ in range({MANY // 65536}): os.write(1, bytes(65536))\nos._exit(5)"
    )
    reader, writer = os.pipe()
    os.dup2(writer, 1)
    os.close(writer)
    os.close(reader)
    one.child.start({})
    assert (await one.ends()).code == 5
    await one.child.close()


@in_own_process
async def test_the_tail_is_short_and_readable(tmp_path: Path) -> None:
    program = (
        "import os\n"
        "os.write(1, 'wärme '.encode() * 4000)\n"
        "os.write(1, b'\\nstep 1\\rstep 2\\r\\n\\x1b[1mlast\\x1b[0m \\xff line\\n\\n  \\n')\n"
    )
    one = Trainee(tmp_path, program)
    one.child.start({})
    ended = await one.ends()
    assert len(ended.log_tail) == TAIL_CHARACTERS
    assert ended.log_tail.endswith("wärme \nstep 2\nlast � line\n\n  \n")
    assert ended.message == "last � line"
    await one.child.close()


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (b"", ""),
        (b"one\r\ntwo", "one\ntwo"),
        (b"1/3\r2/3\r3/3", "3/3"),
        (b"1/3\r2/3\r\nnext\n", "2/3\nnext\n"),
        (b"\x1b[32mgreen\x1b[0m \x1b]0;title\x07", "green 0;title"),
        (b"5/9\x08\x08\x08\x00\x7f", "5/9"),
        ("é\u00a0\U0001f600\ttab".encode(), "é\u00a0\U0001f600\ttab"),
        (b"\xc3", "\ufffd"),
    ],
)
def test_output_is_shown_as_a_terminal_would_leave_it(printed: bytes, shown: str) -> None:
    assert readable(printed) == shown
