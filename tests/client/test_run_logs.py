"""The log files of a run: bounded, and read once, whatever lies in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path

import pytest

from support.cli.program import NOW
from support.cli.stored_jobs import store_run
from support.golden import Golden
from trainjob.client.job_logs import Wanted
from trainjob.client.run_record import read_run_folder
from trainjob.client.runs import LocalJob, LogFile, log_files, results_in
from trainjob.cluster.local.process import ReplicaLog, replica_log_path

KIB = 1 << 10


def test_a_long_log_keeps_its_beginning_and_its_end(tmp_path: Path, golden: Golden) -> None:
    path = replica_log_path(tmp_path, "worker-0")
    log = ReplicaLog(path, "--- pod one ---", 128 * KIB)
    for number in range(0, 70_000, 100):
        log.write(f"line {each}" for each in range(number, number + 100))
    log.close()
    log = ReplicaLog(path, "--- pod two ---", 128 * KIB)  # goes on in the newest one
    log.close()
    assert log.problem is None
    files = log_files(tmp_path)["worker-0"]
    assert files == sorted(path.parent.iterdir(), key=lambda file: (len(file.name), file.name))
    assert sum(file.stat().st_size for file in files) < 3 * 130 * KIB
    text = "".join(file.read_text() for file in files)
    golden(*(line for line in text.splitlines() if line.startswith("---")))
    assert text.startswith("--- pod one ---\nline 0\nline 1\n")
    assert text.endswith("\nline 69999\n--- pod two ---\n")
    numbers = [int(line.removeprefix("line ")) for line in text.splitlines() if line.startswith("line")]
    gaps = [(a, b) for a, b in pairwise(numbers) if b != a + 1]
    assert len(gaps) == 1
    assert results_in(tmp_path).logs == {"worker-0": str(files[-1])}


async def shown(folder: Path, **options: object) -> list[str]:
    run = read_run_folder(folder)
    assert run is not None
    async with aclosing(LocalJob(run).log_lines(Wanted(), **options)) as lines:  # type: ignore[arg-type]
        return [line async for _, line in lines]


async def test_a_run_has_its_own_part_of_several_files(tmp_path: Path) -> None:
    path = replica_log_path(tmp_path, "worker-0")
    log = ReplicaLog(path, "--- earlier ---", 40)
    log.write(["of the run before"])
    log.close()
    starts = {file.stem: file.stat().st_size for file in log_files(tmp_path)["worker-0"]}
    log = ReplicaLog(path, "--- this run ---", 40)
    log.write(["first"])
    log.write(["second"])
    log.close()
    store_run(tmp_path, log_starts=starts, ended=NOW, end="complete")
    own = [line for line in await shown(tmp_path) if not line.startswith("---")]
    assert own == ["first", "second"]
    assert "of the run before" in await shown(tmp_path, previous=True)
    assert not {"first", "second"} & {*await shown(tmp_path, previous=True)}
    assert await shown(tmp_path, tail=1) == ["second"]
    assert "first" in await shown(tmp_path, tail=5)


def test_no_name_of_another_log_is_taken_for_a_part(tmp_path: Path) -> None:
    folder = tmp_path / "logs/replicas"
    folder.mkdir(parents=True)
    names = ("worker-0.log", "worker-0.10.log", "worker-0.2.log", "worker-1.log", "worker-10.log")
    others = ("worker-0.02.log", "worker-0.x.log", "worker-0.2.log.old", f"worker-0.{'9' * 99}.log", "a.log")
    for name in (*names, *others):
        (folder / name).touch()
    os.mkfifo(folder / "worker-0.11.log")  # nobody writes into it
    os.mkfifo(folder / "worker-2.log")
    (folder / "worker-3.log").mkdir()
    found = {replica: [file.name for file in files] for replica, files in log_files(tmp_path).items()}
    assert found == {
        "worker-0": ["worker-0.log", "worker-0.2.log", "worker-0.10.log"],
        "worker-1": ["worker-1.log"],
        "worker-10": ["worker-10.log"],
    }


def bytes_read() -> int:
    """Return what this process has read so far, from files and all else."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize("piece", [b"x", b"12%\r", b"\xff"])
def test_a_line_without_an_end_is_read_once_while_it_grows(tmp_path: Path, piece: bytes) -> None:
    path, size = tmp_path / "worker-0.log", 1 << 22
    log = LogFile(path)

    def lines(*, whole: bool = False) -> Iterator[str]:
        return (line for lines in log.read(whole=whole) for line in lines)

    with path.open("ab", buffering=0) as file:
        before = bytes_read()
        for _ in range(32):
            file.write(piece * (size // 32 // len(piece)))
            assert [*lines()] == []
        assert bytes_read() - before < 2 * size
    (line,) = lines(whole=True)
    assert len(line) < 10_000
    assert [*lines(whole=True)] == []
