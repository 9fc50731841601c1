"""Runs a function that travels with its job: `python -m trainjob_trainer.function FOLDER/function.json`.

The folder has a header, the pickled function and the cloudpickle that packed it: "Functions" in
docs/contract.md. The header is compared before anything is unpickled: bytecode of another Python ends the
interpreter with a segmentation fault.
"""

from __future__ import annotations

import hashlib
import json
import linecache
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainjob_trainer.atomic_file import write_atomically
from trainjob_trainer.contract.files import FUNCTION, FUNCTION_FORMAT, RESULT, python_version
from trainjob_trainer.contract.reports import as_json
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.reporting.progress import ProgressFile, announce, notice
from trainjob_trainer.task import Task

LARGEST_RESULT = 1 << 20
"""Characters of a result: larger ones belong into files of the output folder."""


def load(path: Path) -> tuple[Callable[..., Any], Mapping[str, Any]]:
    """Return the function and its arguments, loaded by the cloudpickle beside it.

    Raises:
        InvalidConfiguration: another Python or a later version packed it, its files are damaged, or something
            that the function needs isn't here.
    """
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
        form, minor, digest = header["format"], header["python"], header["sha256"]
        payload = path.with_name(FUNCTION).read_bytes()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidConfiguration(
            f"{path}: not a packed function: {type(error).__name__}: {error}"
        ) from error
    if form != FUNCTION_FORMAT:
        raise InvalidConfiguration(
            f"{path}: packed in format {form}, this version reads {FUNCTION_FORMAT}: update it"
        )
    here = python_version()
    if minor != here:
        raise InvalidConfiguration(
            f"packed by Python {minor}, the image has {here}: choose an image with Python {minor}, "
            f"or submit the job from Python {here}"
        )
    if hashlib.sha256(payload).hexdigest() != digest:
        raise InvalidConfiguration(f"{path.with_name(FUNCTION)}: its SHA-256 isn't that of its header")
    # One of the image may be older than what packed the function.
    for name in [each for each in sys.modules if each.split(".")[0] == "cloudpickle"]:
        del sys.modules[name]
    sys.path.insert(0, str(path.parent.absolute()))
    # Where it was packed, these folders of the working directory were searched too.
    sys.path += [os.path.abspath(entry) for entry in header.get("path", ())]  # noqa: PTH100 - no link is resolved
    for file, text in header.get("sources", {}).items():
        # For tracebacks, and for AutoGraph, which reads the source of what it compiles.
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    try:
        function, arguments = pickle.loads(payload)  # noqa: S301 - it is the job's own code
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(
            f"{header.get('entry')} needs the module {error.name!r}, which isn't installed here: install it "
            "into the image, or send it along with code=[...]"
        ) from error
    except Exception as error:
        raise InvalidConfiguration(
            f"{header.get('entry')} can't be loaded ({type(error).__name__}: {error}): the packages here "
            "differ from those where it was packed"
        ) from error
    return function, arguments


def leave_result(result: object) -> None:
    """Write `result.json` into the output, or say in one line why not; only the writer does, and in a job."""
    folder = os.environ.get("TRAINJOB_OUTPUT_DIR")
    if not folder or not Task.from_environment(os.environ).is_writer:
        return
    path = Path(folder) / RESULT
    try:
        text = json.dumps(as_json(result), allow_nan=False)
        if len(text) > LARGEST_RESULT:
            raise ValueError(f"it has {len(text):,} characters, at most {LARGEST_RESULT:,} are kept")
    except (TypeError, ValueError, RecursionError) as error:
        path.unlink(missing_ok=True)  # that of an earlier run
        notice(
            f"no {RESULT}, as the function's result is not JSON ({error}): return numbers, texts, lists and "
            "dicts of them, and write anything else as files into the folder TRAINJOB_OUTPUT_DIR"
        )
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text + "\n")


def main(path: Path) -> None:
    """Run the function; its errors end the process as those of a script do."""
    try:
        function, arguments = load(path)
    except InvalidConfiguration as error:
        # Not by `edge`, which imports NumPy.
        announce(f"{error.reason}: {error}")
        ProgressFile.from_environment(os.environ).fail(error.reason, str(error))
        sys.exit(int(error.exit_code))
    sys.argv[1:] = []  # they are ours
    leave_result(function(**arguments))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
