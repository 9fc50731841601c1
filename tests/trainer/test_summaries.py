from __future__ import annotations

from pathlib import Path

import pytest

from trainjob_trainer import OutputUnwritable
from trainjob_trainer.reporting.summaries import Summaries, _has_tensorboard


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    summaries = Summaries(tmp_path / "file" / "logs")

    with pytest.raises(OutputUnwritable, match=r"cannot write .*file/logs"):
        summaries.write(1, {"loss": 0.5})


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
        summaries.close()
    _has_tensorboard.cache_clear()
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err.count("pip install tensorboard") == 1
