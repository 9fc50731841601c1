"""Files that Keras writes: the job's are the writer's, and every replica reads back what it has saved.

Replicas other than the writer save a private copy: some variables are read by all workers together. Then such
a replica looks what the writer has saved at the same line of the script. If that is at the same path, as on a
shared volume, it waits until the writer's file is whole, and its own copy goes. Where the path is its own, by
name or because the disk is another one, its copy goes there. So a file is where the script has saved it when
the call returns, for any reader, and no two replicas write one file.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import functools
import hashlib
import inspect
import json
import os
import shutil
import tempfile
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from trainjob_trainer.edge import private_name
from trainjob_trainer.errors import Fenced
from trainjob_trainer.keras.callback_state import keras_kinds
from trainjob_trainer.reporting.progress import announce
from trainjob_trainer.session import Session, current_session

WAIT_SECONDS = 10.0
"""How long the writer may be behind at a line that it hasn't come to before; it may never come there."""

_LOOK_SECONDS = 0.001, 0.05
_REMOTE = "://"
_PACKAGE = str(Path(__file__).parent.parent)


def redirect_saving(module: ModuleType) -> None:
    """Wrap what saves a model or its weights to a path.

    That is `Model.export` of `keras.src.models.model`, and two functions of `keras.src.saving.saving_api`.
    """
    owner = getattr(module, "Model", module)
    for name in ("save_model", "save_weights") if owner is module else ("export",):
        original = getattr(owner, name)

        def redirected(
            model: Any, filepath: Any, *args: Any, _original: Any = original, **kwargs: Any
        ) -> Any:
            if not isinstance(filepath, (str, Path)):  # an open file is left to the script
                return _original(model, filepath, *args, **kwargs)
            with written(str(filepath)) as path:
                return _original(model, path, *args, **kwargs)

        setattr(owner, name, functools.wraps(original)(redirected))


@contextlib.contextmanager
def written(path: str) -> Iterator[str]:
    """Let the block write a file or folder; yields where.

    Raises as `Session.claim_output` before that, and OSError if a copy can't be written.
    """
    session = current_session()
    if session.is_writer:
        session.claim_output()
        _say_if_it_goes(session, _whole(path))
        with _saves(session).noted(path):
            yield path
    elif private_name() in path:
        yield path
    else:
        with (
            tempfile.TemporaryDirectory(prefix=private_name(), ignore_cleanup_errors=True) as folder,
            _saves(session).settled(path, Path(folder)),
        ):
            yield str(Path(folder, Path(_whole(path)).name))


_said: list[str] = []


def _say_if_it_goes(session: Session, path: str, root: str = "/") -> None:
    """Say once that a path is the pod's own: on its container's disk, or beside the job's code."""
    if _said or _REMOTE in path or "KUBERNETES_SERVICE_HOST" not in os.environ:
        return
    output, code = session.environment.output_dir, Path(os.environ.get("TRAINJOB_STATE_DIR", "")).parent
    if path.startswith((str(output), tempfile.gettempdir())):
        return
    with contextlib.suppress(OSError):
        folder = next(one for one in Path(path).parents if one.exists())
        if folder.stat().st_dev == Path(root).stat().st_dev or code in folder.parents:
            _said.append(path)
            announce(
                f"{path} is in the pod and is deleted with it: save what has to stay in $TRAINJOB_OUTPUT_DIR "
                f"({output})"
            )


def _private_folder(owner: Any) -> Path:
    """Return a new folder, which ends with `owner`. After a kill an agent removes it, by its name."""
    folder = Path(tempfile.mkdtemp(prefix=private_name()))
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return folder


def isolate(callbacks: Iterable[Any]) -> None:
    """Have what Keras's own callbacks write by themselves written as `written` does it, on each replica."""
    is_writer = current_session().is_writer
    for callback in callbacks:
        kinds = keras_kinds(callback)
        if not kinds or hasattr(callback, "_trainjob_isolated"):
            continue
        callback._trainjob_isolated = True
        # These keep files open.
        if "CSVLogger" in kinds:
            _share(callback, "filename", "on_epoch_end")
        if "TensorBoard" in kinds:
            _share(callback, "log_dir", "on_train_end")
        if "ModelCheckpoint" in kinds:
            _make_folder_once(callback)
        if "BackupAndRestore" in kinds:
            _share_backup(callback)
        if not is_writer and "OrbaxCheckpoint" in kinds:
            callback.checkpointer = _NoCheckpointer()


def _share(callback: Any, attribute: str, method: str) -> None:
    """Share the file or folder that an attribute names, and that is whole at the end of a method."""
    path, original = str(getattr(callback, attribute)), getattr(callback, method)
    session = current_session()
    if not session.is_writer:
        private = _private_folder(callback) / Path(_whole(path)).name
        if Path(path).is_file():  # a resumed script appends to it
            shutil.copyfile(path, private)
        setattr(callback, attribute, str(private))

    @functools.wraps(original)
    def shared(*args: Any, **kwargs: Any) -> None:
        saves = _saves(session)
        with saves.noted(path) if session.is_writer else saves.settled(path, private.parent):
            original(*args, **kwargs)

    setattr(callback, method, shared)


def _share_backup(callback: Any) -> None:
    """Have the files of a backup written as `written` does it, and removed by whose they are."""
    session, path, original = current_session(), callback._weights_path, type(callback)
    saves, saved = _saves(session), str(callback.backup_dir)
    folder = None if session.is_writer else _private_folder(callback)

    def save() -> None:
        own = copy.copy(callback)
        for name, value in vars(callback).items() if folder else ():
            if isinstance(value, str) and value.startswith(saved):
                setattr(own, name, value.replace(saved, str(folder), 1))
        with saves.settled(path, folder) if folder else saves.noted(path):
            original._save_model(own if folder else callback)

    def on_train_end(logs: Any = None) -> None:
        if folder is not None and _whole(path) not in saves.own:
            return
        try:
            original.on_train_end(callback, logs)
        except OSError as error:
            # The writer may remove it before another has seen that it is the writer's: then both do.
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise

    callback._save_model, callback.on_train_end = save, on_train_end


def _make_folder_once(callback: Any) -> None:
    """Make the folder of each file: Keras's own way fails if another replica makes it at that moment."""
    original = callback._get_file_path

    @functools.wraps(original)
    def _get_file_path(*args: Any, **kwargs: Any) -> Any:
        path = original(*args, **kwargs)
        if _REMOTE not in str(path):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        return path

    callback._get_file_path = _get_file_path


class _NoCheckpointer:
    """Takes all calls of Orbax's checkpointer and of its futures, and writes nothing.

    Orbax makes the folder with the callback, so the path can't be redirected.
    """

    def __getattr__(self, name: str) -> Callable[..., _NoCheckpointer]:
        return lambda *_, **__: self


# What the writer has saved.


def _saves(session: Session) -> Saves:
    environment, others = session.environment, len(session.task.trainees) > 1
    others = others and not environment.output_uri  # else each pod has a folder of its own
    file = environment.checkpoint_dir / f".saves-{environment.attempt}.jsonl" if others else None
    return _saves_in(file, is_evaluator=session.task.is_evaluator)


def forget_saves(session: Session) -> None:
    """Remove what earlier starts have noted; the writer calls it before the others can come to a save."""
    if session.is_writer:
        with contextlib.suppress(OSError):
            for file in session.environment.checkpoint_dir.glob(".saves-*"):
                file.unlink()


class Saves:
    """What the writer saves, in a file for all replicas: line of the script, how often there, path, stamp.

    Without `file` there are no others here. A line is known by all lines that lead to it; its n-th save is
    the n-th one on each replica. `own` are the paths at which this replica has a file of its own.
    """

    def __init__(self, file: Path | None, *, is_evaluator: bool = False) -> None:
        self._file = file
        self._is_evaluator = is_evaluator
        self._counts: Counter[str] = Counter()
        self._seen: dict[tuple[str, int], dict[str, Any]] = {}
        self._read_to = 0
        self._silent: set[str] = set()
        self.own: set[str] = set()

    @contextlib.contextmanager
    def noted(self, path: str) -> Iterator[None]:
        """Note a save of the writer before the block and after it."""
        line, count = self._next()
        save = {"line": line, "count": count, "path": _whole(path)}
        self._note(save)
        try:
            yield
        finally:
            self._note({**save, "stamp": _stamp(path)})

    @contextlib.contextmanager
    def settled(self, path: str, folder: Path) -> Iterator[None]:
        """After the block have the writer's file at `path`, or if that is another place what `folder` holds.

        Raises Fenced if a newer start has forgotten what the writer of this one has noted.
        """
        line, count = self._next()
        yield
        if self._is_writers(_whole(path), line, count):
            return
        if self._read_to and self._file is not None and not self._file.exists():
            raise Fenced(f"{path} is not written: a newer start of this job has taken over")
        self.own.add(_whole(path))
        Path(_whole(path)).parent.mkdir(parents=True, exist_ok=True)
        for one in folder.iterdir():
            target = Path(_whole(path)).with_name(one.name)
            if one.is_dir():
                shutil.copytree(one, target, dirs_exist_ok=True)
            else:
                new = target.with_name(f".{target.name}.{os.getpid()}")
                shutil.copyfile(one, new)
                new.replace(target)

    def _is_writers(self, path: str, line: str, count: int) -> bool:
        if self._is_evaluator:  # it is at other lines, and leaves what is there
            return _REMOTE in path or (Path(path).exists() and path not in self.own)
        if self._file is None:
            return _REMOTE in path
        until = time.monotonic() + (0 if line in self._silent else WAIT_SECONDS)
        pause, longest = _LOOK_SECONDS
        while True:
            self._read()
            theirs = self._seen.get((line, count))
            if theirs is not None and (theirs["path"] != path or "stamp" in theirs):
                del self._seen[line, count]
                return _REMOTE in path or (theirs["path"] == path and theirs["stamp"] == _stamp(path))
            if theirs is None and time.monotonic() >= until:
                if line not in self._silent:
                    announce(f"{path} is this replica's own: worker 0 has saved nothing at the same line")
                self._silent.add(line)
                return _REMOTE in path
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def _next(self) -> tuple[str, int]:
        frames = (
            (frame.f_code.co_filename, number)
            for frame, number in traceback.walk_stack(inspect.currentframe())
        )
        lines = [str(frame) for frame in frames if not frame[0].startswith((_PACKAGE, contextlib.__file__))]
        line = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
        self._counts[line] += 1
        return line, self._counts[line]

    def _note(self, save: dict[str, Any]) -> None:
        if self._file is None:
            return
        with contextlib.suppress(OSError):  # others wait for a while, and keep their own
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(save) + "\n")

    def _read(self) -> None:
        if self._file is None:
            return
        with contextlib.suppress(OSError), self._file.open("rb") as file:
            file.seek(self._read_to)
            whole, end, _ = file.read().rpartition(b"\n")
            self._read_to += len(whole) + len(end)
            for save in map(json.loads, whole.splitlines()):
                self._seen[save["line"], save["count"]] = save


_saves_in = functools.cache(Saves)


def _whole(path: str) -> str:
    return path if _REMOTE in path else os.path.abspath(path)  # noqa: PTH100 - links stay


def _stamp(path: str) -> list[int] | None:
    """Return size and time of the last change, by which a file is the same one; None without a file."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)  # has a network file system ask the server
        try:
            state = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        return [state.st_size, state.st_mtime_ns]
    return None
