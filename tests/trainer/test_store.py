from __future__ import annotations

import errno
import itertools
import json
import os
import re
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from support.trainer import alone
from support.trainer.disk import STALE, FaultyFiles, StillWaiting, impatient, system_error
from trainjob_trainer import CheckpointMismatch, CheckpointUnreadable, OutputUnwritable
from trainjob_trainer.atomic_file import write_atomically
from trainjob_trainer.checkpoint.fence import Fence
from trainjob_trainer.checkpoint.files import Files
from trainjob_trainer.checkpoint.snapshot import NamedArray, read
from trainjob_trainer.checkpoint.store import CheckpointStore, FinalMarker, dropped_steps
from trainjob_trainer.checkpoint_manager import CheckpointWriter
from trainjob_trainer.environment import Generation
from trainjob_trainer.errors import StorageUnavailable

Groups = dict[str, list[NamedArray]]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainjob_trainer.checkpoint.files.RETRY_SECONDS", (0.001, 0.003, 0.01))


def groups(value: float) -> Groups:
    weights = np.full((3, 2), value, dtype="float32")
    return {
        "model": [NamedArray("dense/kernel", weights), NamedArray("seed", np.array([1, 2], dtype="uint32"))],
        "optimizer": [NamedArray("iteration", np.array(7, dtype="int64"))],
    }


def variables(value: float = 0.0) -> dict[str, list[Any]]:
    return {
        "model": [
            tf.Variable(np.full((3, 2), value, dtype="float32"), name="dense/kernel"),
            tf.Variable(np.array([0, 0], dtype="uint32"), name="seed"),
        ],
        "optimizer": [tf.Variable(np.array(0, dtype="int64"), name="iteration")],
    }


class Crash(BaseException):
    """Not an Exception: nothing may tidy up after it."""


class CrashingFiles(Files):
    """Dies at the n-th file operation."""

    def __init__(self, at: int) -> None:
        self.left = at

    def _count(self) -> None:
        if self.left == 0:
            raise Crash
        self.left -= 1

    def make_folder(self, path: Path) -> None:
        self._count()
        super().make_folder(path)

    def write(self, path: Path, data: bytes) -> None:
        self._count()
        path.write_bytes(data[: len(data) // 2])
        self._count()
        super().write(path, data)

    def sync(self, path: Path) -> None:
        self._count()
        super().sync(path)

    def rename(self, source: Path, target: Path) -> None:
        self._count()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._count()
        super().remove(path)


class FailingFiles(Files):
    def __init__(self, error: OSError | None) -> None:
        self.error = error

    def write(self, path: Path, data: bytes) -> None:
        if self.error is not None:
            raise self.error
        super().write(path, data)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, now=lambda: 5.0)

    store.save(4, 1, groups(0.5), "uid")
    checkpoint = store.latest()

    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.epoch, checkpoint.job_uid, checkpoint.written) == (4, 1, "uid", 5.0)
    target = variables()
    store.load(checkpoint, target)
    loaded = read(target)
    assert np.array_equal(loaded["model"][0].value, groups(0.5)["model"][0].value)
    assert np.array_equal(loaded["model"][1].value, [1, 2])
    assert loaded["optimizer"][0].value == 7


def test_tensorflow_reads_it_with_its_own_tools(tmp_path: Path) -> None:
    CheckpointStore(tmp_path).save(4, 1, groups(0.5), "uid")

    reader = tf.train.load_checkpoint(str(tmp_path))

    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "step-00000004" / "variables")
    assert reader.get_variable_to_shape_map()["model/0/dense/kernel"] == [3, 2]


def test_nothing_there_is_nothing(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "absent")

    assert (store.latest(), store.final(), store.steps()) == (None, None, [])


def test_the_newest_and_the_final_one_stay(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    store.save(1, 0, groups(1), "uid")
    store.mark_final(FinalMarker(1, "uid"))

    for step in (2, 3, 4):
        store.save(step, 0, groups(step), "uid")

    assert store.steps() == [1, 3, 4]


def test_what_is_spared_stays(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    for step, spared in ((1, ()), (2, (1, 7)), (3, (1, 2)), (4, (2,))):
        store.save(step, 0, groups(step), "uid", spared)

    assert store.steps() == [2, 4]


def test_what_lies_beyond_a_new_checkpoint_goes(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(9, 0, groups(9), "uid")

    store.save(6, 0, groups(6), "uid")

    assert store.steps() == [6]


@pytest.mark.parametrize(
    ("steps", "newest", "keep", "spared", "dropped"),
    [
        ((1,), 1, 1, (), []),
        ((1, 2, 3, 4), 4, 3, (), [1]),
        ((1, 2, 3, 4), 4, 1, (2,), [1, 3]),
        ((1, 2, 3), 3, 0, (), [1, 2]),
        ((6, 9), 6, 3, (), [9]),
        ((6, 9), 6, 3, (9,), []),
    ],
)
def test_what_is_dropped(
    steps: tuple[int, ...], newest: int, keep: int, spared: tuple[int, ...], dropped: list[int]
) -> None:
    assert dropped_steps(steps, newest, keep, spared) == dropped


@pytest.mark.parametrize("late", [150, 250, 450], ids=["between", "first beyond", "last"])
def test_an_old_writer_without_a_fence_drops_nothing_of_its_successor(tmp_path: Path, late: int) -> None:
    CheckpointStore(tmp_path).save(100, 0, groups(1), "uid")
    old, new = CheckpointStore(tmp_path, keep=1), CheckpointStore(tmp_path)
    for store in (old, new):
        store.set_aside(100)
    for step in (200, 300, 400):
        new.save(step, 0, groups(step), "uid")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    for step in (late, late + 10):
        with pytest.raises(
            OutputUnwritable, match=r"has not written \(of step 200, 300, 400; .*another process writes"
        ):
            old.save(step, 0, groups(0), "uid")

    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_old_writer_without_a_fence_that_is_held_up_anywhere_spoils_nothing(tmp_path: Path) -> None:
    """Its successor comes before any one of its file operations, and sweeps what it hasn't published."""
    outcomes = set()
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        CheckpointStore(folder).save(100, 0, groups(1), "uid")
        before: dict[Path, bytes] = {}
        countdown = itertools.count(-moment)

        def look(folder: Path = folder, before: dict[Path, bytes] = before, left: Any = countdown) -> None:
            if next(left) == 0:
                new = CheckpointStore(folder)
                new.prepare()
                start = new.latest()
                assert start is not None
                new.set_aside(start.step)
                for step in (start.step + 100, start.step + 200):
                    new.save(step, 0, groups(step), "uid")
                before.update(checkpoints(folder))

        old = CheckpointStore(folder, keep=1, files=WatchedFiles(look), sleep=lambda _: None)
        try:
            old.set_aside(100)
            old.save(200, 1, groups(0), "uid")
            outcomes.add("saved")
        except (OutputUnwritable, StorageUnavailable) as error:
            outcomes.add(type(error).__name__)
        if not before:
            break
        assert before.items() <= checkpoints(folder).items()
    assert moment > 20
    assert outcomes == {"saved", "OutputUnwritable", "StorageUnavailable"}


def checkpoints(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.glob("step-*/*")}


class WatchedFiles(FaultyFiles):
    """Calls a reader before each operation."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__(lambda *_: look())


@pytest.mark.parametrize("keep", [1, 3])
def test_a_step_is_saved_again_without_a_moment_without_it(tmp_path: Path, keep: int) -> None:
    reader, seen = CheckpointStore(tmp_path), []

    def look() -> None:
        newest, by_tensorflow = reader.latest(), tf.train.latest_checkpoint(str(tmp_path))
        seen.append((newest and newest.step, newest and newest.epoch, by_tensorflow is not None))

    CheckpointStore(tmp_path).save(1, 0, groups(1), "uid")
    CheckpointStore(tmp_path, keep).save(2, 0, groups(2), "uid")
    for epoch in (1, 2):
        CheckpointStore(tmp_path, keep, files=WatchedFiles(look)).save(2, epoch, groups(epoch), "uid")

    assert len(seen) > 20
    assert set(seen) == {(2, 0, True), (2, 1, True), (2, 2, True)}
    assert seen == sorted(seen)
    newest = reader.at(2)
    assert (
        [path.name for path in tmp_path.glob("step-00000002*")] == [newest.path.name] == ["step-00000002.2"]
    )
    assert tf.train.latest_checkpoint(str(tmp_path)) == newest.prefix
    reader.load(newest, target := variables())
    assert float(target["model"][0][0, 0]) == 2.0


@pytest.mark.parametrize(
    "is_after",
    [pytest.param(False, id="before it"), pytest.param(True, id="after it", marks=pytest.mark.nightly)],
)
@pytest.mark.parametrize(
    "is_fenced",
    [pytest.param(False, id="unfenced", marks=pytest.mark.nightly), pytest.param(True, id="fenced")],
)
def test_a_failure_of_a_moment_ends_neither_a_start_nor_a_save(
    tmp_path: Path, *, is_fenced: bool, is_after: bool
) -> None:
    """Of each file operation there is, once, in a folder that an earlier start has left in the middle."""
    failed = made = 1
    while failed <= made:
        folder, calls = tmp_path / str(failed), itertools.count(1)
        leave_in_the_middle(folder, is_fenced=is_fenced)
        files = FaultyFiles(
            lambda *_, at=failed, calls=calls: STALE if next(calls) == at else None, is_after=is_after
        )
        fence = Fence(folder, Generation(1, 2), "uid", files, sleep=lambda _: None) if is_fenced else None
        store = CheckpointStore(folder, keep=1, files=files, fence=fence, sleep=lambda _: None)

        store.prepare()
        store.set_aside(1)
        store.clear_final()
        store.save(2, 0, groups(2), "uid")
        store.check_claim()
        store.mark_final(FinalMarker(2, "uid"))
        made, failed = next(calls) - 1, failed + 1

        found = CheckpointStore(folder)
        assert found.steps() == [2]
        assert found.latest() == found.checked(2)
        assert found.final() == FinalMarker(2, "uid")
        again = CheckpointStore(folder, fence=Fence(folder, Generation(1, 3), "uid") if is_fenced else None)
        again.prepare()
        assert again.known_steps() == {2, 3}
        assert len(list(folder.glob(".claim-*"))) == is_fenced
    assert made > 40


def leave_in_the_middle(folder: Path, *, is_fenced: bool) -> None:
    """With a claim and what was being written there, a damaged checkpoint and a final marker."""
    fence = Fence(folder, Generation(1, 1), "uid") if is_fenced else None
    store = CheckpointStore(folder, fence=fence)
    store.prepare()
    for step in (1, 3):
        store.save(step, 0, groups(step), "uid")
    (folder / "step-00000003" / "variables.index").write_bytes(b"")
    store.mark_final(FinalMarker(1, "uid"))
    half = (fence.folder / "checkpoints-step-00000004") if fence else folder / ".tmp-step-00000004"
    half.mkdir()
    (half / "variables.index").touch()


def test_a_damaged_revision_leaves_the_one_before(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(2, 0, groups(1), "uid")
    shutil.copytree(tmp_path / "step-00000002", tmp_path / "step-00000002.1")
    (tmp_path / "step-00000002.1" / "variables.index").write_bytes(b"")

    for found in (store.latest(), store.checked(2), store.at(2)):
        assert found is not None
        assert found.path.name == "step-00000002"


def test_what_is_set_aside_outlives_a_crash_at_any_point(tmp_path: Path) -> None:
    for fence in (None, "1.1"):
        at, is_through = 0, False
        while not is_through:
            folder = tmp_path / f"{fence}-{at}"
            own = None if fence is None else Fence(folder, Generation.parse(fence), "uid")
            for step in (1, 2):
                CheckpointStore(folder).save(step, 0, groups(step), "uid")
            (folder / "step-00000002" / "variables.index").write_bytes(b"")
            crashing = CheckpointStore(folder, files=CrashingFiles(at), fence=own)
            try:
                CheckpointStore(folder, fence=own).prepare()
                crashing.set_aside(1)
                is_through = True
            except Crash:
                at += 1
            again = CheckpointStore(folder, fence=own and Fence(folder, Generation(1, 2), "uid"))
            again.prepare()
            assert again.known_steps() == {1, 2}, at
        assert at > 3


@pytest.mark.parametrize("write", [Files().write, lambda path, data: write_atomically(path, data.decode())])
def test_what_is_written_follows_no_link(tmp_path: Path, write: Callable[[Path, bytes], None]) -> None:
    precious, path = tmp_path / "precious", tmp_path / "file"
    precious.write_text("as it was")
    for link in (path, tmp_path / ".tmp-file"):
        link.symlink_to(precious)

    write(path, b"new")

    assert (precious.read_text(), path.read_text(), path.is_symlink()) == ("as it was", "new", False)


def test_folders_above_the_checkpoints_are_forced_down_too_by_each_start(tmp_path: Path) -> None:
    """A start that is killed before it has done so leaves the folders that it has made to the next."""
    synced: list[Path] = []
    files = FaultyFiles(lambda name, path: synced.append(path) if name == "sync" else None)

    for _ in range(2):
        synced.clear()
        CheckpointStore(tmp_path / "job" / "checkpoints", files=files).prepare()
        assert synced[:2] == [tmp_path / "job", tmp_path]


def test_the_final_marker_comes_and_goes(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(4, 1, groups(1), "uid")
    store.mark_final(FinalMarker(4, "uid"))

    final = store.final()
    assert final is not None
    assert final == FinalMarker(4, "uid", ended_at=4, total_steps=4)
    early = FinalMarker(4, "uid", 8, 20)
    store.mark_final(early)
    assert store.final() == early
    earlier_versions = {**early.to_json(1.0), "stoppedEarly": "loss has not improved for 2 epochs"}
    (tmp_path / "final.json").write_text(json.dumps(earlier_versions))
    assert store.final() == early
    store.clear_final()
    assert store.final() is None
    (tmp_path / "final.json").write_text('{"step": 4, "jobUid": "of an earlier version", "time": 1}')
    assert store.final() == FinalMarker(4, "of an earlier version")
    (tmp_path / "final.json").write_text("[]")
    with pytest.raises(
        CheckpointUnreadable, match=r"final.json is damaged .* if you delete it, training continues"
    ):
        store.final()


@pytest.mark.parametrize("name", ["variables.index", "variables.data-00000-of-00001", "manifest.json"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda _: b"",
        lambda data: data[:-2] + bytes([data[-2] ^ 1]) + data[-1:],
        lambda data: bytes([data[0] ^ 255]) + data[1:],
        lambda data: data + b"x",
    ],
    ids=["cut", "empty", "late bit", "first byte", "longer"],
)
def test_a_damaged_one_is_passed_over(tmp_path: Path, name: str, damage: Callable[[bytes], bytes]) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, 0, groups(1), "uid")
    newest = store.save(2, 0, groups(2), "uid")
    file = newest.path / name
    file.write_bytes(damage(file.read_bytes()))

    with pytest.warns(RuntimeWarning, match="damaged checkpoint skipped"):
        latest = store.latest()

    assert latest is not None
    assert latest.step == 1


@given(position=st.integers(0), bit=st.integers(0, 7), which=st.integers(0, 2))
def test_any_flipped_bit_is_noticed(position: int, bit: int, which: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(folder)
        checkpoint = store.save(2, 0, groups(2), "uid")
        file = sorted(checkpoint.path.iterdir())[which]
        data = bytearray(file.read_bytes())
        data[position % len(data)] ^= 1 << bit
        file.write_bytes(data)

        try:
            store.load(store.checked(2), target := variables())
        except CheckpointUnreadable:
            return
        # What is not noticed has not changed anything, such as white space in the manifest.
        assert np.array_equal(read(target)["model"][0].value, groups(2)["model"][0].value)


@given(at=st.integers(0, 40), same_step=st.booleans(), keep=st.integers(1, 3))
def test_a_crash_at_any_point_leaves_a_whole_checkpoint(at: int, same_step: bool, keep: int) -> None:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing that is visible may be damaged
        store = CheckpointStore(folder, keep=keep)
        store.save(1, 0, groups(1), "uid")
        store.save(2, 0, groups(2), "uid")
        crashing = CheckpointStore(folder, keep=keep, files=CrashingFiles(at))
        try:
            crashing.save(2 if same_step else 3, 0, groups(3), "uid")
            crashing.mark_final(FinalMarker(2 if same_step else 3, "uid"))
        except Crash:
            pass

        latest = store.latest()
        assert latest is not None
        assert latest.step >= 2
        store.load(latest, variables())
        final = store.final()
        assert final is None or store.checked(final.step)
        store.prepare()
        assert not list(Path(folder).glob(".tmp-*"))


AWAY = [
    *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.ENODEV, errno.ENXIO),
    *(errno.ECONNRESET, errno.EHOSTUNREACH, errno.EAGAIN, errno.EBUSY),
]
MISTAKES = [
    *(errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ENOSYS),
    *(errno.EMFILE, errno.EINVAL),
]


@pytest.mark.parametrize(
    ("number", "expected", "words"),
    [
        (errno.ENOSPC, StillWaiting, "no space left for .*step-00000001: free some"),
        (errno.EDQUOT, StillWaiting, "no space left"),
        *((number, StillWaiting, f"cannot write .*: {os.strerror(number)}") for number in AWAY),
        *((number, OutputUnwritable, f"cannot write .*: {os.strerror(number)}") for number in MISTAKES),
    ],
)
def test_a_failed_write_is_waited_for_or_says_what_to_do_and_leaves_nothing(
    tmp_path: Path, number: int, expected: type[Exception], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = CheckpointStore(tmp_path, files=FailingFiles(system_error(number)), sleep=impatient())

    with pytest.raises(expected, match=words if expected is OutputUnwritable else None):
        store.save(1, 0, groups(1), "uid")

    assert list(tmp_path.iterdir()) == []
    assert (expected is OutputUnwritable) != bool(re.search(words, capsys.readouterr().err))


@pytest.mark.parametrize(
    "name",
    [
        *("model-03.keras", "model-3.keras", "model-2", "model-", "model-x", "step-00000009.keras"),
        *("step-9", "damaged-step-00000009.keras", "checkpoint.keras", ".tmp", "final.json.bak"),
    ],
)
@pytest.mark.parametrize("is_folder", [False, True])
def test_files_of_the_scripts_own_among_the_checkpoints_are_left_alone(
    tmp_path: Path, name: str, is_folder: bool
) -> None:
    """Such as those of Keras's `ModelCheckpoint`."""
    store = CheckpointStore(tmp_path, keep=1, fence=Fence(tmp_path, Generation(1, 1), "uid"))
    store.prepare()
    (tmp_path / name).mkdir() if is_folder else (tmp_path / name).write_text("the script's")
    for step in (3, 4):
        store.save(step, 0, groups(step), "uid")

    again = CheckpointStore(tmp_path, keep=1, fence=Fence(tmp_path, Generation(1, 2), "uid"))
    again.prepare()
    assert (again.known_steps(), again.steps()) == ({4}, [4])
    assert again.set_aside(4) == []
    again.save(5, 0, groups(5), "uid")
    assert (tmp_path / name).exists()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_what_was_writable_before_is_waited_for(tmp_path: Path, number: int) -> None:
    """At the first write it is a wrong setting; later the volume was mounted read-only again, say."""
    files = FailingFiles(None)
    store = CheckpointStore(tmp_path, files=files, sleep=impatient())
    store.save(1, 0, groups(1), "uid")
    files.error = system_error(number)

    with pytest.raises(StillWaiting):
        store.save(2, 0, groups(2), "uid")


def test_a_store_that_waits_goes_on_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files, waited = FailingFiles(system_error(errno.EIO)), []

    def sleep(seconds: float) -> None:
        waited.append(store.patience.is_waiting)
        if len(waited) == 9:
            files.error = None

    store = CheckpointStore(tmp_path, files=files, sleep=sleep)
    assert store.save(1, 0, groups(1), "uid").step == 1
    assert store.steps() == [1]
    assert waited == [False] * 3 + [True] * 6
    assert not store.patience.is_waiting
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("trainjob: ")]
    assert len(said) == 2
    assert said[1] == "trainjob: no longer waiting for storage"


@pytest.mark.parametrize("epoch", [None, Generation(1, 1)], ids=["without a fence", "with a fence"])
@pytest.mark.parametrize("left", ["nothing", "an empty folder"])
def test_on_a_volume_that_is_unmounted_nothing_is_begun_anew(
    tmp_path: Path, epoch: Generation | None, left: str, capsys: pytest.CaptureFixture[str]
) -> None:
    volume, elsewhere = tmp_path / "volume", tmp_path / "elsewhere"
    folder = volume / "job" / "checkpoints"
    store = CheckpointStore(folder, fence=epoch and Fence(folder, epoch, "uid"))
    store.prepare()
    store.save(1, 0, groups(1), "uid")
    store.mark_final(FinalMarker(1, "uid"))
    volume.rename(elsewhere)
    if left == "an empty folder":  # as a mount point is
        volume.mkdir()
    before = {path: path.stat().st_mtime_ns for path in elsewhere.rglob("*")}

    store.check_claim()
    attempts: list[Callable[[], object]] = [
        store.prepare,
        lambda: store.save(2, 0, groups(2), "uid"),
        lambda: store.mark_final(FinalMarker(2, "uid")),
        lambda: store.publish(volume / "job" / "model", lambda place: (place / "file").touch()),
    ]
    for attempt in attempts:
        store.patience.sleep = impatient()
        with pytest.raises(StillWaiting):
            attempt()
        said = capsys.readouterr().err
        assert re.search(f"waiting for storage: {folder}.* is gone: .* its volume isn't mounted", said)

    assert not volume.exists() or list(volume.iterdir()) == []
    assert {path: path.stat().st_mtime_ns for path in elsewhere.rglob("*")} == before


def test_a_folder_beside_the_checkpoints_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    store, target = CheckpointStore(tmp_path / "checkpoints", sleep=impatient()), tmp_path / "model"
    store.prepare()
    store.publish(target, lambda place: (place / "first").touch())

    def fill(place: Path) -> None:
        (place / "second").touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StillWaiting):
        store.publish(target, fill)
    assert [path.name for path in target.iterdir()] == ["first"]
    store.publish(target, lambda place: (place / "third").touch())
    assert [path.name for path in target.iterdir()] == ["third"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "model"]
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_unwritable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(OutputUnwritable, match="cannot write"):
        CheckpointStore(tmp_path / "file" / "checkpoints").prepare()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda groups: groups.pop("optimizer"), "no variables of 'optimizer'"),
        (lambda groups: groups["model"].pop(), "holds 1 variables, this program has 2"),
        (
            lambda groups: groups["model"].__setitem__(0, NamedArray("other", np.zeros((4, 4), "float32"))),
            r"dense/kernel.* is float32\[3, 2\] here, but the checkpoint's other is float32\[4, 4\]",
        ),
    ],
)
def test_another_models_checkpoint_is_refused_and_assigns_nothing(
    tmp_path: Path, change: Callable[[Groups], object], words: str
) -> None:
    store, saved, target = CheckpointStore(tmp_path), groups(3), variables(1.0)
    change(saved)
    checkpoint = store.save(1, 0, saved, "uid")

    with pytest.raises(CheckpointMismatch, match=words):
        store.load(checkpoint, target)

    assert float(target["model"][0][0, 0]) == 1.0


def test_variables_are_found_by_name_in_another_order(tmp_path: Path) -> None:
    store, saved = CheckpointStore(tmp_path), groups(3)
    pair = [NamedArray("b:0", np.array(2.0, "float32")), NamedArray("a:0", np.array(1.0, "float32"))]
    checkpoint = store.save(1, 0, {**saved, "extra": pair}, "uid")
    a, b = tf.Variable(0.0, name="a"), tf.Variable(0.0, name="b")

    store.load(checkpoint, {"extra": [a, b]})

    assert (float(a), float(b)) == (1.0, 2.0)


def submit(writer: CheckpointWriter, step: int) -> None:
    writer.between_steps(step, 0, True, lambda: groups(step), is_stopping=False)


def test_checkpoints_are_written_in_the_background_and_failures_surface(tmp_path: Path) -> None:
    me, store = alone.process(tmp_path), CheckpointStore(tmp_path)
    writer = CheckpointWriter(me, store)
    for step in (1, 2):
        submit(writer, step)
    writer.settle()
    assert (store.steps(), me.progress.last.checkpoint_step) == ([1, 2], 2)

    store = CheckpointStore(tmp_path, files=FailingFiles(system_error(1)))
    failing = CheckpointWriter(me, store)
    submit(failing, 3)
    with pytest.raises(OutputUnwritable):
        failing.settle()


def test_of_the_checkpoints_that_come_while_one_waits_the_newest_is_written_next(tmp_path: Path) -> None:
    files, has_failed = FailingFiles(system_error(errno.EIO)), threading.Event()

    def sleep(_: float) -> None:
        has_failed.set()
        time.sleep(0.001)

    store = CheckpointStore(tmp_path, files=files, sleep=sleep)
    writer = CheckpointWriter(alone.process(tmp_path), store)
    for step in (1, 2, 3):  # training goes on: this would hang otherwise
        submit(writer, step)
    assert has_failed.wait(60)
    assert writer.is_late
    files.error = None
    writer.settle()

    assert store.steps() == [1, 3]
