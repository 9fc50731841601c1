"""Private folders of runs: kept while any of their processes lives, then removed by the next run."""

import os
import subprocess
import sys
from pathlib import Path

from trainjob.cluster.local import PrivateFolder, remove_stale


def killed(parent: Path) -> None:
    """Leave a folder behind, as a process that is killed does."""
    folder = PrivateFolder(parent)
    (folder.path / "token").write_text("secret")
    os.close(folder.fd)


def test_what_a_killed_process_has_left_is_removed(tmp_path: Path) -> None:
    killed(tmp_path)
    (left,) = tmp_path.iterdir()
    folder = PrivateFolder(tmp_path)
    assert (list(tmp_path.iterdir()), left.exists()) == ([folder.path], False)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    remove_stale(tmp_path)
    assert folder.path.exists()
    folder.remove()
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_stays_until_the_last_process_that_has_its_lock_ends(tmp_path: Path) -> None:
    folder = PrivateFolder(tmp_path)
    wait = [sys.executable, "-c", "input()"]
    with subprocess.Popen(wait, stdin=subprocess.PIPE, pass_fds=[folder.fd]) as heir:
        os.close(folder.fd)
        remove_stale(tmp_path)
        assert folder.path.exists()
        heir.communicate(b"\n")
    remove_stale(tmp_path)
    assert not folder.path.exists()


def test_other_things_of_such_names_stay(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / ".in-use").touch()
    (tmp_path / "trainjob-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "trainjob-file").touch()
    (tmp_path / "trainjob-beginning").mkdir()  # by a run that hasn't locked it yet
    before = {path.name for path in tmp_path.iterdir()}
    remove_stale(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == before
    assert (tmp_path / "elsewhere" / ".in-use").exists()
