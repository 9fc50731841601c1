"""What the client packs is what the agent unpacks, and nothing else is."""

from __future__ import annotations

import hashlib
import io
import stat
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.golden import Golden
from trainjob.client import submission
from trainjob_trainer.agent import code as agent
from trainjob_trainer.contract.files import CODE


def unpack(folder: Path, archive: bytes, digest: str = "") -> dict[str, bytes]:
    """Return the files that the agent writes; its archive lies beside their folder."""
    (folder / CODE).write_bytes(archive)
    value = {"digest": digest or hashlib.sha256(archive).hexdigest(), "folder": str(folder / "code")}
    read = agent.read_code(value, folder)
    assert read is not None
    read.unpack()
    found = (path for path in (folder / "code").rglob("*") if path.is_file())
    return {path.relative_to(folder / "code").as_posix(): path.read_bytes() for path in found}


part = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..")
)
path = st.lists(part, min_size=1, max_size=3).map("/".join)


def fit_together(files: dict[str, bytes]) -> bool:
    """Whether no file has the name of another one's folder."""
    return not any(other.startswith(f"{name}/") for name in files for other in files)


@settings(max_examples=settings().max_examples // 5)
@given(st.dictionaries(path, st.binary(max_size=50), max_size=5).filter(fit_together))
def test_files_travel_unchanged(files: dict[str, bytes]) -> None:
    packed = submission.pack(files)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "code").mkdir()
        assert unpack(Path(folder), packed.archive, packed.digest) == files


def test_programs_can_be_executed(tmp_path: Path) -> None:
    unpack(tmp_path, submission.pack({"run.sh": b"#!/bin/sh\n", "a.py": b"pass"}).archive)
    modes = {
        name: stat.S_IMODE((tmp_path / "code" / name).stat().st_mode) & 0o100 for name in ("run.sh", "a.py")
    }
    assert modes == {"run.sh": 0o100, "a.py": 0}


def archive_of(name: str, mode: int = stat.S_IFREG | 0o644, content: bytes = b"x") -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        entry = zipfile.ZipInfo(name)
        entry.external_attr = mode << 16
        archive.writestr(entry, content)
    return packed.getvalue()


@pytest.mark.parametrize(
    "archive",
    [
        archive_of("../out"),
        archive_of("a/../../out"),
        archive_of("/out"),
        archive_of("a//b"),
        archive_of("link", stat.S_IFLNK | 0o777, b"/etc/passwd"),
        archive_of("zeros", content=bytes(50_000_001)),
        b"no archive",
    ],
)
def test_an_unsafe_archive_is_refused_whole(archive: bytes, tmp_path: Path, golden: Golden) -> None:
    with pytest.raises(agent.InvalidConfiguration) as caught:
        unpack(tmp_path, archive)
    golden(str(caught.value))
    assert {path.name for path in tmp_path.iterdir()} == {CODE}


def test_another_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(agent.InvalidConfiguration, match="ConfigMap was replaced"):
        unpack(tmp_path, submission.pack({"a.py": b"1"}).archive, submission.pack({"a.py": b"2"}).digest)


def test_a_full_disk_is_no_mistake_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "code").write_text("a file where a folder should be")
    with pytest.raises(agent.OutputUnwritable, match="can't be unpacked into"):
        unpack(tmp_path, submission.pack({"a.py": b"1"}).archive)
