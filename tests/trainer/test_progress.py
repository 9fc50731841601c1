from __future__ import annotations

import errno
import itertools
import json
import math
import os
import queue
import threading
from pathlib import Path
from typing import Any

import pytest

from trainjob_trainer.reporting.progress import ProgressFile, notice, report


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def written(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(path.read_text())
    assert report.pop("pid", os.getpid()) == os.getpid()
    return report


def test_the_first_report_and_a_change_of_state_are_written_at_once(tmp_path: Path) -> None:
    path, clock = tmp_path / "progress.json", Clock()
    progress = ProgressFile(path, clock=clock, now=lambda: 7.0)

    progress.update(state="training", step=1, total_steps=9, examples_per_second=2.5)
    assert written(path) == {
        "state": "training",
        "step": 1,
        "totalSteps": 9,
        "examplesPerSecond": 2.5,
        "time": 7.0,
    }
    progress.update(state="saving")
    assert written(path)["state"] == "saving"


def test_others_are_written_at_most_twice_a_second_and_none_is_lost(tmp_path: Path) -> None:
    path, clock = tmp_path / "progress.json", Clock()
    progress = ProgressFile(path, clock=clock)
    progress.update(state="training", step=1)

    progress.update(step=2)
    assert written(path)["step"] == 2  # the first step is news
    progress.update(step=3)
    assert written(path)["step"] == 2
    clock.seconds += 0.5
    progress.update(loss=1.5)
    assert written(path)["step"] == 3
    progress.update(step=4)
    progress.flush()
    assert written(path)["step"] == 4


def test_whoever_asks_in_one_process_reports_together(tmp_path: Path) -> None:
    """The Keras help and the library beside it: the states of two would alternate."""
    path = tmp_path / "progress.json"
    env = {"TRAINJOB_PROGRESS_FILE": str(path)}

    ProgressFile.from_environment(env).update(state="training", step=3)
    ProgressFile.from_environment(env).flush()

    assert (written(path)["state"], written(path)["step"]) == ("training", 3)
    elsewhere = {"TRAINJOB_PROGRESS_FILE": str(tmp_path / "other.json")}
    assert ProgressFile.from_environment(elsewhere).last.step is None
    assert ProgressFile.from_environment({}) is ProgressFile.from_environment({})


def test_numbers_that_json_lacks_are_strings(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"

    ProgressFile(path).update(loss=math.nan, metrics={"a": math.inf, "b": -math.inf})

    assert written(path)["loss"] == "nan"
    assert written(path)["metrics"] == {"a": "inf", "b": "-inf"}


def test_a_failure_has_reason_and_message(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"

    ProgressFile(path).fail("PeerLost", "worker-0 lost another worker")

    assert written(path)["state"] == "failed"
    assert written(path)["error"] == {"reason": "PeerLost", "message": "worker-0 lost another worker"}


def test_a_folder_that_is_gone_disturbs_nobody(tmp_path: Path) -> None:
    ProgressFile(tmp_path / "gone" / "progress.json").update(state="training")


def test_no_file_is_fine() -> None:
    progress = ProgressFile(None)

    progress.update(state="training", step=3)

    assert progress.last.step == 3


def test_only_a_process_that_has_done_its_work_leaves_last_words(tmp_path: Path) -> None:
    """What a failing one should say stands in its log, which Kubernetes takes when the file is empty."""
    log = tmp_path / "termination-log"
    log.touch()
    progress = ProgressFile(None, log)

    progress.update(state="training", step=1)
    progress.fail("PeerLost", "worker-0 lost another worker")
    assert log.read_text() == ""

    progress.update(state="finished", step=9)
    assert written(log)["step"] == 9


def test_last_words_stay_whole_however_many_metrics_there_are(tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    log.touch()
    many = {f"metric-{n}": float(n) for n in range(500)}
    ProgressFile(None, log).update(state="finished", step=9, metrics=many)
    assert written(log)["step"] == 9
    assert log.stat().st_size <= 3072


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (["trained alone"], ["trained alone"]),
        (["trained alone", "another rate", "trained alone"], ["trained alone", "another rate"]),
        (["two\nlines\t and more"], ["two lines and more"]),
        (["word " * 60], [" ".join(60 * ["word"])]),
        ([f"{'a' * 200}{'b' * 200}"], [f"{'a' * 150}…{'b' * 149}"]),
        ([f"fit {number}" for number in range(20)], [f"fit {number}" for number in range(8)]),
    ],
)
def test_notices_are_lines_of_the_log_and_of_the_report(
    said: list[str],
    kept: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TRAINJOB_PROGRESS_FILE", str(tmp_path / "progress.json"))
    ProgressFile.from_environment(dict(os.environ)).update(state="training", step=3)
    for line in said:
        notice(line)
    assert capsys.readouterr().err == "".join(f"trainjob: {line}\n" for line in said)
    report = written(tmp_path / "progress.json")
    assert (report["notices"], report["state"], report["step"]) == (kept, "training", 3)


def test_a_process_outside_a_job_only_logs_a_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TRAINJOB_PROGRESS_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    notice("trained alone")
    assert capsys.readouterr().err == "trainjob: trained alone\n"
    assert list(tmp_path.iterdir()) == []


def test_no_notice_takes_the_last_result_from_a_termination_message(tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    log.touch()
    evaluation = {"step": 9, "metrics": {f"metric-{n}": float(n) for n in range(50)}, "final": True}
    lines = tuple(f"{n} {'é' * 290}" for n in range(8))
    ProgressFile(None, log).update(state="finished", step=9, evaluation=evaluation, notices=lines)
    assert written(log)["evaluation"] == evaluation
    assert log.stat().st_size <= 3072


def test_nothing_is_made_where_no_kubelet_listens(tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    ProgressFile(None, log).update(state="finished")
    assert not log.exists()


def test_where_to_report_stands_in_the_environment(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    env = {"TRAINJOB_PROGRESS_FILE": str(tmp_path / "p.json"), "TRAINJOB_TERMINATION_LOG": str(log)}
    ProgressFile.from_environment(env).update(state="finished")
    assert written(tmp_path / "p.json")["state"] == written(log)["state"] == "finished"


def test_a_report_is_written_again_while_the_process_lives_and_says_nothing_new(tmp_path: Path) -> None:
    path, clock, looks = tmp_path / "progress.json", Clock(), queue.SimpleQueue[float]()
    seen, wall = threading.Semaphore(0), itertools.count()
    progress = ProgressFile(path, clock=clock, now=lambda: float(next(wall)))

    def wait(seconds: float) -> None:
        seen.release()
        clock.seconds += looks.get()

    progress.update(state="training", step=4)
    progress.keep_fresh(wait)
    progress.keep_fresh(wait)
    assert seen.acquire(timeout=60)
    assert written(path) == {"state": "training", "step": 4, "time": 0.0}
    for later in (0.5, 0.5):
        looks.put(later)
        assert seen.acquire(timeout=60)
    assert written(path) == {"state": "training", "step": 4, "time": 1.0}

    progress.update(state="finished")
    looks.put(9.0)
    assert seen.acquire(timeout=60)
    assert written(path)["time"] == 2.0
    assert not seen.acquire(blocking=False)


def test_step_seconds_and_global_batch_have_their_keys(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    ProgressFile(path).update(step_seconds=0.25, global_batch=64)
    assert (written(path)["stepSeconds"], written(path)["globalBatch"]) == (0.25, 64)


def test_a_loop_of_another_library_reports_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report(1)  # outside a job nothing happens
    path = tmp_path / "progress.json"
    monkeypatch.setenv("TRAINJOB_PROGRESS_FILE", str(path))
    report(1, total_steps=3, epoch=1, loss=0.5, metrics={"accuracy": 0.25})
    report(2)
    report(3, checkpoint_step=3)
    last = written(path)
    assert last.pop("time") > 0
    assert last == {
        "state": "training",
        "step": 3,
        "totalSteps": 3,
        "epoch": 1,
        "loss": 0.5,
        "metrics": {"accuracy": 0.25},
        "checkpointStep": 3,
    }


@pytest.mark.parametrize(("state", "failures"), [("finished", 2), ("failed", 2)])
def test_the_last_report_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, failures: int
) -> None:
    left, replace = iter(range(failures)), Path.replace

    def fail(path: Path, target: Path) -> Path:
        if next(left, None) is not None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", fail)
    progress = ProgressFile(tmp_path / "progress.json", now=lambda: 7.0)
    progress.update(state=state, step=9)
    assert written(tmp_path / "progress.json") == {"state": state, "step": 9, "time": 7.0}
