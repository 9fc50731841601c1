"""The zip and the folder that hold the agent, and that Python runs both."""

from __future__ import annotations

import hashlib
import io
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support.world.jobs import build_job
from trainjob.api import parse
from trainjob.cluster.agents import bundle
from trainjob.cluster.agents.bundle import build_bundle, lay_out, preview_source

PACKAGE = Path(__file__).parents[3] / "trainer" / "src" / "trainjob_trainer"


MAIN = """
import pathlib, sys

def main():
    program = pathlib.Path(sys.argv[0])
    print(sys.argv[1:], program.name, sys.path[0] == str(program))
    return 7
"""


def packaged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a small package stand for the trainer, and return its folder."""
    package = folder / "trainjob_trainer"
    for name, text in {
        "__init__.py": "",
        "agent/__init__.py": "",
        "agent/main.py": MAIN,
        "agent/__pycache__/main.cpython-311.pyc": "compiled",
        "py.typed": "",
    }.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(bundle, "PACKAGE", package)
    return package


def run_it(program: Path) -> tuple[int, str]:
    command = [sys.executable, "-I", "-S", str(program), "--", "python", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_zip_holds_every_source_of_the_trainer_and_nothing_else() -> None:
    with zipfile.ZipFile(io.BytesIO(build_bundle())) as archive:
        names = archive.namelist()
        assert archive.testzip() is None
        for name in names[1:]:
            assert archive.read(name) == (PACKAGE.parent / name).read_bytes()
    sources = {path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.rglob("*.py")}
    assert names[0] == "__main__.py"
    assert set(names[1:]) == sources
    assert "trainjob_trainer/bootstrap/sitecustomize.py" in sources


def test_it_fits_into_a_secret() -> None:
    assert len(build_bundle()) < 500_000


def test_the_same_files_make_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = packaged(tmp_path, monkeypatch)
    before = build_bundle()
    (package / "agent/main.py").touch()
    (package / "agent/__pycache__/other.pyc").touch()
    assert build_bundle() == before
    (package / "agent/main.py").write_text("def main(): return 8\n")
    assert build_bundle() != before


def test_python_runs_the_zip_and_the_folder_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged(tmp_path / "installed", monkeypatch)
    zipped = tmp_path / "zip" / "trainjob.pyz"
    zipped.parent.mkdir()
    zipped.write_bytes(build_bundle())
    lay_out(tmp_path / "folder", "secret")
    expected = (7, "['--', 'python', 'train.py'] trainjob.pyz True\n")
    assert run_it(zipped) == expected
    assert run_it(tmp_path / "folder" / "trainjob.pyz") == expected


def test_the_folder_links_the_installed_package_and_keeps_the_token_to_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = packaged(tmp_path / "installed", monkeypatch)
    lay_out(tmp_path / "folder", "secret")
    assert (tmp_path / "folder/trainjob.pyz/trainjob_trainer").resolve() == package.resolve()
    token = tmp_path / "folder/token"
    assert token.read_text() == "secret"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600


def test_a_pod_can_be_shown_without_the_controllers_key() -> None:
    meta = parse(build_job(uid="some-uid")).metadata
    source = preview_source(meta)
    assert source.digest == hashlib.sha256(build_bundle()).hexdigest()
    assert source.token_digest == ""


def test_the_controller_imports_the_contract_and_nothing_else_of_the_trainer() -> None:
    code = (
        "import sys, trainjob.cli, trainjob.controller.operator; "
        "print(*(name for name in sys.modules if name.startswith('trainjob_trainer')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    others = [name for name in done.stdout.split() if not name.startswith("trainjob_trainer.contract")]
    assert sorted(others) == ["trainjob_trainer", "trainjob_trainer.errors"]  # the package itself
