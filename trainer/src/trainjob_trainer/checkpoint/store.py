"""The folder of checkpoints: what is in it is whole, the newest is found, the oldest go."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from trainjob_trainer.checkpoint.bundle import PREFIX, read_bundle, read_manifest, write_bundle
from trainjob_trainer.checkpoint.fence import Fence
from trainjob_trainer.checkpoint.files import Files
from trainjob_trainer.checkpoint.final import FILE as FINAL
from trainjob_trainer.checkpoint.final import LARGEST, FinalMarker
from trainjob_trainer.checkpoint.publishing import Publisher
from trainjob_trainer.checkpoint.snapshot import HostGroups, VariableGroups, assign
from trainjob_trainer.errors import CheckpointUnreadable

_FOLDER = re.compile(r"step-(\d{8,})")
_DAMAGED = "damaged-"
_STATE = "checkpoint"


@dataclass(frozen=True)
class Checkpoint:
    """One whole checkpoint on disk.

    Attributes:
        step: optimizer steps done.
        epoch: whole epochs done.
        job_uid: the job that wrote it.
        path: its folder.
        written: seconds since 1970.
    """

    step: int
    epoch: int
    job_uid: str
    path: Path
    written: float

    @property
    def prefix(self) -> str:
        """What `tf.train.load_checkpoint` wants."""
        return str(self.path / PREFIX)


class CheckpointStore:
    """Checkpoints below one folder. Only one replica may write; any may read.

    Attributes:
        directory: the folder.
        keep: how many of the newest stay, at least one.
    """

    def __init__(
        self,
        directory: Path | str,
        keep: int = 3,
        *,
        now: Callable[[], float] = time.time,
        files: Files | None = None,
        fence: Fence | None = None,
    ) -> None:
        """Look at a folder, which need not exist yet.

        Args:
            directory: the folder.
            keep: how many of the newest stay; the final one and those that are spared stay as well.
            now: seconds since 1970, for tests.
            files: the file operations, for tests.
            fence: the writer's claim to this folder or one above it; without it nobody else may write.
        """
        self.directory = Path(directory)
        self.keep = keep
        self._now = now
        self._files = files or Files()
        self._publisher = Publisher(self.directory, self._files, fence)

    def save(
        self,
        step: int,
        epoch: int,
        groups: HostGroups,
        job_uid: str,
        spared: Collection[int] = (),
    ) -> Checkpoint:
        """Write a checkpoint, so that it appears whole or not at all, then drop the oldest.

        Args:
            step: optimizer steps done.
            epoch: whole epochs done.
            groups: `snapshot.read(variables)`.
            job_uid: the writing job's UID.
            spared: steps of checkpoints that are not dropped.

        Raises:
            OutputFull: no space; OutputUnwritable: no permission, a read-only or vanished volume.
            Fenced, OutputTaken: somebody else writes here now.
        """
        target = self._folder(step)
        facts = {"step": step, "epoch": epoch, "jobUid": job_uid, "time": self._now()}
        try:
            # What may be there is an older attempt's, perhaps damaged.
            self._publisher.publish(target, lambda place: write_bundle(place, groups, facts, self._files))
            self._prune(newest=step, spared=spared)
            self._write_state()
        except Exception as error:
            raise self._publisher.explained(error, target) from error
        return Checkpoint(step, epoch, job_uid, target, float(str(facts["time"])))

    def publish(self, target: Path, fill: Callable[[Path], None]) -> None:
        """Put another folder on this volume: whole or not at all, in its predecessor's place.

        Args:
            target: where.
            fill: writes into the folder that it is given.

        Raises:
            OutputFull, OutputUnwritable, Fenced, OutputTaken: as `save`; what else `fill` raises.
        """
        try:
            self._publisher.publish(target, fill)
        except Exception as error:
            raise self._publisher.explained(error, target) from error

    def steps(self) -> list[int]:
        """The steps of all checkpoints in place, oldest first, damaged ones included."""
        try:
            names = [_FOLDER.fullmatch(name) for name in self._files.names(self.directory)]
        except OSError:
            return []
        return sorted(int(match[1]) for match in names if match)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that can be read whole; damaged ones are passed over with a warning."""
        for step in reversed(self.steps()):
            try:
                return self.checked(step)
            except CheckpointUnreadable as error:
                if (
                    self._files.kind(self._folder(step)) is not None
                ):  # else it was dropped meanwhile, as the oldest
                    warnings.warn(f"damaged checkpoint passed over: {error}", RuntimeWarning, stacklevel=2)
        return None

    def checked(self, step: int) -> Checkpoint:
        """The checkpoint of that step, after reading all of it.

        Raises:
            CheckpointUnreadable: it is absent or damaged.
        """
        checkpoint = self.at(step)
        read_bundle(checkpoint.path, self._files)
        return checkpoint

    def at(self, step: int) -> Checkpoint:
        """The checkpoint of that step by its manifest alone.

        Raises:
            CheckpointUnreadable: it is absent, or its manifest damaged.
        """
        folder = self._folder(step)
        manifest = read_manifest(folder, self._files)
        if manifest["step"] != step:
            raise CheckpointUnreadable(f"{folder}: its manifest is that of step {manifest['step']}")
        return Checkpoint(step, manifest["epoch"], manifest["jobUid"], folder, manifest["time"])

    def load(self, checkpoint: Checkpoint, groups: VariableGroups) -> None:
        """Assign a checkpoint's values to variables, in every local replica.

        Raises:
            CheckpointUnreadable: it is damaged or gone.
            CheckpointMismatch: it is another model's; nothing has been assigned then.
        """
        assign(groups, self.read(checkpoint))

    def read(self, checkpoint: Checkpoint) -> HostGroups:
        """Everything that a checkpoint holds.

        Raises:
            CheckpointUnreadable: it is damaged or gone.
        """
        return read_bundle(checkpoint.path, self._files)

    def mark_final(self, marker: FinalMarker) -> None:
        """Say that training is finished; the checkpoint that is its result is in place.

        Raises:
            OutputFull, OutputUnwritable, Fenced, OutputTaken: as `save`.
        """
        path = self.directory / FINAL
        try:
            self._publisher.replace(path, marker.to_json(self._now()))
        except Exception as error:
            raise self._publisher.explained(error, path) from error

    def final(self) -> FinalMarker | None:
        """The final marker, if training is finished."""
        try:
            return FinalMarker.from_json(self._files.read(self.directory / FINAL, LARGEST).decode())
        except (OSError, ValueError):
            return None

    def clear_final(self) -> None:
        """Take the marker away: training goes on.

        Raises:
            OutputUnwritable, Fenced, OutputTaken: as `save`.
        """
        path = self.directory / FINAL
        try:
            if self._files.kind(path) is not None:
                self._publisher.discard(path)
        except Exception as error:
            raise self._publisher.explained(error, path) from error

    def prepare(self) -> None:
        """Before the first write: claim the folder, prove that it can be written, sweep what a crash left.

        Raises:
            OutputUnwritable, OutputFull, Fenced, OutputTaken: as `save`.
        """
        try:
            self._publisher.prepare()
        except Exception as error:
            raise self._publisher.explained(error, self.directory) from error

    def check_claim(self) -> None:
        """Make sure that this is still the process that writes here, if there is a fence.

        Raises:
            OutputUnwritable, Fenced, OutputTaken: as `save`.
        """
        try:
            self._publisher.check()
        except OSError as error:
            raise self._publisher.explained(error, self.directory) from error

    def set_aside(self, beyond: int) -> list[int]:
        """Rename the checkpoints after a step, which are damaged; the next one that is saved removes them.

        They are not deleted at once, since a disk that can't be read now may be readable later.

        Returns:
            Their steps.

        Raises:
            OutputUnwritable, Fenced, OutputTaken: as `save`.
        """
        damaged = [step for step in self.steps() if step > beyond]
        try:
            for step in damaged:
                self._rename_damaged(self._folder(step))
            if damaged and self.steps():
                self._write_state()
        except Exception as error:
            raise self._publisher.explained(error, self.directory) from error
        return damaged

    def _rename_damaged(self, folder: Path) -> None:
        place, aside = self._publisher.place(folder.name), folder.with_name(_DAMAGED + folder.name)
        self._files.remove(place)
        self._publisher.move(folder, place)
        if self._files.kind(aside) is not None:
            self._publisher.discard(aside)
        self._publisher.move(place, aside)

    def _folder(self, step: int) -> Path:
        return self.directory / f"step-{step:08d}"

    def _prune(self, newest: int, spared: Collection[int]) -> None:
        """Drop the oldest, and whatever lies beyond the newest: damaged, or else it had been resumed from."""
        steps, final = self.steps(), self.final()
        older = [step for step in steps if step < newest]
        beyond = [step for step in steps if step > newest]
        surplus = older[: max(0, len(older) + 1 - max(1, self.keep))]
        dropped = [step for step in surplus if step not in spared] + beyond
        for step in dropped:
            if final is None or step != final.step:
                self._publisher.discard(self._folder(step))
        for name in self._files.names(self.directory):
            if name.startswith(_DAMAGED):
                self._publisher.discard(self.directory / name)

    def _write_state(self) -> None:
        """TensorFlow's own index of the folder, for `tf.train.latest_checkpoint`."""
        prefixes = [f"{self._folder(step).name}/{PREFIX}" for step in self.steps()]
        lines = [f'model_checkpoint_path: "{prefixes[-1]}"']
        lines += [f'all_model_checkpoint_paths: "{prefix}"' for prefix in prefixes]
        self._publisher.replace(self.directory / _STATE, "\n".join(lines) + "\n")
