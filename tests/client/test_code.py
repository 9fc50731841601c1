"""Which files travel with a job, and what is said about those that can't."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from trainjob.client.submission import LARGEST, UnusableCode, collect, describe, pack


def lay_out(root: Path, *names: str, **contents: str) -> None:
    for name, content in {**dict.fromkeys(names, "x"), **contents}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def names(root: Path, *paths: str, script: str = "", skip: tuple[str, ...] = ()) -> list[str]:
    code = collect(
        root,
        [root / path for path in paths],
        script=root / script if script else None,
        skip=[root / path for path in skip],
    )
    return sorted(code.files)


def test_a_script_travels_with_what_it_can_import(tmp_path: Path) -> None:
    lay_out(tmp_path, "train.py", "helper.py", "notes.txt", "models/net.py", "models/big.bin", "data/a.csv",
            "data/deep/b.py", "models/heads/h.py", ".hidden.py")  # fmt: skip
    assert names(tmp_path, script="train.py") == [
        "helper.py",
        "models/heads/h.py",
        "models/net.py",
        "train.py",
    ]


def test_a_script_in_a_folder_keeps_its_path(tmp_path: Path) -> None:
    lay_out(tmp_path, "scripts/train.py", "scripts/helper.py", "other.py", "src/a.py", "src/b.yaml")
    assert names(tmp_path, script="scripts/train.py") == ["scripts/helper.py", "scripts/train.py"]
    assert names(tmp_path, "src", script="scripts/train.py") == [
        "scripts/helper.py", "scripts/train.py", "src/a.py", "src/b.yaml",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rules", "travels"),
    [
        ({".gitignore": "*.bin\n"}, ["a.py", "c/d.py", "keep.txt"]),
        ({".gitignore": "*.bin\n!b.bin\n"}, ["a.py", "b.bin", "keep.txt", "c/d.py"]),
        ({".gitignore": "/c/\n"}, ["a.py", "b.bin", "keep.txt"]),
        ({".gitignore": "d.py\n", "c/.gitignore": "!d.py\n*.bin\n"}, ["a.py", "b.bin", "c/d.py", "keep.txt"]),
        ({".trainjobignore": "*\n!a.py\n"}, ["a.py"]),
        ({".gitignore": "*.bin\n", ".trainjobignore": "!b.bin\n*.txt\n"}, ["a.py", "b.bin", "c/d.py"]),
    ],
)
def test_ignored_files_stay(rules: dict[str, str], travels: list[str], tmp_path: Path) -> None:
    lay_out(tmp_path, "a.py", "b.bin", "c/d.py", "c/e.bin", "keep.txt", **rules)
    assert names(tmp_path, ".") == sorted(travels)


def test_the_rules_of_the_repository_hold_in_its_folders(tmp_path: Path) -> None:
    lay_out(tmp_path, ".git/config", "project/a.py", "project/b.bin", **{".gitignore": "*.bin\n"})
    lay_out(tmp_path.parent, **{".gitignore": "*.py\n"})
    assert names(tmp_path / "project", ".") == ["a.py"]


def test_a_file_that_is_named_travels_in_any_case(tmp_path: Path) -> None:
    lay_out(tmp_path, "a.bin", ".env", "b.bin", **{".gitignore": "*.bin\n"})
    assert names(tmp_path, "a.bin", ".env") == [".env", "a.bin"]


def test_what_never_travels(tmp_path: Path) -> None:
    lay_out(tmp_path, "a.py", ".git/config", ".env", "__pycache__/a.pyc", "b.pyc", "node_modules/x.py")
    lay_out(
        tmp_path, "venv/pyvenv.cfg", "venv/x.py", "conda/conda-meta/history", "conda/x.py", "runs/log.txt"
    )
    assert names(tmp_path, ".", skip=("runs",)) == ["a.py"]


def test_links(tmp_path: Path) -> None:
    root = tmp_path / "root"
    lay_out(tmp_path, "secret.txt", "root/a.py", "root/pkg/b.py")
    for name, target in [
        ("inside.py", "pkg/b.py"),
        ("folder", "pkg"),
        ("pkg/loop", ".."),
        ("out", "../secret.txt"),
        ("gone", "nowhere"),
    ]:
        (root / name).symlink_to(target)
    code = collect(root, [root])
    assert sorted(code.files) == ["a.py", "folder/b.py", "inside.py", "pkg/b.py"]
    assert [note.partition(" is a link that ")[::2] for note in sorted(code.notes)] == [
        ("folder/loop", "leads back to a folder that holds it; it isn't sent"),
        ("gone", "leads to nothing; it isn't sent"),
        ("out", f"leads out of {root}, to {tmp_path}/secret.txt; it isn't sent"),
        ("pkg/loop", "leads back to a folder that holds it; it isn't sent"),
    ]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["nowhere"], "there is no .*nowhere"),
        (["../outside.txt"], "outside.txt is outside .*root, which becomes the working directory"),
        (["link"], "link is outside"),
        (["pipe"], "pipe is neither a file nor a folder"),
        (["hidden"], "hidden: no file in it is sent"),
    ],
)
def test_paths_that_cant_travel(paths: list[str], message: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    lay_out(tmp_path, "outside.txt", "root/hidden/.a")
    (root / "link").symlink_to("../outside.txt")
    os.mkfifo(root / "pipe")
    with pytest.raises(UnusableCode, match=message):
        names(root, *paths)


def test_too_much_code_is_refused_with_the_largest_files() -> None:
    noise = random.Random(0).randbytes  # noqa: S311 - the same at each run
    files = {"big.bin": noise(800_000), "middle.bin": noise(200_000), "a.py": b"x", "b.py": b"x" * 500_000}
    with pytest.raises(UnusableCode) as refused:
        pack(files)
    assert "1,001 kB packed, more than 900 kB" in str(refused.value)
    assert "largest files are big.bin (800 kB), middle.bin (200 kB), b.py (1 kB)" in str(refused.value)
    assert ".trainjobignore" in str(refused.value)
    assert len(pack({"a": noise(LARGEST - 1000)}).archive) <= LARGEST


def test_much_code_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "disk.img").open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(UnusableCode, match=r"larger than 50 MB.*disk.img"):
        collect(tmp_path, [tmp_path])


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(UnusableCode, match=r"bad\\udcff.py isn't UTF-8"):
        pack({os.fsdecode(b"bad\xff.py"): b""})


def test_the_same_files_make_the_same_archive() -> None:
    first, second = pack({"a": b"1", "b": b"2"}), pack({"b": b"2", "a": b"1"})
    assert first == second
    assert pack({"a": b"1", "b": b"3"}).digest != first.digest
    assert describe({"a": b"1", "b": b"2"}, first) == "2 files, 1 kB packed: a, b"
