"""Two writers of one folder, their file operations in any order."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.trainer.disk import FaultyFiles, StillWaiting, impatient
from trainjob_trainer import Fenced, InvalidConfiguration, OutputTaken
from trainjob_trainer.checkpoint.fence import Fence, Owner, refuses
from trainjob_trainer.checkpoint.files import Files
from trainjob_trainer.checkpoint.snapshot import NamedArray
from trainjob_trainer.checkpoint.store import CheckpointStore, FinalMarker
from trainjob_trainer.environment import Generation

T = TypeVar("T")
OLD, NEW = "old", "new"


class Turns:
    """One thread runs at a time, each from one file operation to its next; a schedule says which."""

    def __init__(self, schedule: Iterator[str]) -> None:
        self._schedule = schedule
        self._changed = threading.Condition()
        self._waiting: set[str] = set()
        self._alive = {OLD, NEW}
        self._running: str | None = None
        self.operations = dict.fromkeys(self._alive, 0)

    def wait(self, who: str) -> None:
        """Let the schedule choose who goes on; return when it is this one."""
        with self._changed:
            self._waiting.add(who)
            self._running = None if self._running == who else self._running
            self._choose()
            self._changed.wait_for(lambda: self._running == who)
            self._waiting.discard(who)
            self.operations[who] += 1

    def leave(self, who: str) -> None:
        with self._changed:
            self._alive.discard(who)
            self._running = None if self._running == who else self._running
            self._choose()

    def _choose(self) -> None:
        if self._running is None and self._waiting == self._alive and self._alive:
            wanted = next(self._schedule, NEW)
            self._running = wanted if wanted in self._alive else next(iter(self._alive))
            self._changed.notify_all()


class Record:
    """Who has changed what readers see, and who had claimed the folder by then."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.claimed: set[str] = set()
        self.changes: list[tuple[str, frozenset[str]]] = []

    def watched(self, who: str, operation: Callable[[], T]) -> T:
        before = self._visible()
        try:
            return operation()
        finally:
            if self._visible() != before:
                self.changes.append((who, frozenset(self.claimed)))

    def _visible(self) -> dict[str, str]:
        shown = [path for path in self._folder.glob("[!.]*") if path.exists()]
        files = [file for path in shown for file in ([path] if path.is_file() else sorted(path.iterdir()))]
        return {
            str(file.relative_to(self._folder)): hashlib.sha1(file.read_bytes()).hexdigest()  # noqa: S324
            for file in files
        }


class InterleavedFiles(Files):
    """Every operation is a point at which the other writer may go on."""

    def __init__(self, who: str, turns: Turns, record: Record) -> None:
        self._who, self._turns, self._record = who, turns, record

    def _in_turn(self, operation: Callable[..., T], *arguments: Any) -> T:
        self._turns.wait(self._who)
        return self._record.watched(self._who, lambda: operation(*arguments))

    def make_folder(self, path: Path) -> None:
        self._in_turn(Files().make_folder, path)  # all of it in one turn, what it syncs included

    def create_folder(self, path: Path) -> None:
        self._in_turn(super().create_folder, path)

    def names(self, path: Path) -> list[str]:
        return self._in_turn(super().names, path)

    def write(self, path: Path, data: bytes) -> None:
        self._in_turn(super().write, path, data)

    def sync(self, path: Path) -> None:
        self._in_turn(super().sync, path)

    def rename(self, source: Path, target: Path) -> None:
        self._in_turn(super().rename, source, target)

    def remove(self, path: Path) -> None:
        self._in_turn(super().remove, path)


def at_once(_seconds: float) -> None:
    """Wait for no time: the schedule says how long the other writer takes."""


class Writer(threading.Thread):
    """A life of a writer that runs in turn with another's."""

    def __init__(
        self,
        who: str,
        folder: Path,
        generation: str,
        uid: str,
        turns: Turns,
        record: Record,
        job: str = "",
    ) -> None:
        super().__init__(daemon=True)
        self.who, self.error = who, None
        self._uid, self._turns, self._record = uid, turns, record
        files = InterleavedFiles(who, turns, record)
        self._fence = Fence(folder, Generation.parse(generation), uid, files, job=job, sleep=at_once)
        keep = {OLD: 1, NEW: 9}[who]  # there is always something that the old one would drop
        self._store = CheckpointStore(
            folder, keep, files=files, fence=self._fence, now=lambda: NUMBERS[who], sleep=at_once
        )

    def run(self) -> None:
        try:
            self.live()
        except Exception as error:  # noqa: BLE001 - it is the test's to judge
            self.error = error
        finally:
            self._turns.leave(self.who)

    def live(self) -> None:
        """Claim, resume, save, prune, mark the end."""
        self._store.prepare()
        self._record.claimed.add(self.who)
        newest = self._store.latest()
        start = newest.step if newest else 0
        self._store.set_aside(start)
        self._store.clear_final()
        self._store.save(start + 1, 0, groups(self.who), self._uid)
        self._store.mark_final(FinalMarker(start + 1, self._uid))


class Claimant(Writer):
    """One that does nothing else."""

    def live(self) -> None:
        self._fence.claim()


NUMBERS = {OLD: 1.0, NEW: 2.0}


def groups(who: str) -> dict[str, list[NamedArray]]:
    return {"model": [NamedArray("writer", np.array(NUMBERS[who], "float32"))]}


def compete(
    folder: Path,
    schedule: Iterator[str],
    old: tuple[str, str],
    new: tuple[str, str],
    jobs: tuple[str, str] = ("", ""),
) -> tuple[Writer, Writer, Record, Turns]:
    """Run both to their ends, after an earlier training, and a start that crashed and left its claim."""
    crashed = Fence(folder, Generation(0, 1), old[1], job=jobs[0])
    crashed.claim()
    (crashed.folder / "part").mkdir()
    for step in (3, 4):
        CheckpointStore(folder).save(step, 0, groups(OLD), "earlier")
    CheckpointStore(folder).mark_final(FinalMarker(4, "earlier"))
    turns, record = Turns(schedule), Record(folder)
    writers = (
        Writer(OLD, folder, *old, turns, record, jobs[0]),
        Writer(NEW, folder, *new, turns, record, jobs[1]),
    )
    run_together(*writers)
    return (*writers, record, turns)


def run_together(*writers: Writer) -> None:
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert not writer.is_alive()


def check_one_job(folder: Path, old: Writer, new: Writer, record: Record) -> None:
    assert new.error is None
    assert old.error is None or isinstance(old.error, Fenced), old.error
    assert not [change for change in record.changes if change[0] == OLD and NEW in change[1]]
    check_end(folder, NEW)


def check_end(folder: Path, who: str) -> None:
    """All of the last part is this writer's, whole, and nothing else is left."""
    store = CheckpointStore(folder)
    final, newest = store.final(), store.latest()
    assert final is not None
    assert newest is not None
    assert (newest.step, newest.written) == (final.step, NUMBERS[who])
    target = Target()
    store.load(newest, {"model": [target]})
    assert target.assigned == NUMBERS[who]
    assert (folder / "checkpoint").read_text().startswith(f'model_checkpoint_path: "{newest.path.name}/')
    (claim,) = folder.glob(".claim-*")
    assert [path.name for path in claim.iterdir()] == ["owner.json"]


class Target:
    """A variable."""

    name, shape, dtype = "writer", (), np.dtype("float32")

    def __init__(self) -> None:
        self.assigned = 0.0
        self.values = (self,)

    def assign(self, value: Any) -> None:
        self.assigned = float(value)


STARTS = [("1.1", "1.2"), ("1.9", "1.10"), ("1.9", "2.1"), ("9.1", "10.1")]
QUARTER = settings(max_examples=settings.default.max_examples // 4)
"""Of what a profile asks for: each example runs two writers through their lives."""
RUNS = st.lists(st.tuples(st.sampled_from([OLD, NEW]), st.integers(1, 12)), max_size=40)


@pytest.mark.nightly
def test_a_writer_stopped_anywhere_wakes_up_when_its_successor_is_through() -> None:
    """SIGSTOP before the n-th file operation of the old one, for every n."""
    stopped_at = taken = 0
    while taken >= stopped_at:
        stopped_at += 1
        with tempfile.TemporaryDirectory() as name:
            schedule = iter([OLD] * stopped_at + [NEW] * 1000)
            old, new, record, turns = compete(Path(name), schedule, ("1.9", "uid"), ("2.1", "uid"))
            check_one_job(Path(name), old, new, record)
            taken = turns.operations[OLD]
    assert stopped_at > 30  # it has been through a whole life


@QUARTER
@given(runs=RUNS, generations=st.sampled_from(STARTS))
def test_of_two_starts_the_newer_one_alone_goes_on(
    runs: Sequence[tuple[str, int]], generations: tuple[str, str]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        schedule = (who for who, count in runs for _ in range(count))
        writers = compete(Path(name), schedule, (generations[0], "uid"), (generations[1], "uid"))
        check_one_job(Path(name), *writers[:3])


@QUARTER
@given(runs=RUNS, jobs=st.sampled_from([("a/digits", "a/digits"), ("a/digits", "b/digits")]))
def test_of_two_jobs_one_goes_on_and_never_after_the_other_has_taken_over(
    runs: Sequence[tuple[str, int]], jobs: tuple[str, str]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        schedule = (who for who, count in runs for _ in range(count))
        old, new, record, _ = compete(Path(name), schedule, ("5.1", "one"), ("1.1", "other"), jobs)
        lost = [writer for writer in (old, new) if writer.error is not None]
        assert all(isinstance(writer.error, OutputTaken) for writer in lost), [w.error for w in lost]
        assert len(lost) < 2
        last = [who for who, _ in record.changes][-1]
        check_end(Path(name), last)
        assert not lost or last != lost[0].who


@given(schedule=st.lists(st.sampled_from([OLD, NEW]), min_size=16, max_size=16))
@pytest.mark.parametrize("uids", [("one", "one"), ("one", "other")], ids=["starts", "jobs"])
def test_of_two_that_claim_at_the_same_moment_one_holds_the_folder(
    uids: tuple[str, str], schedule: Sequence[str]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, turns = Path(name), Turns(iter(schedule))
        old = Claimant(OLD, folder, "1.1", uids[0], turns, Record(folder))
        new = Claimant(NEW, folder, "1.2", uids[1], turns, Record(folder))

        run_together(old, new)

        claims = {fence(folder, "1.1", uids[0]).folder: old, fence(folder, "1.2", uids[1]).folder: new}
        (standing,) = [claim for claim in claims if claim.exists()]
        assert claims[standing].error is None
        assert uids[0] != uids[1] or claims[standing] is new


class HandleFiles(Files):
    """An NFS client that resolved its claim's path before the claim was moved, and lists from its cache.

    Its renames go by the folder's handle, which is valid until the folder is deleted.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handle: int | None = None
        self._listing: list[str] | None = None

    def hold(self, claim: Path) -> None:
        self._handle, self._listing = os.open(claim, os.O_RDONLY), super().names(self._folder)

    def let_go(self) -> None:
        assert self._handle is not None
        os.close(self._handle)

    def names(self, path: Path) -> list[str]:
        return self._listing if self._listing is not None and path == self._folder else super().names(path)

    def write(self, path: Path, data: bytes) -> None:
        descriptor = os.open(path.name, os.O_WRONLY | os.O_CREAT, dir_fd=self._handle)
        os.write(descriptor, data)
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source.name, target, src_dir_fd=self._handle)


@pytest.mark.parametrize("refusals", range(10))
def test_a_claim_counts_once_the_older_one_is_gone(
    tmp_path: Path, refusals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, with a folder that is busy for a while: its removal is refused so many times."""
    files = HandleFiles(tmp_path)
    old = Fence(tmp_path, Generation(1, 1), "uid", files)
    old.claim()
    files.hold(old.folder)
    left, naps, remove = iter(range(refusals)), [], os.rmdir

    def refuse(path: Any, *, dir_fd: int | None = None) -> None:
        if old.folder.name in str(path) and next(left, None) is not None:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        remove(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", refuse)
    new = Fence(tmp_path, Generation(1, 2), "uid", sleep=naps.append)
    new.claim()

    with contextlib.suppress(FileNotFoundError):
        files.write(old.folder / "result", b"old")  # it had looked at the claims before
        files.rename(old.folder / "result", tmp_path / "result")
    files.let_go()
    assert not (tmp_path / "result").exists()
    assert len(naps) == refusals
    assert new.folder.is_dir()


def test_a_claim_that_cannot_be_removed_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fence(tmp_path, "1.1").claim()
    monkeypatch.setattr(os, "rmdir", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.EBUSY, "busy")))
    with pytest.raises(StillWaiting):
        Fence(tmp_path, Generation(1, 2), "uid", sleep=impatient()).claim()
    assert "an earlier writer's claim, can't be removed ([Errno 16] busy)" in capsys.readouterr().err


def test_a_claim_that_only_appears_late_is_taken_away_too(tmp_path: Path) -> None:
    """Its writer has made it before the newer one, and a listing shows it only after a while."""
    late = fence(tmp_path, "1.1")
    late.claim()
    looks = iter([[], []])

    class LateFiles(Files):
        def names(self, path: Path) -> list[str]:
            names = super().names(path)
            hidden = path == tmp_path and next(looks, None) is not None
            return [name for name in names if name != late.folder.name] if hidden else names

    Fence(tmp_path, Generation(1, 2), "uid", LateFiles(), sleep=lambda _: None).claim()

    assert not late.folder.exists()


@pytest.mark.parametrize("is_there", [True, False])
def test_after_a_claim_on_a_network_file_system_listings_are_let_become_current(
    tmp_path: Path, is_there: bool
) -> None:
    folder, naps, changes = tmp_path / "checkpoints", [], []
    if is_there:
        folder.mkdir()
    files = FaultyFiles(lambda name, path: changes.append((name, path.parent)) if naps else None)

    Fence(
        folder,
        Generation(1, 1),
        "uid",
        files,
        listing_delay=lambda path: 7.0 * (path == folder),
        sleep=naps.append,
    ).claim()

    assert naps == [7.0] * is_there
    assert (("remove", folder) in changes) is is_there  # of an entry of its own, which makes NFS look again


def fence(folder: Path, generation: str, uid: str = "uid") -> Fence:
    return Fence(folder, Generation.parse(generation), uid)


def test_a_claim_is_told_apart_and_stays(tmp_path: Path) -> None:
    mine = fence(tmp_path / "new" / "folder", "1.2")

    mine.claim()
    mine.claim()

    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == [mine.folder.name]
    with pytest.raises(Fenced, match=r"another process writes .* as 1\.2"):
        fence(tmp_path / "new" / "folder", "1.2").claim()
    with pytest.raises(Fenced, match=r"a newer start of this job \(1.2\) writes .*; this one \(1.1\)"):
        fence(tmp_path / "new" / "folder", "1.1").claim()
    mine.check()


@pytest.mark.parametrize("kind", ["link", "broken link", "file", "pipe"])
@pytest.mark.parametrize("name", [".claim-1.1-00000000", ".claim-9.9-{mine}", ".claim-2.1-{mine}"])
def test_what_only_has_a_claims_name_is_removed_and_never_followed(
    tmp_path: Path, kind: str, name: str
) -> None:
    """In a folder that somebody has sent: what a link names isn't part of it."""
    folder, elsewhere = tmp_path / "checkpoints", tmp_path / "mine"
    folder.mkdir()
    elsewhere.mkdir()
    (elsewhere / "thesis.txt").write_text("all of it")
    planted = folder / name.format(mine=f"{zlib.crc32(b'uid'):08x}")
    if kind == "pipe":
        os.mkfifo(planted)
    elif kind == "file":
        planted.write_text("x")
    else:
        planted.symlink_to(elsewhere if kind == "link" else tmp_path / "nothing")
    fence = Fence(folder, Generation.parse("2.1"), "uid")
    fence.claim()
    fence.check()
    assert [one.name for one in folder.iterdir()] == [fence.folder.name]
    assert fence.folder.is_dir()
    assert not fence.folder.is_symlink()
    assert (elsewhere / "thesis.txt").read_text() == "all of it"


def test_a_link_in_an_older_claim_goes_as_a_name(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "checkpoints", tmp_path / "mine"
    (folder / ".claim-1.1-00000000").mkdir(parents=True)
    elsewhere.mkdir()
    (elsewhere / "thesis.txt").write_text("all of it")
    for name in (".claim-1.2-00000000", "step-7"):
        (folder / ".claim-1.1-00000000" / name).symlink_to(elsewhere)
    Fence(folder, Generation.parse("1.1"), "uid").claim()
    assert (elsewhere / "thesis.txt").read_text() == "all of it"


OURS, THEIRS = Owner("1", "a/digits", "uid-1"), Owner("2", "b/digits", "uid-2")
TAKEN_FROM_US = Owner("2", "b/digits", "uid-2", ("0", "1"))


@pytest.mark.parametrize(
    ("other", "mine", "is_claimed", "is_alive", "is_refused"),
    [
        # Another start of the job: generations decide.
        (OURS, OURS, True, True, False),
        (Owner("1"), OURS, True, True, False),
        (Owner("1", "a/digits", "uid-1", ("2",)), OURS, True, False, False),
        # A job of another name or namespace.
        (THEIRS, OURS, False, True, True),
        (THEIRS, OURS, True, True, True),
        (THEIRS, OURS, False, False, False),  # it has ended
        (Owner("2", "a/other", "uid-2"), OURS, False, True, True),
        (THEIRS, Owner("1", "", "uid-1"), False, True, True),  # ours is from an earlier controller
        # Created again, restored from a backup, or a copy in another cluster.
        (Owner("2", "a/digits", "uid-2"), OURS, False, True, False),
        # It has taken the folder over from us, whatever its name.
        (TAKEN_FROM_US, OURS, False, False, True),
        (TAKEN_FROM_US, OURS, False, True, True),
        (Owner("2", "a/digits", "uid-2", ("1",)), OURS, False, False, True),
        (Owner("2", "", "", ("1",)), OURS, False, False, True),
        # It has ended before it could.
        (TAKEN_FROM_US, OURS, True, False, False),
        # An earlier version's.
        (Owner("2"), OURS, False, True, False),
    ],
)
def test_which_of_two_jobs_may_write(
    other: Owner, mine: Owner, is_claimed: bool, is_alive: bool, is_refused: bool
) -> None:
    assert refuses(other, mine, is_claimed=is_claimed, is_alive=is_alive) is is_refused


def of_job(folder: Path, generation: str, job: str, uid: str, sleep: Callable[[float], None]) -> Fence:
    return Fence(folder, Generation.parse(generation), uid, job=job, sleep=sleep)


@pytest.mark.parametrize("job", ["a/digits", "b/digits"])
def test_a_job_from_which_another_has_taken_over_never_takes_it_back(tmp_path: Path, job: str) -> None:
    first = of_job(tmp_path, "9.9", "a/digits", "uid-1", at_once)
    first.claim()

    second = of_job(tmp_path, "1.1", job, "uid-2", at_once)
    second.claim()

    with pytest.raises(
        OutputTaken, match=rf"^job {job} \(UID uid-2\) writes .*, and a/digits leaves it alone"
    ):
        first.check()
    for generation in ("9.10", "10.11"):
        with pytest.raises(OutputTaken, match="different names or output folders"):
            of_job(tmp_path, generation, "a/digits", "uid-1", at_once).claim()
    second.check()

    third = of_job(tmp_path, "2.2", job, "uid-2", at_once)
    third.claim()  # that job's own restart
    with pytest.raises(OutputTaken):
        of_job(tmp_path, "10.12", "a/digits", "uid-1", at_once).claim()
    of_job(tmp_path, "1.1", "a/digits", "uid-3", at_once).claim()  # created again
    with pytest.raises(OutputTaken):
        third.check()


def test_a_job_of_another_namespace_is_refused_while_the_writer_is_alive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alive = of_job(tmp_path, "1.1", "a/digits", "uid-1", at_once)
    alive.claim()
    os.utime(alive.folder, (1, 1))

    def meanwhile(_seconds: float) -> None:
        Files().touch(alive.folder)

    with pytest.raises(OutputTaken, match=r"^job a/digits \(UID uid-1\) writes .*, and b/digits leaves"):
        of_job(tmp_path, "1.1", "b/digits", "uid-2", meanwhile).claim()
    alive.check()
    assert "job a/digits (UID uid-1) has written into" in capsys.readouterr().err

    naps: list[float] = []
    of_job(tmp_path, "1.1", "b/digits", "uid-2", naps.append).claim()  # it has ended
    assert len(naps) == 1
    of_job(tmp_path, "1.2", "b/digits", "uid-2", naps.append).claim()
    of_job(tmp_path, "1.1", "b/digits", "uid-4", naps.append).claim()
    assert len(naps) == 1


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b"\xff", b'{"job": "a/b", "uid": "u", "before": 3}', b"[" * 9999]
)
def test_a_claim_that_does_not_say_whose_it_is_is_taken_over(tmp_path: Path, content: bytes) -> None:
    before = of_job(tmp_path, "1.1", "a/digits", "uid-1", at_once)
    before.claim()
    (before.folder / "owner.json").write_bytes(content)

    of_job(tmp_path, "1.1", "b/digits", "uid-2", at_once).claim()

    with pytest.raises(OutputTaken):
        before.check()


def test_a_claim_in_a_folder_that_somebody_has_sent_puts_nothing_else_into_messages(tmp_path: Path) -> None:
    mine = fence(tmp_path, "1.1")
    theirs = tmp_path / ".claim-1.1-00000000"
    theirs.mkdir()
    facts = {"job": "\x1b[2J", "uid": "u\nx", "before": [mine.folder.name[-8:]]}
    (theirs / "owner.json").write_text(json.dumps(facts))

    with pytest.raises(OutputTaken, match=r"^another job writes"):
        mine.claim()


def test_a_folder_that_somebody_has_deleted_is_no_successors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = CheckpointStore(tmp_path, fence=fence(tmp_path, "1.1"))
    store.prepare()
    for path in tmp_path.iterdir():
        shutil.rmtree(path)

    store.patience.sleep = impatient()
    with pytest.raises(StillWaiting):
        store.save(1, 0, groups(OLD), "uid")
    assert "is gone: it has been deleted" in capsys.readouterr().err
    store.check_claim()


def test_an_empty_folder_is_not_claimed_where_an_earlier_start_has_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "checkpoints"

    def again(generation: str) -> Fence:
        return Fence(folder, Generation.parse(generation), "uid", trained_step=4, sleep=impatient())

    with pytest.raises(StillWaiting):
        again("1.2").claim()
    assert re.search(
        r"checkpoints is empty or not there.* has written into it, up to step 4", capsys.readouterr().err
    )
    assert not folder.exists()
    folder.mkdir()
    with pytest.raises(StillWaiting):
        again("1.2").claim()
    assert "is the output's volume mounted" in capsys.readouterr().err
    assert list(folder.iterdir()) == []
    fence(folder, "1.1").claim()
    again("1.2").claim()


def test_models_of_one_script_share_the_claim(tmp_path: Path) -> None:
    mine = fence(tmp_path, "1.1")
    stores = [CheckpointStore(folder, fence=mine) for folder in (tmp_path, tmp_path / "model-2")]
    for store in stores:
        store.prepare()
        store.save(1, 0, groups(OLD), "uid")

    fence(tmp_path, "1.2").claim()

    for store in stores:
        with pytest.raises(Fenced):
            store.save(2, 0, groups(OLD), "uid")
        assert store.steps() == [1]


def test_a_damaged_one_is_set_aside_until_there_are_enough_newer_ones(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, fence=fence(tmp_path, "1.1"))
    store.prepare()
    for step in (1, 2):
        store.save(step, 0, groups(OLD), "uid")
    (tmp_path / "step-00000002" / "variables.index").write_bytes(b"")

    with pytest.warns(RuntimeWarning, match="damaged"):
        newest = store.latest()
    assert newest is not None
    assert store.set_aside(newest.step) == [2]

    assert store.steps() == [1]
    assert (tmp_path / "damaged-step-00000002").is_dir()
    assert '"step-00000001/' in (tmp_path / "checkpoint").read_text().splitlines()[0]
    for step in (3, 4):
        store.save(step, 0, groups(OLD), "uid")
        assert [path.name for path in tmp_path.glob("damaged-*")] == ["damaged-step-00000002"]
    store.save(5, 0, groups(OLD), "uid")
    assert not list(tmp_path.glob("damaged-*"))


@pytest.mark.parametrize("text", ["1", "1.", ".1", "1.2.3", "-1.2", "a.b", "1.2\n", " 1.2", "\u0663.\u0661"])
def test_a_malformed_epoch_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="TRAINJOB_GENERATION"):
        Generation.parse(text)


def test_epochs_are_compared_as_pairs() -> None:
    texts = ["1.1", "1.2", "1.10", "2.1", "10.0"]
    assert sorted(map(Generation.parse, reversed(texts))) == [Generation.parse(text) for text in texts]
