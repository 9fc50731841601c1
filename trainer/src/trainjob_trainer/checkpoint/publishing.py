"""Changes of what readers of a folder see: whole or not at all, and only while the writer's claim stands."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from trainjob_trainer.atomic_file import TEMPORARY
from trainjob_trainer.checkpoint.fence import DAMAGED, Fence
from trainjob_trainer.checkpoint.files import Files, explain_write_error, gone, patiently
from trainjob_trainer.errors import TrainerError


class Publisher:
    """One folder's writer; what is not published yet lies in the claim, or beside under another name."""

    def __init__(
        self, directory: Path, files: Files, fence: Fence | None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._sleep = sleep
        self._directory = directory
        self._files = files
        self._fence = fence
        self._is_made = False

    def prepare(self) -> None:
        """Claim the folder and make it, prove that it can be written, sweep what a crash left.

        It is made once: on a volume that is unmounted later nothing is begun anew below the mount point.
        Raises OSError or TrainerError if it can't be written, or is somebody else's.
        """
        if self._fence is not None:
            self._fence.claim()
        self._make_once()
        self.check()
        for name in patiently(lambda: self._files.names(self._directory), self._sleep):
            if name.startswith(TEMPORARY + DAMAGED):
                self.move(self._directory / name, self._directory / name.removeprefix(TEMPORARY))
            elif name.startswith(TEMPORARY):
                self._files.remove(self._directory / name)
        probe = self.place("probe")
        self._files.write(probe, b"")
        self._files.remove(probe)

    def check(self) -> None:
        """Raise OSError or TrainerError unless the claim, or without a fence the folder, is sure to stand."""
        if self._fence is not None:
            self._fence.check()
        elif self._is_made and not self._is_there(self._directory):
            raise gone(self._directory)

    def place(self, name: str) -> Path:
        """Where something is before it is published, and after it has been dropped."""
        if self._fence is None:
            return self._directory / (TEMPORARY + name)
        return self._fence.folder / f"{self._directory.name}-{name}"

    def new_folder(self, name: str) -> Path:
        """Make an empty folder to be filled and published."""
        place = self.place(name)
        if self._fence is None:
            self._make_once()
        self._files.remove(place)
        self._files.create_folder(place)  # not its parent: that one is there, or something has gone wrong
        return place

    def move(self, source: Path, target: Path) -> None:
        """Rename, one of the two being a `place`: every change that readers see is one of these."""
        self.check()
        self._files.rename(source, target)

    def publish(self, target: Path, fill: Callable[[Path], None], *, replaces: bool = True) -> None:
        """Have `fill` write into a new folder, and put it in its place: `target`, on the same volume.

        Raises OSError if it can't be written, or something is there and it is not to be replaced.
        """
        place = self.new_folder(target.name)
        try:
            fill(place)
            if replaces and self._is_there(target):
                self.discard(target)
            self.move(place, target)
            self._files.sync(target.parent)
        except Exception:
            with contextlib.suppress(OSError):  # it is swept at the next start
                self._files.remove(place)
            raise

    def replace(self, path: Path, text: str) -> None:
        """Write a small file so that a reader sees the old or the new one, never a part."""
        place = self.place(path.name)
        self._files.write(place, text.encode())
        self.move(place, path)
        self._files.sync(path.parent)

    def discard(self, path: Path) -> None:
        """Move first: a half-removed checkpoint must not be taken for one."""
        doomed = self.place("old-" + path.name)
        self._files.remove(doomed)
        self.move(path, doomed)
        with contextlib.suppress(OSError):  # no reader sees it, and the next start sweeps what is left
            self._files.remove(doomed)

    def _is_there(self, path: Path) -> bool:
        return patiently(lambda: self._files.kind(path), self._sleep) is not None

    def _make_once(self) -> None:
        if not self._is_made:
            self._files.make_folder(self._directory)
            self._is_made = True

    def explained(self, error: Exception, path: Path) -> Exception:
        """What a failure means: a path that leads nowhere may begin with a claim or a volume that is gone."""
        if isinstance(error, TrainerError):
            return error
        try:
            with contextlib.suppress(OSError):
                self.check()
        except TrainerError as lost:
            return lost
        return explain_write_error(error, path) or error
