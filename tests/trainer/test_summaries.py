from __future__ import annotations

from pathlib import Path

import pytest

from trainjob_trainer import OutputUnwritable
from trainjob_trainer.reporting.summaries import Summaries


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    summaries = Summaries(tmp_path / "file" / "logs")

    with pytest.raises(OutputUnwritable, match=r"cannot write .*file/logs"):
        summaries.write(1, {"loss": 0.5})


def test_nowhere_is_fine() -> None:
    summaries = Summaries(None)

    summaries.write(1, {"loss": 0.5})
    summaries.flush()
