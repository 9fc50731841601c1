"""Fencing of a checkpoint folder: only the newest generation of the job may write.

A process that is suspended, or cut off by a partition, does not know that it has a successor. When it wakes
up it continues where it stopped, perhaps right before it publishes a checkpoint. A mark that is checked
before each write would leave a window between check and write. So a claim is more than a mark:

* A claim is a folder, `.claim-<incarnation>.<attempt>-<job>`, and the writer's working folder. Every change
  that readers see is one rename out of it (a checkpoint, the final marker, TensorFlow's state file) or into
  it (a dropped checkpoint). A path below the claim no longer resolves once the claim is gone.
* A successor makes its own claim, then removes all others: it renames them into its own, so that of two
  writers that do this to each other only one succeeds, and deletes their content. It reads and writes
  nothing until a listing shows that no other claim is left.
* A claim's name that isn't a real folder, such as a link in a folder that somebody has sent, is no claim: it
  is removed as a name, and what it names is left alone.
* Within one job the greater generation is newer. Of two jobs, `refuses` decides who writes: `owner.json` in
  a claim says whose it is and from which jobs it has taken the folder over, and its writer touches the claim
  every few seconds.

The guarantee holds on a file system where mkdir and rename are atomic and looked-up paths are current (a
local disk; others that follow POSIX): once `claim` has returned, no operation of an older writer changes
anything that a reader sees, wherever it was interrupted. It raises `Fenced` instead. NFS may resolve a path
from its cache; there the guarantee follows from the deletion, which the server knows of, and from a wait
until a listing is current (docs/contract.md has a table of file systems). On a mounted bucket, which copies
instead of renaming, only the check before each operation remains: a window as long as one operation.
Files that a user's script writes by itself are not covered. Keras's writers check there before they begin.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import NoReturn

from trainjob_trainer.atomic_file import TEMPORARY
from trainjob_trainer.checkpoint.bucket import build_files
from trainjob_trainer.checkpoint.files import (
    NOT_THERE,
    TAKEN,
    WAITED_FOR,
    Files,
    Patience,
    explain_write_error,
    gone,
)
from trainjob_trainer.environment import Environment, Generation
from trainjob_trainer.errors import Fenced, OutputTaken, StorageUnavailable, TrainerError
from trainjob_trainer.reporting.progress import announce
from trainjob_trainer.task import Task

_MOUNTINFO = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")
_DIRECTORY_CACHE_SECONDS = 60.0
"""The default of `acdirmax`: nfs(5)."""
_TICK_SECONDS = 1.0
"""NFS compares times: two changes within one tick of the server's clock may look like one."""


@dataclass(frozen=True)
class Mount:
    """A line of /proc/self/mountinfo: a type such as `nfs4`, and options, "" for those without a value."""

    kind: str
    options: Mapping[str, str]


def listing_delay(folder: Path) -> float:
    """Return the seconds after which a newly opened folder shows all earlier changes."""
    try:
        text = _MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return 0.0
    mount = find_mount(text, folder)
    return mount_delay(mount) if mount is not None else 0.0


def find_mount(mountinfo: str, folder: Path) -> Mount | None:
    """Return the mount of an absolute path without links; the format is that of proc_pid_mountinfo(5)."""
    found: tuple[int, Mount] | None = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        place, rest = before.split(), after.split()
        if len(place) < 6 or len(rest) < 3:
            continue
        point = PurePosixPath(_OCTAL.sub(lambda match: chr(int(match[1], 8)), place[4]))
        depth = len(point.parts)
        if folder.is_relative_to(point) and (found is None or depth >= found[0]):
            pairs = (option.partition("=") for option in f"{place[5]},{rest[2]}".split(","))
            found = depth, Mount(rest[0], {name: value for name, _, value in pairs})
    return found[1] if found is not None else None


def mount_delay(mount: Mount) -> float:
    """Return the seconds after which a newly opened folder is current.

    On NFS opening is enough, after one tick, unless `nocto` is set: then the attributes must expire. SMB's
    expire after `actimeo`, GCS FUSE's negative entries after 5 s, other FUSE drivers' after 1 s by default.
    A local disk needs no delay; nor does CephFS, whose clients share one coherent cache.
    """
    options = mount.options
    if mount.kind in ("nfs", "nfs4"):
        if "nocto" not in options:
            return _TICK_SECONDS
        return _seconds(options, ("acdirmax", "actimeo"), _DIRECTORY_CACHE_SECONDS)
    if mount.kind in ("cifs", "smb3", "smbfs"):
        return _seconds(options, ("acdirmax", "actimeo"), _TICK_SECONDS)
    if mount.kind == "fuse.gcsfuse":
        return 5.0
    if mount.kind.startswith("fuse.") or mount.kind in ("fuse", "9p", "virtiofs"):
        return _TICK_SECONDS
    return 0.0


def _seconds(options: Mapping[str, str], names: tuple[str, ...], default: float) -> float:
    if "noac" in options:
        return 0.0
    for name in names:
        if options.get(name, "").isdigit():
            return float(options[name])
    return default


DAMAGED = "damaged-"
"""Prefix of a checkpoint that is set aside."""
_CLAIM = re.compile(r"\.claim-([0-9]+)\.([0-9]+)-([0-9a-f]{8})")
_SET_ASIDE = re.compile(rf"(.+?)-({DAMAGED}step-.+)")
_OWNER = "owner.json"
_LARGEST_OWNER = 1 << 16
_JOB, _UID = re.compile(r"[-a-z0-9.]{1,253}/[-a-z0-9.]{1,253}"), re.compile(r"[-0-9A-Za-z.]{1,128}")
_REMEMBERED = 100
"""Jobs that a claim remembers as those that it, or an earlier claim, has taken the folder over from."""
_TOUCH_SECONDS = 5.0
_OBSERVED_SECONDS = 3 * _TOUCH_SECONDS


@dataclass(frozen=True)
class Owner:
    """The job that a claim belongs to.

    Attributes:
        key: a hash of its UID.
        job: `namespace/name`; empty if it is unknown.
        uid: empty if it is unknown.
        before: keys of the jobs from which the folder was taken over, the latest last.
    """

    key: str
    job: str = ""
    uid: str = ""
    before: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return how messages name the job."""
        return f"job {self.job or 'of an unknown name'} (UID {self.uid})" if self.uid else "another job"


def refuses(other: Owner, mine: Owner, *, is_claimed: bool, is_alive: bool) -> bool:
    """Return whether the owner of a claim keeps another job, `mine`, from writing into the folder.

    It does if it has taken the folder over from that job before, or else each would take it from the other
    without end. It does too while it writes, unless both have one namespace and name: then the later one is
    its successor, created again, restored from a backup or sent to another cluster.

    Args:
        other: the claim's owner.
        mine: the job that is to write.
        is_claimed: a claim of `mine` still stands, so `other` hasn't finished to take over.
        is_alive: the claim was touched just now.
    """
    if other.key == mine.key:
        return False
    if mine.key in other.before and not is_claimed:
        return True
    return is_alive and bool(other.job) and other.job != mine.job


@dataclass(frozen=True)
class _Claim:
    job: str
    generation: Generation
    name: str


class Fence:
    """One writer's claim to a folder, which need not exist before `claim`.

    Generations are compared within one `job_uid` only; `job` is its `namespace/name`, if known. If an earlier
    start is known to have reached a `trained_step` with this folder, `claim` refuses an empty one.
    """

    def __init__(
        self,
        directory: Path,
        generation: Generation,
        job_uid: str,
        files: Files | None = None,
        *,
        job: str = "",
        trained_step: int | None = None,
        listing_delay: Callable[[Path], float] = listing_delay,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        key = f"{zlib.crc32(job_uid.encode()):08x}"
        self._mine = _Claim(key, generation, f".claim-{generation}-{key}")
        self._owner = Owner(key, job, job_uid)
        self._recorded: Owner | None = None
        self._directory = directory
        self._files = files or Files()
        self._trained_step = trained_step
        self._listing_delay = listing_delay
        self.patience = Patience(sleep, was_writable=trained_step is not None)
        self._is_unsure = False
        self._is_made = False
        self._is_first = False
        self._held = False

    @property
    def folder(self) -> Path:
        """The folder for what is not published yet."""
        return self._directory / self._mine.name

    def claim(self, *, waits: bool = True) -> None:
        """Take over the folder; a second call only checks the claim, unless it can't now and must not wait.

        Raises:
            Fenced: a newer start of this job has claimed it, or another process with the same generation.
            OutputTaken: another job writes there, or has taken it over.
            OutputUnwritable: the claim can't be made.
        """
        if self._held and not waits:
            with contextlib.suppress(OSError, *WAITED_FOR):
                self.check()
            return
        self.patience.write(self.check if self._held else self._take, self.folder)
        self._held = True

    def check(self) -> None:
        """Check that the claim still exists.

        Raises:
            Fenced, OutputTaken: as `claim`.
            StorageUnavailable: the claim is gone, and no successor has removed it.
            OSError: the folder can't be read.
        """
        claims = self._claims()
        self._refuse_newer(claims)
        if self._mine not in claims:
            self._explain_loss(claims)

    def _take(self) -> None:
        if not self._is_made:
            self._refuse_owners()
            self._make()
        try:
            self._revoke_others()
        except Fenced:
            with contextlib.suppress(OSError):  # else the newer writer removes it
                self._files.remove(self.folder)
            raise
        if not self._is_first:
            self._settle()

    def keep_touched(self) -> None:
        """Touch the claim every few seconds, from now on, so that other jobs see that its writer is alive."""

        def touch() -> None:
            while True:
                time.sleep(_TOUCH_SECONDS)
                with contextlib.suppress(OSError):  # not made yet, or gone
                    self._files.touch(self.folder)

        threading.Thread(target=touch, name="trainjob-claim", daemon=True).start()

    def _refuse_owners(self) -> None:
        claims = self._claims()
        is_claimed = any(claim.job == self._mine.job for claim in claims)
        for claim in sorted(claims, key=lambda claim: claim.name):
            owner = self._owner_of(claim)
            is_stranger = bool(owner.job) and owner.job != self._owner.job and claim.job != self._mine.job
            is_alive = is_stranger and self._is_touched(claim, owner)
            if refuses(owner, self._owner, is_claimed=is_claimed, is_alive=is_alive):
                raise self._taken_by(owner)

    def _is_touched(self, claim: _Claim, owner: Owner) -> bool:
        folder = self._directory / claim.name
        announce(
            f"{owner} has written into {self._directory}: waiting {_OBSERVED_SECONDS:.0f} s to see whether "
            "it still does"
        )
        before = self._files.changed(folder)
        self.patience.sleep(_OBSERVED_SECONDS)
        return self._files.changed(folder) not in (before, None)

    def _owner_of(self, claim: _Claim) -> Owner:
        """Return whose a claim is; the key alone where it doesn't say so, as those of earlier versions."""
        try:
            facts = json.loads(self._files.read(self._directory / claim.name / _OWNER, _LARGEST_OWNER))
            job, uid, before = str(facts["job"]), str(facts["uid"]), tuple(map(str, facts["before"]))
        except (*NOT_THERE, ValueError, KeyError, TypeError, RecursionError):
            return Owner(claim.job)
        return Owner(
            claim.job, job if _JOB.fullmatch(job) else "", uid if _UID.fullmatch(uid) else "", before
        )

    def _record(self, others: frozenset[_Claim]) -> None:
        """Write into the claim whose it is, and from which jobs it takes the folder over."""
        owners = [self._owner_of(claim) for claim in sorted(others, key=lambda claim: claim.name)]
        keys = [key for owner in owners for key in (*owner.before, owner.key)]
        known = self._recorded.before if self._recorded else ()
        before = tuple(key for key in dict.fromkeys((*known, *keys)) if key != self._owner.key)
        mine = replace(self._owner, before=before[-_REMEMBERED:])
        if mine != self._recorded:
            facts = {"job": mine.job, "uid": mine.uid, "before": mine.before}
            self._files.write(self.folder / f"{TEMPORARY}{_OWNER}", json.dumps(facts).encode())
            self._files.rename(self.folder / f"{TEMPORARY}{_OWNER}", self.folder / _OWNER)
            self._recorded = mine

    def _make(self) -> None:
        self._refuse_emptied()
        self._is_first = self._is_first or self._files.kind(self._directory) is None
        self._files.make_folder(self._directory)
        self._refuse_newer(self._claims())
        try:
            if self._is_unsure:  # an earlier try may have made it; if another process did, that one ends
                self._files.remove_folder(self.folder)
            if self._files.kind(self.folder) not in (None, "folder"):
                self._files.remove(self.folder)
            self._files.create_folder(self.folder)
        except OSError as error:
            if error.errno in TAKEN:
                raise Fenced(f"another process writes {self._directory} as {self._mine.generation}") from None
            self._is_unsure = True
            raise
        self._is_made = True

    def _revoke_others(self) -> None:
        """Remove the other claims, and check that a listing made afterwards shows none.

        Two writers that start at the same moment make their claims before they list: one sees the other.
        """
        trouble = self._try_to_revoke()
        if trouble is not None:
            path, error = trouble
            raise StorageUnavailable(
                f"the output can't be written safely: {path}, an earlier writer's claim, can't be removed "
                f"({error}), and that writer may still publish. Make sure that it has ended and that no file "
                "there is open; then remove it"
            ) from error

    def _try_to_revoke(self) -> tuple[Path, OSError] | None:
        """Try to remove the other claims; return the first that is left, and the error."""
        trouble: tuple[Path, OSError] | None = None
        others = self._claims(removing=True) - {self._mine}
        self._refuse_newer(others)
        try:
            self._record(others)
        except FileNotFoundError:  # either this claim is gone, or what it was to read
            self.check()
            raise
        for other in sorted(others, key=lambda claim: claim.name):
            try:
                self._move_in(other)
            except OSError as error:
                trouble = trouble or (self._directory / other.name, error)
        for name in self._files.names(self.folder):
            if _CLAIM.fullmatch(name):
                try:
                    self._delete(self.folder / name)
                except OSError as error:
                    trouble = trouble or (self.folder / name, error)
        left = self._claims() - {self._mine}
        if left and trouble is None:  # made meanwhile
            trouble = self._directory / min(claim.name for claim in left), OSError("it is still listed")
        return trouble

    def _move_in(self, other: _Claim) -> None:
        try:
            self._files.rename(self._directory / other.name, self.folder / other.name)
        except FileNotFoundError:
            self.check()  # either the other claim is gone, or ours

    def _delete(self, claim: Path) -> None:
        """Delete a claim that was moved in; each part is moved out of it first.

        Its writer may hold the claim's handle on another NFS client and rename a checkpoint out of it right
        now. Only one of the two renames finds it; a published checkpoint is not deleted through the claim.
        """
        if self._files.kind(claim) not in (None, "folder"):
            self._files.remove(claim)
            return
        self._save_set_aside(claim)
        for name in self._files.names(claim):
            if _SET_ASIDE.fullmatch(name):
                continue  # it appeared meanwhile: the next try puts it back
            is_claim = _CLAIM.fullmatch(name)  # that writer was about to delete it
            inner = self.folder / (name if is_claim else f"doomed-{claim.name}-{name}")
            with contextlib.suppress(FileNotFoundError):
                self._files.rename(claim / name, inner)
            if is_claim:
                self._delete(inner)
            else:
                self._files.remove(inner)
        self._files.remove_folder(claim)

    def _save_set_aside(self, claim: Path) -> None:
        """Put back what the claim's writer was setting aside when it ended: it must not be deleted."""
        for name in self._files.names(claim):
            match = _SET_ASIDE.fullmatch(name)
            if match is not None:
                folder = self._directory if match[1] == self._directory.name else self._directory / match[1]
                self._files.rename(claim / name, folder / match[2])

    def _settle(self) -> None:
        """Wait until a listing shows all that an earlier writer has published."""
        seconds = self._listing_delay(self._directory)
        if seconds:
            self.patience.sleep(seconds)
            # A new entry from this machine makes its kernel request the folder from the server again.
            self._files.remove(self.folder / "listing")
            self._files.create_folder(self.folder / "listing")
            self._files.rename(self.folder / "listing", self._directory / f"{TEMPORARY}{self._mine.name}")
            self._files.remove(self._directory / f"{TEMPORARY}{self._mine.name}")

    def _claims(self, *, removing: bool = False) -> frozenset[_Claim]:
        """Return all claims; with `removing` the names that are certainly none are removed."""
        claims = set()
        for name in self._files.names(self._directory):
            if (match := _CLAIM.fullmatch(name)) is None:
                continue
            if self._files.kind(self._directory / name) in (None, "folder"):  # a listing may be the newer one
                claims.add(_Claim(match[3], Generation(int(match[1]), int(match[2])), name))
            elif removing:
                self._files.remove(self._directory / name)
        return frozenset(claims)

    def _refuse_newer(self, claims: frozenset[_Claim]) -> None:
        newer = [claim.generation for claim in claims if claim.job == self._mine.job]
        if newer and max(newer) > self._mine.generation:
            raise Fenced(
                f"a newer start of this job ({max(newer)}) writes {self._directory} now; "
                f"this one ({self._mine.generation}) leaves it alone"
            )

    def _refuse_emptied(self) -> None:
        # A volume that is no longer mounted leaves an empty folder on the machine's own disk.
        if self._trained_step is not None and not self._files.names(self._directory):
            raise StorageUnavailable(
                f"{self._directory} is empty or not there, and an earlier start of this job has written into "
                f"it, up to step {self._trained_step}: is the output's volume mounted?"
            )

    def _explain_loss(self, claims: frozenset[_Claim]) -> NoReturn:
        other = next((claim for claim in claims if claim.job != self._mine.job), None)
        if other is None:
            raise gone(self.folder)
        owner = Owner(other.job)
        with contextlib.suppress(OSError):
            owner = self._owner_of(other)
        raise self._taken_by(owner)

    def _taken_by(self, owner: Owner) -> OutputTaken:
        return OutputTaken(
            f"{owner} writes {self._directory}, and {self._owner.job or 'this job'} leaves it alone: two "
            "jobs that run at the same time need different names or output folders. To continue there, "
            "create this job again once the other one has ended"
        )


def build_fence(task: Task, environment: Environment) -> Fence | None:
    """Return the fence of a writer whose start has a generation, with or without an agent; else None.

    A process has only one: the library and the support for plain scripts write in turns.
    """
    if environment.generation is None or not task.is_writer:
        return None
    return _fence_of_this_process(environment, environment.generation)


@functools.lru_cache(maxsize=1)
def _fence_of_this_process(environment: Environment, generation: Generation) -> Fence:
    fence = Fence(
        environment.checkpoint_dir,
        generation,
        environment.uid,
        build_files(environment),
        job=environment.job,
        trained_step=environment.reported_step,
    )
    fence.keep_touched()
    return fence


# Atomic changes of what readers see, made only while the writer's claim exists.


class Publisher:
    """The writer of one folder; unpublished work lies in the claim, or beside under a temporary name."""

    def __init__(self, directory: Path, files: Files, fence: Fence | None) -> None:
        self._directory = directory
        self._files = files
        self._fence = fence
        self._is_made = False

    def prepare(self) -> None:
        """Claim and make the folder, prove that it is writable, remove what a crash left.

        The folder is made only once: if the volume is unmounted later, none is made below the mount point.
        Raises OSError or TrainerError if it can't be written, or belongs to another writer.
        """
        if self._fence is not None:
            self._fence.claim()
        self._make_once()
        self.check()
        for name in self._files.names(self._directory):
            if name.startswith(TEMPORARY + DAMAGED):
                self.move(self._directory / name, self._directory / name.removeprefix(TEMPORARY))
            elif name.startswith(TEMPORARY):
                self._files.remove(self._directory / name)
        if self._fence is not None:
            self._files.tidy(self._fence.folder)
        probe = self.place("probe")
        self._files.write(probe, b"")
        self._files.remove(probe)

    def check(self) -> None:
        """Raise OSError or TrainerError unless the claim (without a fence: the folder) still exists."""
        if self._fence is not None:
            self._fence.check()
        elif self._is_made and self._files.kind(self._directory) is None:
            raise gone(self._directory)

    def place(self, name: str) -> Path:
        """Return the path of something before it is published and after it is dropped."""
        if self._fence is None:
            return self._directory / (TEMPORARY + name)
        return self._fence.folder / f"{self._directory.name}-{name}"

    def new_folder(self, name: str) -> Path:
        """Make an empty folder to be filled and published."""
        place = self.place(name)
        if self._fence is None:
            self._make_once()
        self._files.remove(place)
        self._files.create_folder(place)  # not its parent: if that is missing, something is wrong
        return place

    def move(self, source: Path, target: Path) -> None:
        """Rename from or to a `place`: every change that readers see is such a rename."""
        self.check()
        self._files.rename(source, target)

    def publish(self, target: Path, fill: Callable[[Path], None], *, replaces: bool = True) -> None:
        """Have `fill` write into a new folder, and rename that to `target`, on the same volume.

        Raises OSError if it can't be written, or if `target` exists and `replaces` is false.
        """
        place = self.new_folder(target.name)
        try:
            fill(place)
            if replaces and self._files.kind(target) is not None:
                self.discard(target)
            self.move(place, target)
            self._files.sync(target.parent)
        except Exception:
            with contextlib.suppress(OSError):  # the next start removes it
                self._files.remove(place)
            raise

    def replace(self, path: Path, text: str) -> None:
        """Write a small file so that a reader sees the old or the new one, never a part."""
        place = self.place(path.name)
        self._files.write(place, text.encode())
        self.move(place, path)
        self._files.sync(path.parent)

    def discard(self, path: Path) -> None:
        """Rename, then remove: a half-removed checkpoint must not look like a whole one."""
        doomed = self.place("old-" + path.name)
        self._files.remove(doomed)
        self.move(path, doomed)
        with contextlib.suppress(OSError):  # no reader sees it, and the next start removes the rest
            self._files.remove(doomed)

    def _make_once(self) -> None:
        if not self._is_made:
            self._files.make_folder(self._directory)
            self._is_made = True

    def explained(self, error: Exception, path: Path, *, was_writable: bool) -> Exception:
        """Return what a failure means: a missing path may lie in a claim or on a volume that is gone."""
        if isinstance(error, TrainerError):
            return error
        try:
            with contextlib.suppress(OSError):
                self.check()
        except TrainerError as lost:
            return lost
        return explain_write_error(error, path, was_writable=was_writable)
