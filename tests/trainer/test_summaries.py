from __future__ import annotations

from pathlib import Path

import pytest

from trainjob.client.history import read_history
from trainjob_trainer.reporting import summaries as module
from trainjob_trainer.reporting.summaries import Summaries, _has_tensorboard


def test_a_folder_that_cannot_be_written_is_named_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    summaries = Summaries(tmp_path / "file" / "logs")
    for step in (1, 2, 3):
        summaries.write(step, {"loss": 0.5})
        summaries.flush()
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if "can't be written" in line] == [
        line for line in said if f"can't be written to {tmp_path}/file/logs: " in line
    ]
    assert sum("can't be written" in line for line in said) == 1

    (tmp_path / "file").unlink()
    monkeypatch.setattr(module.time, "monotonic", lambda: float("inf"))
    summaries.write(4, {"loss": 0.5})
    summaries.flush()
    assert len(list((tmp_path / "file" / "logs").iterdir())) == 1


def test_nowhere_is_fine() -> None:
    summaries = Summaries(None)

    summaries.write(1, {"loss": 0.5})
    summaries.flush()


def test_without_tensorboard_a_line_says_so_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _has_tensorboard.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    for folder in ("train", "evaluator"):
        summaries = Summaries(tmp_path / folder)
        summaries.write(1, {"loss": 0.5})
        summaries.flush()
    _has_tensorboard.cache_clear()
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err.count("pip install tensorboard") == 1


def test_a_client_without_tensorflow_reads_what_is_written(tmp_path: Path) -> None:
    def write(values: dict[int, float]) -> None:
        summaries = Summaries(tmp_path / "logs" / "train")
        for step, loss in values.items():
            summaries.write(step, {"loss": loss, "accuracy": 1 - loss})
        summaries.flush()

    write({1: 0.5, 2: 0.0, 300: 0.25})
    path = next((tmp_path / "logs" / "train").iterdir())
    path.write_bytes(path.read_bytes() + b"\x99\x00\x00\x00\x00\x00\x00\x00half a record")
    write({300: 0.125})  # after a restart from step 2
    (tmp_path / "evaluator").mkdir()
    (tmp_path / "evaluator" / "evaluations.jsonl").write_text(
        '{"step": 2, "metrics": {"loss": 0.75, "recall": "nan"}}\n{"step": 3, "met'
    )

    (tmp_path / "logs" / "history.jsonl").write_text('{"step": 400, "metrics": {"loss": "nan"}}\n')

    history = read_history(tmp_path)
    assert str(history["loss"].pop(400)) == "nan"
    assert history["loss"] == {1: 0.5, 2: 0.0, 300: 0.125}
    assert history["val_loss"] == {2: 0.75}
    assert history.keys() == {"loss", "accuracy", "val_loss", "val_recall"}
