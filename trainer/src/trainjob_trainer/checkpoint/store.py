"""The folder of checkpoints: saves whole ones, finds the newest, drops the oldest."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trainjob_trainer.checkpoint.fence import DAMAGED, Fence, Publisher
from trainjob_trainer.checkpoint.files import (
    NOT_THERE,
    TAKEN,
    WAITED_FOR,
    Files,
    Kind,
    Patience,
    explain_read_error,
)
from trainjob_trainer.checkpoint.snapshot import (
    PREFIX,
    HostGroups,
    VariableGroups,
    assign,
    read_bundle,
    read_manifest,
    write_bundle,
)
from trainjob_trainer.contract.files import FINAL
from trainjob_trainer.errors import CheckpointUnreadable, OutputUnwritable, StorageUnavailable

# Small files beside the checkpoints: whose they are, that the training has ended, that its job has finished.

ENDED = "ended.json"
"""Written by the trainer once the call that trains into this folder has returned: its result's checkpoint."""
TRAINING = "training.json"
"""Written by the trainer before the first checkpoint: which call of the script trains into this folder."""
LARGEST = 1 << 20
"""Maximum size of such a file in bytes."""


@dataclass(frozen=True)
class FinalMarker:
    """The content of `ended.json` and `final.json`.

    Attributes:
        step: step of the result's checkpoint: the last one, or the best; 0 for none.
        job_uid: the job that trained.
        ended_at: steps done in all; 0 stands for `step`.
        total_steps: steps asked for; 0 stands for `ended_at`. Asking for no more trains nothing.
        spec: digest of the job's spec; empty if it is unknown.
    """

    step: int
    job_uid: str
    ended_at: int = 0
    total_steps: int = 0
    spec: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ended_at", self.ended_at or self.step)
        object.__setattr__(self, "total_steps", self.total_steps or self.ended_at)

    @property
    def words(self) -> str:
        """`finished at step 400`."""
        return f"finished at step {self.ended_at}"

    def to_json(self, now: float) -> dict[str, Any]:
        """Return the file's content; `now` is in seconds since 1970."""
        return {
            "step": self.step,
            "endedAt": self.ended_at,
            "totalSteps": self.total_steps,
            "jobUid": self.job_uid,
            "time": now,
        }

    @classmethod
    def from_json(cls, facts: Any) -> FinalMarker:
        """Read the file's content, or raise ValueError."""
        try:
            return cls(
                int(facts["step"]),
                str(facts["jobUid"]),
                int(facts.get("endedAt", 0)),
                int(facts.get("totalSteps", 0)),
                str(facts.get("spec", "")),
            )
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            raise ValueError(f"it is no final marker: {error!r}") from error


MODEL = "model-"
"""Prefix of the folders of a script's further trainings, numbered from 2."""
_FOLDER = re.compile(r"step-(\d{8,})(?:\.([1-9]\d*))?")
_SET_ASIDE = re.compile(DAMAGED + r"step-(\d{8,})(?:\.[1-9]\d*)?(?:-[1-9]\d*)?")
_FURTHER = re.compile(MODEL + r"([2-9]|[1-9]\d+)")
_STATE = "checkpoint"

T = TypeVar("T")
Listing = dict[int, list[str]]
"""Names of folders by step, the last revision first; a step that is saved again gets a new revision."""


@dataclass(frozen=True)
class Checkpoint:
    """One whole checkpoint on disk.

    Attributes:
        step: optimizer steps done.
        epoch: whole epochs done.
        job_uid: the job that wrote it.
        written: seconds since 1970.
    """

    step: int
    epoch: int
    job_uid: str
    path: Path
    written: float

    @property
    def prefix(self) -> str:
        """The argument of `tf.train.load_checkpoint`."""
        return str(self.path / PREFIX)


class CheckpointStore:
    """Checkpoints below one folder, which need not exist yet. Only one replica may write; any may read.

    The newest `keep` (at least one), the final one and those that are spared stay. `fence` is the writer's
    claim to this folder or a parent; without it no other process may write. While the storage is full or
    away, every method waits. `files` are the operations on the folder.

    Raises:
        CheckpointUnavailable: what is there can't be read, and waiting would not help.
        OutputUnwritable: on writing: no permission, for example, or checkpoints of an unknown process.
        Fenced, OutputTaken: on writing: a newer start, or another job, writes here now.
    """

    def __init__(
        self,
        directory: Path | str,
        keep: int = 3,
        *,
        now: Callable[[], float] = time.time,
        files: Files | None = None,
        fence: Fence | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.directory = Path(directory)
        self.keep = keep
        self.patience = fence.patience if fence else Patience(sleep)
        self._now = now
        self.files = files or Files()
        self._publisher = Publisher(self.directory, self.files, fence)
        self._start: int | None = None
        self._own: set[int] = set()

    def save(
        self,
        step: int,
        epoch: int,
        groups: HostGroups,
        job_uid: str,
        spared: Collection[int] = (),
    ) -> Checkpoint:
        """Write a checkpoint, whole or not at all, then drop the oldest ones, except `spared`.

        An earlier checkpoint of the same step is dropped afterwards, so that there is always one.
        """
        target = self.directory / _name(step, 0)
        facts = {"step": step, "epoch": epoch, "jobUid": job_uid, "time": self._now()}

        def publish() -> Path:
            listed = self._listed()
            self._refuse_others(listed, step)
            is_first_attempt = step not in self._own
            self._own.add(step)  # a rename may succeed and still report a failure
            free = self._free_name(step, listed.get(step, []))
            try:
                self._publisher.publish(
                    free, lambda place: write_bundle(place, groups, facts, self.files), replaces=False
                )
            except OSError as error:
                if is_first_attempt and error.errno in TAKEN:
                    self._own.discard(step)
                raise
            return free

        target = self._change(target, publish)
        self.patience.was_writable = True
        self._change(target, lambda: self._drop_old(step, target.name, spared))
        return Checkpoint(step, epoch, job_uid, target, float(str(facts["time"])))

    def publish(self, target: Path, fill: Callable[[Path], None]) -> None:
        """Have `fill` write another folder of the output, whole or not at all; it replaces the old one."""
        publisher = self._publisher
        if not self.files.keeps_all:
            publisher = Publisher(target.parent, Files(), None)

        def publish() -> None:
            self._publisher.check()
            publisher.publish(target, fill)

        self._change(target, publish)

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints in place, oldest first, including damaged ones."""
        return sorted(self._listed())

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint that can be read whole; damaged ones are skipped with a warning."""
        found = self.read_latest()
        return found[0] if found else None

    def read_latest(self) -> tuple[Checkpoint, HostGroups] | None:
        """Return what `latest` returns, and everything that it holds."""
        seen: Listing | None = None
        while True:
            listed = self._listed()
            for step in sorted(listed, reverse=True):
                try:
                    return self._newest_whole(step, listed[step])
                except CheckpointUnreadable as error:
                    if self._is_any_there(listed[step]):
                        warnings.warn(f"damaged checkpoint skipped: {error}", RuntimeWarning, stacklevel=2)
                    elif listed != seen:
                        break  # dropped or saved again meanwhile: a new listing shows what replaced it
            else:
                return None
            seen = listed

    def checked(self, step: int) -> Checkpoint:
        """Return a step's checkpoint after reading all of it; CheckpointUnreadable if absent or damaged."""
        return self._newest_whole(step, self._names_of(step))[0]

    def at(self, step: int) -> Checkpoint:
        """Return a step's checkpoint by its manifest alone; CheckpointUnreadable if absent or damaged."""
        return self._first(step, self._names_of(step), self._by_manifest)

    def known_steps(self) -> set[int]:
        """Return the steps of all that is in place or set aside, including a script's further models."""
        names = self._names(self.directory)
        for number in self.further_trainings():
            names += self._names(self.directory / f"{MODEL}{number}")
        found = (_FOLDER.fullmatch(name) or _SET_ASIDE.fullmatch(name) for name in names)
        return {int(match[1]) for match in found if match}

    def further_trainings(self) -> list[int]:
        """Return the numbers of the script's further trainings, whose folders lie in this one."""

        def is_folder(name: str) -> bool:
            return self._read(self.directory, lambda: self.files.kind(self.directory / name)) == "folder"

        matches = [match for match in map(_FURTHER.fullmatch, self._names(self.directory)) if match]
        return sorted(int(match[1]) for match in matches if is_folder(match[0]))

    def load(self, checkpoint: Checkpoint, groups: VariableGroups) -> None:
        """Assign a checkpoint's values to variables, on every local device.

        Raises CheckpointUnreadable if it is damaged or gone, and CheckpointMismatch, before it assigns any,
        if it belongs to another model.
        """
        assign(groups, self.read(checkpoint))

    def read(self, checkpoint: Checkpoint) -> HostGroups:
        """Return everything that a checkpoint holds; CheckpointUnreadable if it is damaged or gone."""
        return self._read(checkpoint.path, lambda: read_bundle(checkpoint.path, self.files))

    def mark_ended(self, marker: FinalMarker) -> None:
        """Record that the training has ended; the checkpoint that is its result must be in place."""
        self.write_facts(ENDED, marker.to_json(self._now()))

    def mark_final(self, marker: FinalMarker) -> None:
        """Record that the job has finished, where no other process sees this one's exit code."""
        self.write_facts(FINAL, marker.to_json(self._now()))

    def ended(self) -> FinalMarker | None:
        """Return the marker of a training that has ended; raises as `final`."""
        return self.read_facts(ENDED, FinalMarker.from_json)

    def final(self) -> FinalMarker | None:
        """Return the marker of a job that has finished.

        Raises CheckpointUnreadable if it is damaged: training neither continues nor counts as finished.
        """
        return self.read_facts(FINAL, FinalMarker.from_json)

    def clear_final(self) -> None:
        """Remove both markers: training continues."""

        def clear() -> None:
            for path in (self.directory / FINAL, self.directory / ENDED):
                if self.files.kind(path) is not None:
                    self._publisher.discard(path)

        self._change(self.directory, clear)

    def write_facts(self, name: str, facts: Mapping[str, Any]) -> None:
        """Write a small JSON file into this folder, whole or not at all."""
        path, text = self.directory / name, json.dumps(facts)
        self._change(path, lambda: self._publisher.replace(path, text))

    def read_facts(self, name: str, parse: Callable[[Any], T]) -> T | None:
        """Return what `parse` makes of a small JSON file of this folder, None without one.

        Raises CheckpointUnreadable if the file is damaged, or if `parse` raises ValueError or TypeError.
        """
        path = self.directory / name
        try:
            return parse(json.loads(self._read(path, lambda: self.files.read(path, LARGEST))))
        except NOT_THERE:
            return None
        except (ValueError, TypeError, RecursionError) as error:
            raise CheckpointUnreadable(
                f"{path} is damaged ({error}): it records what was trained here, and whether that has "
                "finished. Check the checkpoints beside it; if you delete it, training continues from the "
                "newest one"
            ) from error

    def prepare(self) -> None:
        """Claim the folder before the first write, prove that it is writable, remove what a crash left."""
        self._change(self.directory, self._publisher.prepare)

    def check_claim(self) -> None:
        """Check that this process may still write here, unless that can't be known now: it never waits."""
        with contextlib.suppress(OSError, *WAITED_FOR):
            self._publisher.check()

    def set_aside(self, beyond: int, *, whole: bool = False) -> list[int]:
        """Rename the damaged checkpoints after the step that training resumes from; return their steps.

        They are kept until there are enough newer ones, in case the disk can be repaired. With `whole`, those
        that can be read are renamed too: they belong to calls that the script no longer makes. Without it,
        raises StorageUnavailable if one can be read, and so was not there when this step was chosen.
        """
        self._start = beyond
        listed = self._listed()
        later = [step for step in sorted(listed) if step > beyond]
        damaged = [step for step in later if whole or self._is_damaged(step, listed[step])]

        def rename() -> None:
            there = self._listed()
            for name in [name for step in damaged for name in there.get(step, [])]:
                self._rename_damaged(name)
            if damaged and (left := self._listed()):
                self._write_state(left)

        self._change(self.directory, rename)
        return damaged

    def _is_damaged(self, step: int, names: Sequence[str]) -> bool:
        """Return whether it exists and is damaged; raises StorageUnavailable if it is whole."""
        try:
            late, _ = self._newest_whole(step, names)
        except CheckpointUnreadable:
            return self._is_any_there(names)
        self._publisher.check()
        raise StorageUnavailable(
            f"{late.path} didn't exist when training chose the step to continue from: another process writes "
            "here, or the file system shows changes late. Nothing has been changed; the next start uses it"
        )

    def _rename_damaged(self, name: str) -> None:
        aside = DAMAGED + name
        for number in itertools.count(2):
            if self.files.kind(self.directory / aside) is None:
                break
            aside = f"{DAMAGED}{name}-{number}"
        place = self._publisher.place(aside)
        self.files.remove(place)
        self._publisher.move(self.directory / name, place)
        self._publisher.move(place, self.directory / aside)

    def _refuse_others(self, listed: Listing, step: int) -> None:
        """Refuse checkpoints after the start that this process has not written."""
        start = step if self._start is None else self._start
        others = ", ".join(str(one) for one in sorted(listed) if one > start and one not in self._own)
        if others:
            self._publisher.check()
            raise OutputUnwritable(
                f"{self.directory} holds checkpoints that this process has not written (of step {others}; it "
                f"has trained from step {start} to {step}): another process writes there, so this one stops "
                "writing. Two jobs that run at the same time need different names or output folders"
            )

    def _drop_old(self, newest: int, name: str, spared: Collection[int]) -> None:
        names = self._names(self.directory)
        listed = _by_step(names)
        replaced = [other for other in listed.get(newest, []) if other != name]
        listed[newest] = [name]  # a listing may show it late
        self._refuse_others(listed, newest)
        final = self.final()
        spared = {*spared, *([final.step] if final is not None else [])}
        dropped = dropped_steps(listed, newest, self.keep, spared)
        doomed = [old for step in dropped for old in listed.pop(step)] + replaced
        self._write_state(listed)
        for old in doomed:
            self._publisher.discard(self.directory / old)
        for each in names:
            match = _SET_ASIDE.fullmatch(each)
            if match and self._are_enough(step for step in listed if step > int(match[1])):
                self._publisher.discard(self.directory / each)

    def _are_enough(self, steps: Iterable[int]) -> bool:
        """Return whether `keep` of them are whole, by their manifests."""
        whole = 0
        for step in steps:
            with contextlib.suppress(CheckpointUnreadable):
                self.at(step)
                whole += 1
        return whole >= max(1, self.keep)

    def _write_state(self, listed: Listing) -> None:
        """Write TensorFlow's own index of the folder, for `tf.train.latest_checkpoint`."""
        prefixes = [f"{listed[step][0]}/{PREFIX}" for step in sorted(listed)]
        lines = [f'model_checkpoint_path: "{prefixes[-1]}"']
        lines += [f'all_model_checkpoint_paths: "{prefix}"' for prefix in prefixes]
        self._publisher.replace(self.directory / _STATE, "\n".join(lines) + "\n")

    def _listed(self) -> Listing:
        return _by_step(self._names(self.directory))

    def _names_of(self, step: int) -> list[str]:
        """Return possible names of a step's folders; a machine may find one by name before it lists it."""
        listed = self._listed().get(step, [])
        return listed + [name for name in (_name(step, 1), _name(step, 0)) if name not in listed]

    def _free_name(self, step: int, names: Sequence[str]) -> Path:
        for revision in itertools.count(1 + _revision(names[0]) if names else 0):
            folder = self.directory / _name(step, revision)
            if not self._is_any_there([folder.name]):
                return folder
        raise AssertionError

    def _newest_whole(self, step: int, names: Sequence[str]) -> tuple[Checkpoint, HostGroups]:
        return self._first(step, names, self._whole)

    def _first(self, step: int, names: Sequence[str], read: Callable[[int, Path], T]) -> T:
        for name in names[:-1]:
            with contextlib.suppress(CheckpointUnreadable):
                return read(step, self.directory / name)
        return read(step, self.directory / names[-1])

    def _whole(self, step: int, folder: Path) -> tuple[Checkpoint, HostGroups]:
        checkpoint = self._by_manifest(step, folder)
        return checkpoint, self.read(checkpoint)

    def _by_manifest(self, step: int, folder: Path) -> Checkpoint:
        manifest = self._read(folder, lambda: read_manifest(folder, self.files))
        if manifest["step"] != step:
            raise CheckpointUnreadable(f"{folder}: its manifest is that of step {manifest['step']}")
        return Checkpoint(step, manifest["epoch"], manifest["jobUid"], folder, manifest["time"])

    def _is_any_there(self, names: Iterable[str]) -> bool:
        def kind(folder: Path) -> Kind | None:
            return self._read(folder, lambda: self.files.kind(folder))

        return any(kind(self.directory / name) is not None for name in names)

    def _names(self, folder: Path) -> list[str]:
        return self._read(folder, lambda: self.files.names(folder))

    def _change(self, path: Path, change: Callable[[], T]) -> T:
        """Make a change that is safe to repeat."""

        def explain(error: Exception) -> Exception:
            return self._publisher.explained(error, path, was_writable=self.patience.was_writable)

        return self.patience(change, explain)

    def _read(self, path: Path, read: Callable[[], T]) -> T:
        return self.patience(read, lambda error: explain_read_error(error, path), NOT_THERE)


def dropped_steps(steps: Iterable[int], newest: int, keep: int, spared: Collection[int]) -> list[int]:
    """Return the steps to drop once `newest` is saved: the oldest, and the process's own after `newest`.

    `keep` (at least one) and those in `spared` stay; none of `steps` belongs to another process.
    """
    ordered = sorted(steps)
    older = [step for step in ordered if step < newest]
    surplus = older[: max(0, len(older) + 1 - max(1, keep))]
    beyond = [step for step in ordered if step > newest]
    return [step for step in surplus + beyond if step not in spared]


def _by_step(names: Iterable[str]) -> Listing:
    found: Listing = {}
    for name in names:
        if match := _FOLDER.fullmatch(name):
            found.setdefault(int(match[1]), []).append(name)
    return {step: sorted(revisions, key=_revision, reverse=True) for step, revisions in found.items()}


def _revision(name: str) -> int:
    return int(name.partition(".")[2] or 0)


def _name(step: int, revision: int) -> str:
    return f"step-{step:08d}" + (f".{revision}" if revision else "")
