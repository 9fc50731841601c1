"""What a function needs travels with it: packed here, run by another interpreter."""

from __future__ import annotations

import functools
import inspect
import json
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from trainjob.client.function import COMMAND, pack_function
from trainjob.cluster.agents.bundle import build_bundle

HARD = "quotes ' \" ''' $HOME ${HOME} $(HOME) $5 $$ `date` \\ \\n \\\\ %s {0}\n\ttab \x00 äöü 漢字 🙂 \ud800"
FACTOR = 3


def helper(number: int) -> int:
    return number * FACTOR


def uses_a_helper(number: int) -> int:
    return helper(number) + 1


def build_closure(text: str) -> Callable[[], dict[str, str]]:
    def inner() -> dict[str, str]:
        return {"text": text, "own": HARD}

    return inner


def echo(**arguments: object) -> dict[str, object]:
    return dict(arguments)


@dataclass
class Point:
    x: int

    def twice(self) -> int:
        return 2 * self.x


def uses_a_class() -> int:
    return Point(21).twice()


def with_default(first: int, second: int = 5, *, third: str = "`$'\"") -> list[object]:
    return [first, second, third]


def reads_its_source() -> bool:
    return "AutoGraph reads this" in inspect.getsource(reads_its_source)


def imports_inside() -> str:
    import json as one  # noqa: PLC0415

    return one.dumps({"a": 1})


def find_versions() -> list[str]:
    import cloudpickle  # noqa: PLC0415

    return [cloudpickle.__version__, Path(cloudpickle.__file__).parent.parent.name, str(len(sys.argv))]


def special_numbers() -> dict[str, object]:
    import numpy as np  # noqa: PLC0415

    return {"nan": float("nan"), "array": np.arange(3), "scalar": np.float32(0.5), "steps": (1, 2)}


CASES: dict[str, tuple[Callable[..., Any], dict[str, Any], Any]] = {
    "helper": (uses_a_helper, {"number": 4}, 13),
    "closure": (build_closure(HARD), {}, {"text": HARD, "own": HARD}),
    "arguments": (echo, {"text": HARD, "list": [1, None, True]}, {"text": HARD, "list": [1, None, True]}),
    "class": (uses_a_class, {}, 42),
    "default": (with_default, {"first": 1}, [1, 5, "`$'\""]),
    "partial": (functools.partial(with_default, 7, third=HARD), {}, [7, 5, HARD]),
    "lambda": (lambda number: number + FACTOR, {"number": 1}, 4),
    "source": (reads_its_source, {}, True),
    "imports": (imports_inside, {}, '{"a": 1}'),
    "numbers": (special_numbers, {}, {"nan": "nan", "array": [0, 1, 2], "scalar": 0.5, "steps": [1, 2]}),
    "nothing": (echo, {}, {}),
}

RUN_ALL = """
import os, sys
from pathlib import Path
from trainjob_trainer.function import main
for folder in sys.argv[1:]:
    os.environ["TRAINJOB_OUTPUT_DIR"] = folder + "/output"
    main(Path(folder, ".trainjob", "function.json"))
"""


def lay_out(files: Mapping[str, bytes], folder: Path) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def run(folders: list[Path], *, cwd: Path = Path("/"), **variables: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    command = [sys.executable, "-c", RUN_ALL, *map(str, folders)]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=env, cwd=cwd)


def result_of(folder: Path) -> Any:
    return json.loads((folder / "output" / "result.json").read_text())


def test_functions_with_all_they_use_arrive_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    (project / "models").mkdir(parents=True)
    (project / "pyproject.toml").touch()
    (project / "models" / "__init__.py").write_text("from models.layers import WIDTH\n")
    (project / "models" / "layers.py").write_text("WIDTH = 7\ndef wide(n):\n    return n * WIDTH\n")
    (project / "project_train.py").write_text(
        "import models.layers\nfrom models import WIDTH\n\n"
        "def train(n):\n    return [models.layers.wide(n), WIDTH]\n"
    )
    monkeypatch.syspath_prepend(project)
    train = import_module("project_train").train
    # An older cloudpickle in the image, which comes before the installed packages.
    older = tmp_path / "older" / "cloudpickle"
    older.mkdir(parents=True)
    (older / "__init__.py").write_text("__version__ = '1.0'\n")
    (project / "src").mkdir()
    (project / "src" / "files_train.py").write_text(
        "import files_help\ndef train():\n    return files_help.__file__\n"
    )
    (project / "src" / "files_help.py").touch()
    monkeypatch.syspath_prepend(project / "src")
    from_files = import_module("files_train").train
    cases = {
        **CASES,
        "modules": (train, {"n": 2}, [14, 7]),
        "versions": (find_versions, {}, [import_module("cloudpickle").__version__, ".trainjob", "1"]),
    }
    folders = {
        name: lay_out(pack_function(function, arguments), tmp_path / name)
        for name, (function, arguments, _) in cases.items()
    }
    # Of files that travel by themselves the modules are imported, from the folder where they lie there.
    with monkeypatch.context() as patch:
        patch.chdir(project)
        as_files = pack_function(from_files, {}, as_files=[project / "src"])
    there = tmp_path / "there" / "src"
    there.mkdir(parents=True)
    (there / "files_train.py").write_text((project / "src" / "files_train.py").read_text())
    (there / "files_help.py").touch()
    folders["files"] = lay_out(as_files, tmp_path / "there")
    done = run(list(folders.values()), cwd=tmp_path / "there", PYTHONPATH=str(older.parent))
    assert done.returncode == 0, done.stderr
    results = {name: result_of(folder) for name, folder in folders.items()}
    assert results.pop("files") == str(there / "files_help.py")
    assert results == {name: expected for name, (_, _, expected) in cases.items()}


def returns_an_object() -> object:
    return {"model": threading.Lock()}


def test_a_result_that_is_not_json_is_said_and_no_failure(tmp_path: Path) -> None:
    folder = lay_out(pack_function(returns_an_object, {}), tmp_path)
    (folder / "output").mkdir()
    (folder / "output" / "result.json").write_text("1")
    done = run([folder])
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert "the function's result is not JSON (there is a lock in it)" in done.stderr
    assert not (folder / "output" / "result.json").exists()


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"python": "3.8"}, "packed by Python 3.8, the image has "),
        ({"format": 2}, "packed in format 2, this version reads 1"),
        ({"sha256": "0"}, "its SHA-256 isn't that of its header"),
    ],
)
def test_the_header_is_compared_before_anything_is_loaded(
    tmp_path: Path, header: dict[str, object], message: str
) -> None:
    folder = lay_out(pack_function(echo, {}), tmp_path)
    path = folder / ".trainjob" / "function.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | header))
    # Whoever unpickles this payload leaves a file.
    evil = f"cbuiltins\nopen\n(V{tmp_path}/loaded\nVw\ntR."
    payload = folder / ".trainjob" / "function.pickle"
    payload.write_bytes(evil.encode())
    report = tmp_path / "progress.json"
    done = run([folder], TRAINJOB_PROGRESS_FILE=str(report))
    assert done.returncode == 80
    assert message in done.stderr
    assert not (tmp_path / "loaded").exists()
    assert json.loads(report.read_text())["error"]["reason"] == "InvalidConfiguration"


def test_a_module_that_the_image_lacks_is_named(tmp_path: Path) -> None:
    module = types.ModuleType("a_package_of_here")
    exec("def help(): return 1", vars(module))  # noqa: S102
    sys.modules[module.__name__] = module
    try:
        files = pack_function(functools.partial(echo, help=vars(module)["help"]), {})
    finally:
        del sys.modules[module.__name__]
    done = run([lay_out(files, tmp_path)])
    assert done.returncode == 80
    assert "needs the module 'a_package_of_here', which isn't installed here: install it" in done.stderr


def test_an_image_needs_only_python_and_the_library_of_its_agent(tmp_path: Path) -> None:
    folder = lay_out(pack_function(uses_a_helper, {"number": 4}), tmp_path)
    program = tmp_path / "trainjob.pyz"
    program.write_bytes(build_bundle())
    variables = {
        "PYTHONPATH": f"{program}/trainjob_trainer/bootstrap",  # as the agent sets it
        "TRAINJOB_OUTPUT_DIR": f"{folder}/output",
        "TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}',
    }
    # Not that of the virtual environment, which has the library installed.
    command = [sys._base_executable, *COMMAND[1:]]  # type: ignore[attr-defined]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=variables, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert result_of(folder) == 13


def test_only_the_leading_replica_leaves_a_result(tmp_path: Path) -> None:
    folder = lay_out(pack_function(uses_a_helper, {"number": 4}), tmp_path)
    config = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
    assert run([folder], TF_CONFIG=config).returncode == 0
    assert not (folder / "output").exists()
