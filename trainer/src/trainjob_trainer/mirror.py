"""The files of a pod's output folder, kept in a bucket: all but checkpoints (`checkpoint/bucket.py`).

What a script, Keras and TensorBoard write is written into a folder of the pod. The writer and the evaluator
send what has changed every few seconds. When such a process has exited with 0, its agent has `finish` send
the rest before it marks training as finished.

*At each start the folder of every replica is what the bucket has*: a script that looks for a file of an
earlier start finds the same on all replicas, as in a shared folder. The agent has `become` fetch it before
the command runs; a warm standby fetches it when it is activated. The writer sends nothing before all have
come to their first step.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from trainjob_trainer.agent.ending import FENCED, SENT, mark_finished
from trainjob_trainer.atomic_file import TEMPORARY, write_atomically
from trainjob_trainer.checkpoint.bucket import (
    PART,
    SCRATCH,
    BucketError,
    Changed,
    Objects,
    ObjectStore,
    build_files,
    tag_of,
)
from trainjob_trainer.checkpoint.files import Patience
from trainjob_trainer.contract.files import find_link
from trainjob_trainer.contract.processes import execute
from trainjob_trainer.edge import leave
from trainjob_trainer.environment import Environment
from trainjob_trainer.errors import Fenced, InvalidConfiguration, OutputTaken, TrainerError
from trainjob_trainer.reporting.progress import ProgressFile
from trainjob_trainer.task import Task

SECONDS = 10.0
"""Between two looks for changed files."""
_TRIES = 3
_STATE = f"{TEMPORARY}sent.json"
_EVENTS = "events.out.tfevents."
"""TensorBoard's files begin so; nobody reads earlier ones during training."""
_OF_A_RUN = ".trainjob"
"""What `trainjob run` keeps in the folder begins so, and belongs to its machine, as its logs do."""
_OF_OTHERS = ("checkpoints", "evaluator", "logs/replicas")
"""Folders in it that aren't part of it."""


class Mirror:
    """A folder of this pod and the same one in a bucket.

    Args:
        folder: of this pod.
        objects: the bucket's folder.
        start: the number of this start of the replica in its pod.
    """

    def __init__(self, folder: Path, objects: Objects, start: int) -> None:
        self._folder = folder
        self._objects = objects
        self._start = start
        self._lock = threading.Lock()
        self._versions: dict[str, str] = {}
        self._pulled, self._sent = self._read_state()

    def pull(self) -> None:
        """Make the folder what the bucket has, once for each start: a script has further processes.

        Raises OSError if the bucket, or the folder, can't be used, InvalidConfiguration if a part of it is a
        link.
        """
        with self._lock:
            if self._pulled == self._start:
                return
            for left in self._folder.glob(f"{SCRATCH}*"):  # by a process that was killed
                shutil.rmtree(left, ignore_errors=True)
            theirs = {key: one for key, one in self._objects.versions("").items() if self._is_part(key)}
            for key in set(self._files()) - set(theirs):
                (self._folder / key).unlink(missing_ok=True)
            for key, version in theirs.items():
                path = self._folder / key
                known = self._sent.get(key)
                if path.name.startswith(_EVENTS) or (known == [_stamp(path), version] and known[0]):
                    continue
                if link := find_link(one for one in path.parents if self._folder in one.parents):
                    raise InvalidConfiguration(link)
                path.parent.mkdir(parents=True, exist_ok=True)
                part = path.with_name(TEMPORARY + path.name)
                fetched = self._objects.fetch(key, part)
                part.replace(path)
                self._sent[key] = [_stamp(path), fetched]
            self._sent = {key: one for key, one in self._sent.items() if key in theirs}
            self._pulled = self._start
            self._write_state()

    def push(self) -> None:
        """Send the files that have changed, and delete those that are gone; OSError as `pull`."""
        with self._lock:
            files = self._files()
            for key, stamp in files.items():
                if self._sent.get(key, [None])[0] == stamp:
                    continue
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    self._sent[key] = [stamp, self._send(key)]
            if gone := [key for key in self._sent if key not in files]:
                self._objects.delete(gone)
                self._sent = {key: one for key, one in self._sent.items() if key in files}
            self._write_state()

    def _send(self, key: str) -> str:
        """Send a file, and return its tag.

        A small one replaces only what is known to be there: a request that gets no answer may be done later,
        even after the next one, and the file of a moment ago would then be the last one in the bucket.
        """
        path = self._folder / key
        if path.stat().st_size > PART:
            return self._objects.put(key, path)
        data, version = path.read_bytes(), self._versions.get(key, "")
        for _ in range(_TRIES):
            try:
                self._versions[key] = self._objects.put_if(key, data, version)
                return tag_of(self._versions[key])
            except (Changed, FileNotFoundError):  # an earlier try has been done, or it isn't known
                version = ""
                with contextlib.suppress(FileNotFoundError):
                    found = self._objects.get(key)
                    version = found[1] if found else ""
        raise BucketError(errno.EAGAIN, f"{key} is changed by others all the time")

    def keep_pushing(self, may: Callable[[], bool]) -> None:
        """Send changes from now on, in a thread, at the times at which it `may`."""

        def run() -> None:
            while True:
                time.sleep(SECONDS)
                try:
                    if may():
                        self.push()
                except (Fenced, OutputTaken):
                    return  # another one writes there
                except (OSError, TrainerError):
                    continue  # the next look tries again

        threading.Thread(target=run, name="trainjob-mirror", daemon=True).start()

    def _files(self) -> dict[str, list[int]]:
        return dict(self._walk(self._folder))

    def _walk(self, folder: Path) -> Iterator[tuple[str, list[int]]]:
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            key = path.relative_to(self._folder).as_posix()
            if path.is_symlink() or not self._is_part(key):
                continue
            if path.is_dir():
                yield from self._walk(path)
            elif stamp := _stamp(path):
                yield key, stamp

    def _is_part(self, key: str) -> bool:
        parts = key.split("/")
        is_name = not any(
            part in ("", ".", "..") or part.startswith((TEMPORARY, _OF_A_RUN)) for part in parts
        )
        return is_name and not any(f"{key}/".startswith(f"{folder}/") for folder in _OF_OTHERS)

    def _read_state(self) -> tuple[int, dict[str, list[object]]]:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            state = json.loads((self._folder / _STATE).read_bytes())
            return int(state["start"]), dict(state["files"])
        return 0, {}

    def _write_state(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._folder / _STATE, json.dumps({"start": self._pulled, "files": self._sent}))


def _stamp(path: Path) -> list[int]:
    """Return size and time of a regular file, by which a changed one is known; empty without one."""
    with contextlib.suppress(OSError):
        state = path.stat()
        return [state.st_size, state.st_mtime_ns]
    return []


def pulled_mirror(environment: Environment) -> Mirror | None:
    """Return the mirror of this replica's own folder, pulled; None if the folder itself is kept.

    Raises OSError as `Mirror.pull`, BucketError as `ObjectStore`.
    """
    if not environment.output_uri:
        return None
    mirror = _build(environment)
    mirror.pull()
    return mirror


def _build(environment: Environment) -> Mirror:
    return Mirror(environment.output_dir, ObjectStore(environment.output_uri), environment.attempt)


# Programs that the agent starts: it has the standard library alone.


def become(command: Sequence[str]) -> None:
    """Fetch the folder, and become a replica's command."""
    # What this process imports isn't the script's doing.
    env = {name: value for name, value in os.environ.items() if name != "TRAINJOB_PID"}
    task = Task.from_environment(os.environ)
    try:
        environment = Environment.from_environment(os.environ, task)
        Patience().write(lambda: pulled_mirror(environment), environment.output_dir)
    except TrainerError as error:
        leave(task, ProgressFile.from_environment(os.environ), error)
    execute(command, env)


def finish(words: Sequence[str]) -> None:
    """Send what a process has left that has exited with 0; if it is the writer's, training has finished.

    `words` are its generation, and the last step that it has reported, if any.
    """
    generation, *step = words
    task = Task.from_environment(os.environ)
    environment = Environment.from_environment(os.environ, task)
    try:
        mirror = _build(environment)
        if task.is_writer:
            files, reached = build_files(environment), int(step[0]) if step else None
            mark_finished(os.environ, generation, reached, files=files, first=mirror.push)
        else:
            mirror.push()
    except Fenced as error:
        print(FENCED)
        print(error, file=sys.stderr)
    except OSError as error:
        print(error.strerror or error, file=sys.stderr)
    else:
        print(SENT)
