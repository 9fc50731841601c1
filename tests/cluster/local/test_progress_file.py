"""The file of a training process's progress: replaced, taken away, or gone with its pod."""

import errno
import shutil
from pathlib import Path

import pytest

from trainjob.cluster.local.pod import LARGEST_REPORT, ProgressFile

REPORT = '{"state": "training", "step": 1}'


def replace(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    new = path.with_name("new")
    new.write_text(text)
    new.rename(path)


def test_a_report_is_read_once(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path / "progress.json")
    assert not file.has_changed()
    replace(file.path, REPORT)
    assert file.has_changed()
    assert not file.has_changed()
    assert file.report == {"state": "training", "step": 1}


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "x" * (LARGEST_REPORT + 1)])
def test_what_is_no_report_changes_nothing(text: str, tmp_path: Path) -> None:
    file = ProgressFile(tmp_path / "progress.json")
    replace(file.path, REPORT)
    assert file.has_changed()
    replace(file.path, text)
    assert not file.has_changed()
    assert file.report == {"state": "training", "step": 1}


def test_a_report_whose_file_is_deleted_is_forgotten(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path / "progress.json")
    replace(file.path, REPORT)
    file.has_changed()
    file.path.unlink()
    assert file.has_changed()
    assert file.report is None
    assert not file.has_changed()
    replace(file.path, '{"step": 2}')
    assert file.has_changed()


def test_the_last_report_of_a_pod_that_is_gone_is_kept(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path / "pod" / "progress.json")
    replace(file.path, REPORT)
    file.has_changed()
    shutil.rmtree(tmp_path / "pod")
    assert not file.has_changed()
    assert file.report == {"state": "training", "step": 1}


def test_a_report_that_cannot_be_read_for_a_moment_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ProgressFile(tmp_path / "progress.json")
    replace(file.path, REPORT)
    with monkeypatch.context() as away:
        away.setattr(Path, "read_bytes", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "away")))
        assert not file.has_changed()
    assert file.has_changed()
