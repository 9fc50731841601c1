"""Writes files of a job's output as a tar stream, after a line of JSON about them.

A program: it runs in pods, for Python 3.9 with its standard library only, and on this machine for runs here.
Its arguments are the job's output folder and the request, as JSON:

    {"paths": ["model"]}                  what to send, each relative to the output; "" is all of it
    "optional": true                      send nothing of paths that don't exist
    "pattern": "..."                      only files whose path this regular expression is found in
    "sizes": {"logs/train/x": 512}        bytes that were received before: only what was added is sent

The line is `{"files": 3, "bytes": 1024}`, or `{"missing": "modle", "there": ["logs/", "model/"]}`, and
`{"missing": ""}` without an output folder. In the archive a path begins with `files/`. Its last member,
`end`, has JSON again: how many files were sent, and what was left out and why.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

FILES = "files/"
END = "end"
OFFSET = "TRAINJOB.offset"
"""The header of a file of which only the bytes from here on are sent."""

BLOCK = 1 << 20
_MOST_NAMES = 50


def send(root: Path, request: dict[str, Any], out: BinaryIO) -> None:
    """Write the line and the archive."""
    missing = None if request.get("optional") and root.is_dir() else find_missing(root, request["paths"])
    if missing is not None:
        out.write(json.dumps(missing).encode() + b"\n")
        return
    left_out: list[str] = []
    found = find_files(root, request["paths"], request.get("pattern", ""), left_out)
    lengths = {path: size for path, size in found.items() if size is not None}
    sizes = request.get("sizes", {})
    starts = {path: sizes[path] for path in lengths if 0 < sizes.get(path, 0) <= lengths[path]}
    parts = {path: starts.get(path, 0) for path in lengths if starts.get(path) != lengths[path]}
    total = sum(lengths[path] - start for path, start in parts.items())
    out.write(json.dumps({"files": len(parts), "bytes": total}).encode() + b"\n")
    with tarfile.open(fileobj=out, mode="w|", bufsize=BLOCK, format=tarfile.PAX_FORMAT) as archive:
        for path, size in found.items():
            if size is None:
                archive.addfile(_member(path, tarfile.DIRTYPE))
        sent = sum([_send_file(archive, root, path, start, left_out) for path, start in parts.items()])
        end = json.dumps({"files": sent, "leftOut": left_out}).encode()
        member = tarfile.TarInfo(END)
        member.size = len(end)
        archive.addfile(member, io.BytesIO(end))
    out.flush()


def find_missing(root: Path, paths: list[str]) -> dict[str, Any] | None:
    """Return the first path that doesn't exist, and what is there instead; None if all exist."""
    if not root.is_dir():
        return {"missing": ""}
    for path in paths:
        if not os.path.lexists(root / path):
            folder = next(each for each in (root / path).parents if each.is_dir())
            names = sorted(folder.iterdir())[:_MOST_NAMES]
            there = [f"{each.relative_to(root).as_posix()}{'/' * each.is_dir()}" for each in names]
            return {"missing": path, "there": there}
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
            left_out.append(f"{path} (no file, or a link to a folder or out of the output)")
        elif not pattern or re.search(pattern, path):
            found[path] = place.stat().st_size

    for path in paths:
        if os.path.lexists(root / path):
            see(path)
    return found


def _send_file(archive: tarfile.TarFile, root: Path, path: str, start: int, left_out: list[str]) -> int:
    """Send a file, and return how many were sent: 1 or 0."""
    try:
        file = (root / path).open("rb")
    except FileNotFoundError:
        left_out.append(f"{path} (the job has deleted it meanwhile)")
        return 0
    with file:
        status = os.fstat(file.fileno())
        member = _member(path, tarfile.REGTYPE)
        member.size, member.mtime = max(0, status.st_size - start), int(status.st_mtime)
        if start:
            member.pax_headers = {OFFSET: str(start)}
        file.seek(start)
        archive.addfile(member, file)
    return 1


def _member(path: str, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(FILES + path)
    member.type = kind
    return member


if __name__ == "__main__":
    try:
        send(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.stdout.buffer)
    except OSError as problem:
        where = problem.filename or "a file has changed meanwhile"
        sys.exit(f"{where}: {problem.strerror or problem}")
