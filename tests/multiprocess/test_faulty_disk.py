"""A file system that fails, under real processes: no checkpoint is lost, and they say what is wrong."""

from __future__ import annotations

import hashlib
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.trainer.checkpoints import newest_step
from support.trainer.processes import WorkerGroup
from trainjob_trainer.contract.exits import ExitCode

pytestmark = pytest.mark.nightly
"""What each system call may fail with is played through in `trainer/test_storage_simulation.py`."""

SCRIPT = Path(__file__).parent / "scripts" / "faulty_disk.py"
EVER = "1000000"


def training(output: Path, *, fault: str = "", epoch: str = "") -> WorkerGroup:
    env = {
        **({"DISK_FAULT": fault} if fault else {}),
        **({"TRAINJOB_GENERATION": epoch} if epoch else {}),
    }
    return WorkerGroup(SCRIPT, output, workers=1, env=env, arguments=("--epochs", EVER))


def published(output: Path) -> Mapping[str, str]:
    """All that readers of the checkpoints see."""
    files = [path for path in (output / "checkpoints").glob("[!.]*/*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def check_waits(group: WorkerGroup, words: str) -> None:
    """It waits with a state that says so, until it is asked to stop."""
    group["worker-0"].wait_for_line("waiting for storage: ")
    assert words in group.progress("worker-0")["waitingForStorage"]
    group["worker-0"].kill(signal.SIGTERM)
    assert group.wait() == {"worker-0": ExitCode.PREEMPTED}, group.report


def test_a_folder_that_cannot_be_listed_is_neither_empty_nor_damaged(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with training(output) as group:
        group["worker-0"].wait_for_line("accuracy", times=3)
    before, step = published(output), newest_step(output)

    with training(output, fault=f"listdir EIO 2 {EVER} /checkpoints$") as group:
        check_waits(group, "/checkpoints: Input/output error")
    assert published(output) == before

    with training(output, fault="listdir ESTALE 1 1 /checkpoints$") as group:
        group["worker-0"].wait_for_line(f"resumed from step {step} ")
        group["worker-0"].wait_for_line("accuracy", times=2)  # the second waits for the first to be saved
    assert newest_step(output) > step


def test_training_goes_on_while_a_save_is_tried_again(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with training(output, fault="listdir EIO 40 45 /checkpoints$") as group:
        worker = group["worker-0"]
        worker.wait_for_line("waiting for storage: ")
        away = group.progress("worker-0")
        worker.wait_for_line("no longer waiting for storage")
        back = away
        while back["checkpointStep"] <= away["checkpointStep"]:
            time.sleep(0.1)
            back = group.progress("worker-0")
    assert "/checkpoints: Input/output error" in away["waitingForStorage"]
    assert "waitingForStorage" not in back
    assert back["step"] > away["step"]
    assert newest_step(output) > away["checkpointStep"]


def test_a_writer_without_a_fence_leaves_its_successors_checkpoints_alone(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with training(output) as old:
        old["worker-0"].wait_for_line("accuracy", times=2)
        old["worker-0"].freeze()
        with training(output) as new:
            new["worker-0"].wait_for_line("resumed from step")
            from_there = newest_step(output)
            while newest_step(output) < from_there + 21:  # beyond what the old one saves next
                time.sleep(0.05)
            new["worker-0"].freeze()
            before = published(output)

            old["worker-0"].kill(18)  # SIGCONT

            assert old.wait() == {"worker-0": ExitCode.OUTPUT_UNWRITABLE}, old.report
            error = old.progress("worker-0")["error"]
            assert error["reason"] == "OutputUnwritable"
            assert "holds checkpoints that this process has not written" in error["message"]
            # One of its own may still be published: it stopped between its look at the folder and the rename.
            assert before.items() <= published(output).items()


@pytest.mark.parametrize("refusals", [2, 1000], ids=["for a while", "for good"])
def test_a_claim_that_cannot_be_removed_is_not_passed_over(tmp_path: Path, refusals: int) -> None:
    """Its folder is busy, as on NFS where a file in it is still open."""
    output = tmp_path / "output"
    with training(output, epoch="1.1") as old:
        old["worker-0"].wait_for_line("accuracy", times=2)
        old["worker-0"].freeze()
        with training(output, epoch="1.2", fault=f"rmdir EBUSY 1 {refusals} .claim-1.1") as new:
            if refusals > 2:
                check_waits(new, "the output can't be written safely: ")
            else:
                new["worker-0"].wait_for_line("resumed from step")
                claims = [path.name[:10] for path in (output / "checkpoints").rglob(".claim-*")]
                assert claims == [".claim-1.2"]
