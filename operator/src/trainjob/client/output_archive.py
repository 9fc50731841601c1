"""Sends files of a job's output: lines of JSON, and after the line of a file its bytes.

A program: it runs in pods, for Python 3.9 with its standard library only, and on this machine for runs here.
Its arguments are the job's output folder, the request, as JSON, and for an output in a bucket its address:
then the folder is filled with what is asked for, which needs obstore.

    {"paths": ["model"]}                  what to send, each relative to the output; "" is all of it
    "optional": true                      send nothing of paths that don't exist
    "pattern": "..."                      only files whose path this regular expression is found in
    "sizes": {"logs/train/x": 512}        bytes that were received before: only what was added is sent

It prints, each line at most `LONGEST_LINE` bytes:

    {"files": 3, "folders": 1, "bytes": 1024}    the most that follows
    {"path": "logs"}                             a folder
    {"path": "logs/a", "offset": 0, "bytes": 9}  a file, or what it has from this offset on; its bytes follow
    {"leftOut": ["b (no file, ...)"]}            the end

or only `{"missing": "modle", "there": ["logs/", "model/"]}`, or `{"missing": ""}` without an output folder.
This is no tar: a reader of tar takes sparse files, links, devices and names of any length from the sender.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

BLOCK = 1 << 20
LONGEST_LINE = 1 << 16
"""Of JSON, in bytes: a path has at most 4,096, and each of them at most six characters here."""

_MOST_NAMES = 50


def send(root: Path, request: dict[str, Any], out: BinaryIO) -> None:
    """Write the lines and the files."""

    def say(**line: Any) -> None:
        out.write(json.dumps(line).encode() + b"\n")

    missing = None if request.get("optional") and root.is_dir() else find_missing(root, request["paths"])
    if missing is not None:
        say(**missing)
        return
    left_out: list[str] = []
    found = find_files(root, request["paths"], request.get("pattern", ""), left_out)
    lengths = {path: size for path, size in found.items() if size is not None}
    sizes = request.get("sizes", {})
    starts = {path: sizes[path] for path in lengths if 0 < sizes.get(path, 0) <= lengths[path]}
    parts = {path: starts.get(path, 0) for path in lengths if starts.get(path) != lengths[path]}
    total = sum(lengths[path] - start for path, start in parts.items())
    say(files=len(parts), folders=len(found) - len(lengths), bytes=total)
    for path, size in found.items():
        if size is None:
            say(path=path)
    for path, start in parts.items():
        try:
            file = (root / path).open("rb")
        except FileNotFoundError:
            left_out.append(f"{path} (the job has deleted it meanwhile)")
            continue
        with file:
            # What was added meanwhile stays away: the first line says how much comes.
            left = max(0, min(os.fstat(file.fileno()).st_size, lengths[path]) - start)
            say(path=path, offset=start, bytes=left)
            file.seek(start)
            while left:
                piece = file.read(min(left, BLOCK))
                if not piece:
                    raise OSError(errno.EIO, "the job has shortened it meanwhile", path)
                out.write(piece)
                left -= len(piece)
    kept = _first(left_out)
    say(leftOut=kept if kept == left_out else [*kept, f"{len(left_out) - len(kept)} more"])
    out.flush()


def _first(names: list[str]) -> list[str]:
    """Return as many names as a line has room for."""
    sizes = accumulate(len(json.dumps(name)) + 2 for name in names[:_MOST_NAMES])
    return [name for name, size in zip(names, sizes) if size <= LONGEST_LINE // 2]  # noqa: B905 - Python 3.9


def find_missing(root: Path, paths: list[str]) -> dict[str, Any] | None:
    """Return the first path that doesn't exist, and what is there instead; None if all exist."""
    if not root.is_dir():
        return {"missing": ""}
    for path in paths:
        if not os.path.lexists(root / path):
            folder = next(each for each in (root / path).parents if each.is_dir())
            names = sorted(folder.iterdir())[:_MOST_NAMES]
            there = [f"{each.relative_to(root).as_posix()}{'/' * each.is_dir()}" for each in names]
            return {"missing": path, "there": _first(there)}
    return None


def find_files(root: Path, paths: list[str], pattern: str, left_out: list[str]) -> dict[str, int | None]:
    """Return these paths and all below them, from the top, each with its size; None: a folder.

    A link to a file of the output counts as that file; other links are left out.
    """
    found: dict[str, int | None] = {}
    inside = root.resolve()

    def see(path: str) -> None:
        place = root / path
        if place.is_dir() and not place.is_symlink():
            if path and not pattern:
                found[path] = None
            for inner in sorted(place.iterdir()):
                with suppress(FileNotFoundError):  # the job has deleted it meanwhile
                    see(f"{path}/{inner.name}" if path else inner.name)
        elif not place.is_file() or inside not in place.resolve().parents:
            left_out.append(f"{path} (not a regular file, or a link to a folder or out of the output)")
        elif not pattern or re.search(pattern, path):
            found[path] = place.stat().st_size

    for path in paths:
        if os.path.lexists(root / path):
            see(path)
    return found


# An output in a bucket: plain objects, and the tree of checkpoints with its index, which the trainer's
# `checkpoint/bucket.py` writes.


_TREE = "checkpoints"


def bring(store: Any, root: Path, request: dict[str, Any]) -> None:
    """Fill the folder with the files that are asked for, and of all others with the names, as empty files.

    Args:
        store: an obstore store.
        root: the folder; what is there is removed.
        request: as for `send`.
    """
    shutil.rmtree(root, ignore_errors=True)
    objects = [one["path"] for page in store.list() for one in page]
    keys = {path: path for path in objects if not path.startswith(f"{_TREE}/")}
    texts = {}
    if f"{_TREE}/index.json" in objects:
        index = json.loads(bytes(store.get(f"{_TREE}/index.json").bytes()))
        for path, entry in index["entries"].items():
            if "text" in entry:
                texts[f"{_TREE}/{path}"] = entry["text"]
            elif "blob" in entry:
                keys[f"{_TREE}/{path}"] = f"{_TREE}/{entry['blob']}"
    for path in sorted({*keys, *texts}):
        if not {"", ".", ".."}.isdisjoint(path.split("/")):
            continue
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("wb") as file:
            if is_asked_for(path, request):
                for part in [texts[path].encode()] if path in texts else store.get(keys[path]).stream():
                    file.write(part)


def is_asked_for(path: str, request: dict[str, Any]) -> bool:
    """Return whether a request names this file or a folder of it, and its pattern is found in it."""
    named = any(not each or f"{path}/".startswith(f"{each}/") for each in request["paths"])
    return named and re.search(request.get("pattern", ""), path) is not None


def _bring_from(uri: str, root: Path, request: dict[str, Any]) -> None:
    try:
        from obstore.exceptions import BaseError  # noqa: PLC0415 - only for a bucket
        from obstore.store import from_url  # noqa: PLC0415 - as above
    except ImportError:
        sys.exit("its image has no obstore, which reads buckets: pip install 'trainjob-trainer[bucket]'")
    # A Secret that was made of a file may end with its line break.
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
        os.environ[name] = os.environ[name].strip()
    try:
        bring(from_url(uri, client_options={"allow_http": True}), root, request)
    except (BaseError, OSError, ValueError) as problem:
        sys.exit(f"{uri}: {str(problem).strip().splitlines()[0]}")


if __name__ == "__main__":
    try:
        if len(sys.argv) > 3:
            _bring_from(sys.argv[3], Path(sys.argv[1]), json.loads(sys.argv[2]))
        send(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.stdout.buffer)
    except OSError as problem:
        where = problem.filename or "a file has changed meanwhile"
        sys.exit(f"{where}: {problem.strerror or problem}")
