from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from trainjob_trainer.progress import ProgressFile


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def written(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(path.read_text())
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
    assert written(path)["step"] == 1
    clock.seconds += 0.5
    progress.update(loss=1.5)
    assert written(path)["step"] == 2
    progress.update(step=3)
    progress.flush()
    assert written(path)["step"] == 3


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
