"""Who may write into a folder of checkpoints: the newest start of the job, and nobody else.

A process that is stopped, or cut off by a partition, doesn't know that it has a successor. When it wakes up
it goes on where it stood, perhaps right before it publishes a checkpoint. So a claim is more than a mark to
be looked at before each write, which would leave a window between the look and the write:

* A claim is a folder, `.claim-<incarnation>.<attempt>-<job>`, and the writer's place of work. Every change
  of what readers see is one rename out of it (a checkpoint, the final marker, TensorFlow's state file) or
  into it (one that is dropped). A path that begins with the claim leads nowhere once the claim is gone.
* A successor makes its own claim, and then takes all others away: by a rename into its own, so that of two
  that do it to each other one alone succeeds; then what was in them is deleted. It reads and writes nothing
  before that.
* Newer is the greater epoch of one job. Between two jobs epochs say nothing; the later one takes over.

Guaranteed, on a file system where mkdir and rename are atomic and looked-up paths are current (a local
disk; others that keep to POSIX): once `claim` has returned, no operation of an older writer changes anything
that a reader sees, wherever it was interrupted. It raises `Fenced` instead. NFS may resolve a path from its
cache; there the same follows from the deletion, which the server knows of. What remains on a mounted bucket,
which copies where others rename, is the check before each of these operations: a window as long as one.
Not covered is what a user's script writes by itself. There Keras's writers check before they begin.
"""

from __future__ import annotations

import functools
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from trainjob_trainer.checkpoint.files import Files, explain_write_error, gone
from trainjob_trainer.environment import Environment
from trainjob_trainer.epoch import Epoch
from trainjob_trainer.errors import Fenced, OutputTaken, OutputUnwritable
from trainjob_trainer.task import Task

_CLAIM = re.compile(r"\.claim-([0-9]+)\.([0-9]+)-([0-9a-f]{8})")


@dataclass(frozen=True)
class _Claim:
    job: str
    epoch: Epoch
    name: str


class Fence:
    """One writer's claim to a folder."""

    def __init__(
        self,
        directory: Path,
        epoch: Epoch,
        job_uid: str,
        files: Files | None = None,
        *,
        trained_step: int | None = None,
    ) -> None:
        """Claim nothing yet.

        Args:
            directory: of the checkpoints; it need not exist yet.
            epoch: of this start.
            job_uid: of this job; epochs of other jobs are not compared with.
            files: the file operations, for tests.
            trained_step: a step that an earlier start has taken with this folder, if one is known of.
        """
        job = f"{zlib.crc32(job_uid.encode()):08x}"
        self._mine = _Claim(job, epoch, f".claim-{epoch}-{job}")
        self._directory = directory
        self._files = files or Files()
        self._trained_step = trained_step
        self._held = False

    @property
    def folder(self) -> Path:
        """The place for what is not published yet."""
        return self._directory / self._mine.name

    def claim(self) -> None:
        """Take the folder over; again, it only checks.

        Raises:
            Fenced: a newer start of this job has claimed it, or another process with this very epoch.
            OutputTaken: another job took it over meanwhile.
            OutputUnwritable, OutputFull: the claim can't be made; or nothing is there of what is known to
                have been there.
        """
        try:
            self.check() if self._held else self._take()
        except OSError as error:
            raise explain_write_error(error, self.folder) or error from error
        self._held = True

    def check(self) -> None:
        """Make sure that the claim stands.

        Raises:
            Fenced, OutputTaken: as `claim`.
            OutputUnwritable: the claim is gone, and no successor has taken it away.
            OSError: the folder can't be read.
        """
        claims = self._claims()
        self._refuse_newer(claims)
        if self._mine not in claims:
            self._explain_loss(claims)

    def _take(self) -> None:
        self._refuse_emptied()
        self._files.make_folder(self._directory)
        self._refuse_newer(self._claims())
        try:
            self._files.create_folder(self.folder)
        except FileExistsError:
            raise Fenced(f"another process writes {self._directory} as {self._mine.epoch}") from None
        # Of two that come at the same moment each has made its claim before it looks: one sees the other.
        others = self._claims() - {self._mine}
        try:
            self._refuse_newer(others)
        except Fenced:
            self._files.remove(self.folder)
            raise
        for other in sorted(others, key=lambda claim: claim.name):
            self._revoke(other)

    def _revoke(self, other: _Claim) -> None:
        doomed = self.folder / other.name
        try:
            self._files.rename(self._directory / other.name, doomed)
        except FileNotFoundError:
            self.check()  # it is gone, or else ours is
            return
        self._files.remove(doomed)

    def _claims(self) -> frozenset[_Claim]:
        found = (_CLAIM.fullmatch(name) for name in self._files.names(self._directory))
        return frozenset(_Claim(m[3], Epoch(int(m[1]), int(m[2])), m[0]) for m in found if m)

    def _refuse_newer(self, claims: frozenset[_Claim]) -> None:
        newer = [claim.epoch for claim in claims if claim.job == self._mine.job]
        if newer and max(newer) > self._mine.epoch:
            raise Fenced(
                f"a newer start of this job ({max(newer)}) writes {self._directory} now; "
                f"this one ({self._mine.epoch}) leaves it alone"
            )

    def _refuse_emptied(self) -> None:
        # Where a volume is no longer mounted an empty folder is left, on the disk of the machine.
        if self._trained_step is not None and not self._files.names(self._directory):
            raise OutputUnwritable(
                f"{self._directory} is empty or not there, and an earlier start of this job has written into "
                f"it, up to step {self._trained_step}: is the output's volume mounted?"
            )

    def _explain_loss(self, claims: frozenset[_Claim]) -> NoReturn:
        if any(claim.job != self._mine.job for claim in claims):
            raise OutputTaken(
                f"another job has taken over {self._directory}: two jobs that run at the same time need "
                "names or output folders of their own"
            )
        raise gone(self.folder)


def build_fence(task: Task, environment: Environment) -> Fence | None:
    """The fence of a writer that belongs to a job; without one nobody takes its place.

    A process has one: the library, and the help for scripts that don't know it, write in turns.
    """
    if environment.epoch is None or not task.is_writer:
        return None
    return _fence_of_this_process(
        environment.checkpoint_dir, environment.epoch, environment.uid, environment.reported_step
    )


@functools.lru_cache(maxsize=1)
def _fence_of_this_process(directory: Path, epoch: Epoch, job_uid: str, trained_step: int | None) -> Fence:
    return Fence(directory, epoch, job_uid, trained_step=trained_step)
