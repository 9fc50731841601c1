"""Two writers and an evaluator of one folder, in any order, on simulated file systems that fail.

A script lets one process after the other make some calls, and then has one fail, ends a process, cuts the
power or lets time pass. A writer is a pod: what ends in it is started again by its agent, as the next
attempt, and the second one, B, is a successor that its predecessor A may not know of. Afterwards nothing
fails any more, and what can still run runs to its end. After each change the server's own state is looked at:

* The newest whole checkpoint is never lost, and one that was reported survives a power cut.
* No step is published twice with different contents, by whomever.
* A start goes on from no step before the newest that was there, or before what was reported.
* Nothing that is whole is set aside, and the final marker's checkpoint is there.
* What an evaluator reads is what one writer has published, as a whole, and it comes to an end.
* Whatever ends a process is an error that people are told what to do about.

`pytest tests/trainer/test_storage_simulation.py --hypothesis-profile=thousands` draws other scripts.
"""

from __future__ import annotations

import errno
import json
import threading
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, note, settings
from hypothesis import strategies as st

from support.trainer.filesystem import (
    Bucket,
    BucketMount,
    Handle,
    IndexedBucket,
    LocalMount,
    Mount,
    MountpointMount,
    NfsMount,
    ObjectsMount,
    Tree,
    fail,
    unpacked,
)
from trainjob_trainer.checkpoint.fence import Fence
from trainjob_trainer.checkpoint.files import RETRY_SECONDS
from trainjob_trainer.checkpoint.snapshot import NamedArray
from trainjob_trainer.checkpoint.store import CheckpointStore, FinalMarker
from trainjob_trainer.environment import Generation
from trainjob_trainer.errors import CheckpointUnreadable, Fenced, OutputUnwritable, TrainerError
from trainjob_trainer.evaluation import follow
from trainjob_trainer.resume import ResumePlan, choose_start, plan_of_loop

FOLDER = Path("/output/checkpoints")
TOTAL, KEEP, JOB = 4, 2, "job"
SECONDS_A_CALL = 0.01
MOST_CALLS = 30_000
OPENING = frozenset(["listdir", "open", "create", "fsync"])
"""Calls that need a file descriptor."""
CHANGING = frozenset(
    ["mkdir", "create", "write", "fsync", "rename", "unlink", "rmdir", "put", "put_if", "delete"]
)
"""Calls whose answer can fail, or get lost, after the work is done."""


class Crashed(BaseException):
    """The process is gone; nothing of it catches this."""


@dataclass(frozen=True)
class Fault:
    """What the next calls of a process meet with."""

    number: int
    is_after: bool = False
    count: int = 1

    @property
    def is_resent(self) -> bool:
        return self.number == 0

    def hits(self, what: str, mount: Mount) -> bool:
        if self.is_resent:
            return mount.resends and what in CHANGING
        needed = {errno.EMFILE: OPENING, errno.ENOSPC: CHANGING}.get(self.number)
        if self.number not in mount.errors or (needed is not None and what not in needed):
            return False
        return not self.is_after or what in CHANGING


@dataclass(frozen=True)
class Kill:
    """The process ends at once; its agent starts the next when it is its turn."""


@dataclass(frozen=True)
class PowerCut:
    """All processes end, and a disk loses what wasn't synced.

    Attributes:
        survivors: how many of the changes that weren't are on it all the same.
        keeps_data: whether bytes that weren't are.
    """

    survivors: int
    keeps_data: bool


@dataclass(frozen=True)
class Wait:
    """Nobody does anything for so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Run:
    """A process makes so many calls; then something happens to it, or to all."""

    who: str
    calls: int
    then: Fault | Kill | PowerCut | Wait | None = None


class Process(threading.Thread):
    """One life of a program. It runs while it has calls left, and the test waits meanwhile."""

    def __init__(self, stage: Stage, who: str, mount: Mount, program: Callable[[Process], None]) -> None:
        super().__init__(daemon=True)
        self.stage, self.who, self.mount, self.program = stage, who, mount, program
        self.files = mount.files(self._call, sleep=self.sleep)
        self.calls_left, self.wakes_at = 0, 0.0
        self.faults: list[Fault] = []
        self.is_killed = self.is_over = False
        self.error: BaseException | None = None
        self._turn = threading.Semaphore(0)

    def go_on(self, calls: int) -> None:
        """Return when it has made so many calls, sleeps, or is over."""
        self.calls_left = calls
        if not self.is_alive():
            self.start()
        self._turn.release()
        self.stage.turn.acquire()
        if self.is_over:
            self.join()

    def kill(self) -> None:
        if self.is_over:
            return
        self.is_killed = True
        if self.is_alive():
            self.go_on(0)
        self.is_over, self.error = True, Crashed()

    def run(self) -> None:
        self._turn.acquire()
        try:
            if not self.is_killed:
                self.program(self)
        except BaseException as error:  # noqa: BLE001 - it is the test's to judge
            self.error = error
        self.is_over = True
        self.stage.turn.release()

    def sleep(self, seconds: float) -> None:
        self.wakes_at = self.stage.now + seconds
        self._wait()

    def _wait(self) -> None:
        self.stage.turn.release()
        self._turn.acquire()

    def _call(self, what: str, path: Path, call: Callable[[], Any]) -> Any:
        if self.calls_left <= 0 and not self.is_killed:
            self._wait()
        if self.is_killed:
            raise Crashed
        self.calls_left -= 1
        self.stage.count()
        self.mount.deliver()
        fault = next((fault for fault in self.faults if fault.hits(what, self.mount)), None)
        if fault is not None:
            self.faults.remove(fault)
        try:
            return self._met(fault, what, path, call)
        except OSError as error:
            self.stage.log[-1] += f" -> {errno.errorcode.get(error.errno or 0)}"
            raise
        finally:
            self.stage.look()

    def _met(self, fault: Fault | None, what: str, path: Path, call: Callable[[], Any]) -> Any:
        self.stage.log.append(f"{self.stage.now:7.2f} {self.who} {what} {path}")
        if fault is None:
            return call()
        self.stage.log[-1] += f" [{fault}]"
        if fault.is_resent:
            self.mount.is_resent = True
            try:
                return call()
            finally:
                self.mount.is_resent = False
        if fault.is_after:
            result = call()
            if isinstance(result, Handle):
                self.mount.close(result)
        elif fault.number == errno.ETIMEDOUT:
            self.mount.delay(what, call, fault.count)
        return fail(fault.number, path)


@dataclass
class Pod:
    """The writer's, whose agent starts it again."""

    incarnation: int
    mount: Mount
    lives: list[Process] = field(default_factory=list)
    is_over: bool = False

    @property
    def name(self) -> str:
        return "ABCDEFGHIJ"[self.incarnation - 1]


class Stage:
    """Everything there is, and what has been seen of it."""

    def __init__(
        self,
        server: Any,
        build: Callable[[Stage], Mount],
        *,
        shares: bool = False,
        has_power_cuts: bool = False,
    ) -> None:
        self.now, self.calls = 1000.0, 0
        self.turn = threading.Semaphore(0)
        self.server, self._build, self.has_power_cuts = server, build, has_power_cuts
        self.log: list[str] = []
        self.broken: list[str] = []
        self.claimed: list[tuple[int, int]] = []
        self.reported = self.newest = 0
        self.published: dict[int, set[float]] = {}
        self.finished = self.is_scored = False
        self._revision = -1
        self.pods = [Pod(1, build(self))]
        self._evaluator_mount = self.pods[0].mount if shares else build(self)
        self.evaluator: Process | None = None

    # What happens

    def play(self, script: Sequence[Run]) -> None:
        for run in script:
            process = self._process(run.who)
            if process is not None and process.wakes_at <= self.now:
                process.go_on(run.calls)
                process = self._process(run.who)
            match run.then:
                case Wait(seconds):
                    self.now += seconds
                case PowerCut(survivors, keeps_data) if self.has_power_cuts:
                    self._cut_power(survivors, keeps_data)
                case Fault() as fault if process is not None:
                    process.faults = [fault] * fault.count
                case Kill() if process is not None:
                    process.kill()
                case _:
                    pass

    def finish(self) -> None:
        """From here on nothing fails: a pod gets to the end, and so does the evaluator."""
        while not self.broken:
            if self.calls >= MOST_CALLS:
                self.broken.append("it doesn't come to an end")
                return
            processes = [self._process(pod.name) for pod in reversed(self.pods)] + [self._process("Z")]
            alive = [process for process in processes if process is not None]
            if not alive and self.finished and self.is_scored:
                return
            if all(pod.is_over for pod in self.pods) and not self.finished:
                self._start_pod()
            for process in alive:
                process.faults = []
            awake = [process for process in alive if process.wakes_at <= self.now]
            if not awake and alive:
                self.now = min(process.wakes_at for process in alive)
            for process in awake:
                process.go_on(20)
            if not alive and self.finished:
                self.broken.append("the evaluator has ended without the final one")

    def close(self) -> None:
        for process in [*(life for pod in self.pods for life in pod.lives), self.evaluator]:
            if process is not None:
                process.kill()

    def count(self) -> None:
        self.now += SECONDS_A_CALL
        self.calls += 1
        if self.calls >= MOST_CALLS or self.broken:
            raise Crashed

    def _cut_power(self, survivors: int, keeps_data: bool) -> None:
        self.close()
        self.server.lose_power(survivors, keeps_data)
        self.log.append(f"{self.now:7.2f} power cut")
        whole = self._whole(self.server.contents())
        self.newest, self._revision = max(whole, default=0), -1
        self.published = {step: it for step, it in self.published.items() if step in whole}
        if self.newest < self.reported:
            self.broken.append(f"step {self.reported} was reported, and {self.newest} survived")
        self.look()

    def _process(self, who: str) -> Process | None:
        """The process that runs in a pod, or is to be started in it; None if it has ended for good."""
        if who == "Z":
            return self._evaluation()
        number = "ABCDEFGHIJ".index(who)
        while len(self.pods) <= number:
            self._start_pod()
        pod = self.pods[number]
        if not pod.is_over and pod.lives and pod.lives[-1].is_over:
            self._judge_end(pod, pod.lives[-1])
        if pod.is_over:
            return None
        if not pod.lives or pod.lives[-1].is_over:
            epoch = Generation(pod.incarnation, len(pod.lives) + 1)
            reported = self.reported or None  # which the agent and the controller know of
            pod.lives.append(
                Process(
                    self, f"{pod.name}{epoch.attempt}", pod.mount, lambda it: self._train(it, epoch, reported)
                )
            )
        return pod.lives[-1]

    def _start_pod(self) -> None:
        if len(self.pods) >= 8:
            self.broken.append("no pod gets to the end")
            return
        self.pods.append(Pod(len(self.pods) + 1, self._build(self)))

    def _judge_end(self, pod: Pod, life: Process) -> None:
        error = life.error
        pod.is_over = error is None or isinstance(error, Fenced) or len(pod.lives) >= 12
        if error is not None and not isinstance(error, Crashed | TrainerError):
            self.broken.append(f"{life.who} ended with {error!r}")
        if error is not None and not isinstance(error, Crashed):
            self.log.append(f"{self.now:7.2f} {life.who} ended: {type(error).__name__}: {error}")

    def _evaluation(self) -> Process | None:
        if self.evaluator is not None and self.evaluator.is_over:
            error = self.evaluator.error
            if error is None:
                return None
            if not isinstance(error, Crashed | TrainerError):
                self.broken.append(f"the evaluator ended with {error!r}")
            self.log.append(f"{self.now:7.2f} {self.evaluator.who} ended: {type(error).__name__}: {error}")
            self.evaluator = None
        if self.evaluator is None:
            self.evaluator = Process(self, "Z", self._evaluator_mount, self._evaluate)
        return self.evaluator

    # What the programs do

    def _train(self, process: Process, epoch: Generation, reported: int | None) -> None:
        fence = Fence(
            FOLDER,
            epoch,
            JOB,
            process.files,
            trained_step=reported,
            listing_delay=lambda _: process.mount.listing_delay,
            sleep=process.sleep,
        )
        store = CheckpointStore(
            FOLDER, KEEP, now=lambda: self.now, files=process.files, fence=fence, sleep=process.sleep
        )
        store.prepare()
        self.claimed.append((epoch.incarnation, epoch.attempt))
        least = max(self.newest, reported or 0)
        if plan_of_loop(store, TOTAL, JOB) is not ResumePlan.TRAIN:
            self.finished = True
            return
        start = choose_start(store, reported)
        if start < least:
            self.broken.append(f"{process.who} goes on from step {start}, and {least} was there")
        if start:
            store.read(store.at(start))
        store.clear_final()
        for step in range(start + 1, TOTAL + 1):
            store.save(step, 0, groups(epoch, step), JOB)
            self.reported = max(self.reported, step)
        store.mark_final(FinalMarker(TOTAL, JOB))
        self.finished = True

    def _evaluate(self, process: Process) -> None:
        store = CheckpointStore(FOLDER, KEEP, files=process.files, sleep=process.sleep)
        for checkpoint, is_final in follow(store, 1.0, job_uid=JOB, sleep=process.sleep):
            try:
                found = store.read(checkpoint)
            except CheckpointUnreadable:
                if is_final:
                    raise
                continue
            values = {array.name: float(array.value) for array in found["model"]}
            if values["step"] != checkpoint.step or values["writer"] not in self.published.get(
                checkpoint.step, ()
            ):
                self.broken.append(f"the evaluator sees {values} as step {checkpoint.step}")
            self.is_scored = is_final

    # What is seen

    def look(self) -> None:
        """What a reader sees on the server, with no cache."""
        if self.server.revision == self._revision:
            return
        self._revision = self.server.revision
        contents = self.server.contents()
        whole = self._whole(contents)
        for step, writer in whole.items():
            known = self.published.setdefault(step, set())
            known.add(writer)
            if len(known) > 1:
                self.broken.append(f"step {step} was published twice, as {known}")
        if max(whole, default=0) < self.newest:
            self.broken.append(f"step {self.newest} is lost, {sorted(whole)} are left")
        self.newest = max(whole, default=0)
        for path in contents:
            if path.startswith(f"{FOLDER}/damaged-") and checkpoint_in(contents, path) is not None:
                self.broken.append(f"{path} is whole")
        final = contents.get(f"{FOLDER}/final.json")
        if final is not None and json.loads(final)["step"] not in whole:
            self.broken.append("the final checkpoint isn't there")

    def _whole(self, contents: Mapping[str, bytes | None]) -> dict[int, float]:
        found = {}
        for path in contents:
            if path.startswith(f"{FOLDER}/step-") and path.count("/") == 3:
                checkpoint = checkpoint_in(contents, path)
                if checkpoint is not None:
                    found[checkpoint[0]] = checkpoint[1]
        return found


def checkpoint_in(contents: Mapping[str, bytes | None], folder: str) -> tuple[int, float] | None:
    """The step and the writer of a whole checkpoint."""
    parts = [
        contents.get(f"{folder}/{name}")
        for name in ("manifest.json", "variables.index", "variables.data-00000-of-00001")
    ]
    manifest, index, data = parts
    if manifest is None or index is None or data is None:
        return None
    return judged(manifest, index, data)


def judged(manifest: bytes, index: bytes, data: bytes) -> tuple[int, float] | None:
    try:
        facts = json.loads(manifest)
        crc = facts.pop("crc32")
        listed = json.loads(index[4:])
        values = {key.rpartition("/")[2]: float(it) for key, it in unpacked(index, data, listed).items()}
    except Exception:  # noqa: BLE001 - it isn't whole, for whichever reason
        return None
    is_whole = (
        crc == zlib.crc32(json.dumps(facts, sort_keys=True).encode())
        and facts["files"]["variables.index"]["crc32"] == zlib.crc32(index)
        and facts["files"]["variables.data-00000-of-00001"]["bytes"] == len(data)
        and facts["step"] == values["step"]
    )
    return (facts["step"], values["writer"]) if is_whole else None


def groups(epoch: Generation, step: int) -> dict[str, list[NamedArray]]:
    writer = epoch.incarnation * 100 + epoch.attempt
    return {"model": [NamedArray("writer", np.float32(writer)), NamedArray("step", np.float32(step))]}


WRITERS = ("A", "B")
EVERYBODY = (*WRITERS, "Z")
NUMBERS = (errno.EIO, errno.EMFILE, errno.ESTALE, errno.ETIMEDOUT, errno.ENOSPC, 0)
FAULTS = st.builds(Fault, st.sampled_from(NUMBERS), st.booleans(), st.sampled_from((1, 2, 30)))
HAPPENINGS = st.one_of(
    st.none(),
    FAULTS,
    st.just(Kill()),
    st.builds(Wait, st.sampled_from((5.0, 61.0))),
    st.builds(PowerCut, st.integers(0, 4), st.booleans()),
)
RUNS = st.builds(Run, st.sampled_from(EVERYBODY), st.integers(1, 60), HAPPENINGS)
ZOMBIES = st.tuples(
    st.builds(Run, st.just("A"), st.integers(20, 160)),
    st.builds(Run, st.just("B"), st.integers(1, 40), FAULTS),
    st.builds(Run, st.just("B"), st.integers(1, 60)),
    st.builds(Run, st.just("A"), st.integers(1, 60)),
).map(list)
"""A writer is cut off in the midst of something, and wakes up when the next one has claimed the folder."""
SCRIPTS = st.builds(
    lambda first, rest: [*first, *rest], st.one_of(st.just([]), ZOMBIES), st.lists(RUNS, max_size=25)
)

HALF = settings(max_examples=settings.default.max_examples // 2)
"""Of what a profile asks for: an example is long here."""


def check(stage: Stage, script: Sequence[Run], only: str = "") -> None:
    """Play a script to its end; of what is broken, look at what begins with `only`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of damaged checkpoints, which there are
        try:
            stage.play(script)
            if not stage.broken:
                stage.finish()
        finally:
            stage.close()
    broken = [what for what in stage.broken if what.startswith(only)]
    if broken:
        note("\n".join(stage.log[-120:]))
    assert broken == []


@example(script=[Run("B", 6, Kill()), Run("B", 58, PowerCut(1, True))])  # killed before it could sync
@HALF
@given(script=SCRIPTS)
def test_nothing_is_lost_on_a_disk_that_loses_power(script: Sequence[Run]) -> None:
    disk = Tree()
    check(Stage(disk, lambda _: LocalMount(disk), has_power_cuts=True), script)


@pytest.mark.parametrize("lists_anew", [True, False], ids=["cto", "nocto"])
@example(  # published out of a claim while that is deleted
    script=[Run("A", 146), Run("B", 16, Fault(errno.ETIMEDOUT)), Run("B", 1), Run("A", 14)], shares=False
)
@HALF
@given(script=SCRIPTS, shares=st.booleans())
def test_nothing_is_lost_on_nfs(lists_anew: bool, shares: bool, script: Sequence[Run]) -> None:
    """With `shares`, the evaluator runs on the first writer's machine, and its open files stay there."""
    tree = Tree()
    check(
        Stage(tree, lambda stage: NfsMount(tree, lambda: stage.now, lists_anew=lists_anew), shares=shares),
        script,
    )


@HALF
@given(script=SCRIPTS)
def test_nothing_is_lost_in_a_bucket_with_one_writer(script: Sequence[Run]) -> None:
    """Folders are copied piece by piece there, so a crash leaves parts, which nobody takes for whole."""
    check(bucket_stage(), [replace(run, who="A") if run.who == "B" else run for run in script])


@HALF
@given(script=SCRIPTS)
def test_no_reader_takes_a_part_for_a_checkpoint_in_a_bucket_with_two_writers(script: Sequence[Run]) -> None:
    """All that holds there: nothing in such a bucket is atomic for a folder.

    An older writer can be in the midst of copying when the newer one has claimed the folder, and copies on: a
    step may appear as the older one's, or as a mixture, which counts as damaged. `docs/contract.md` says so.
    """
    check(bucket_stage(), script, only="the evaluator")


@pytest.mark.parametrize("inline", [0, 1 << 16], ids=["objects", "index"])
@HALF
@given(script=SCRIPTS)
def test_nothing_is_lost_in_a_bucket_with_an_index(inline: int, script: Sequence[Run]) -> None:
    """Small files as objects of their own, or as a part of the index."""
    bucket = IndexedBucket()
    check(Stage(bucket, lambda _: ObjectsMount(bucket, inline=inline)), script)


def bucket_stage() -> Stage:
    bucket = Bucket()
    return Stage(bucket, lambda stage: BucketMount(bucket, lambda: stage.now, copies_folders=True))


@pytest.mark.parametrize(
    "build",
    [
        lambda bucket: BucketMount(bucket, lambda: 0.0, copies_folders=False),
        MountpointMount,
        lambda bucket: MountpointMount(bucket, allows_delete=True),
    ],
    ids=["gcsfuse", "mountpoint", "mountpoint --allow-delete"],
)
def test_a_mount_that_renames_no_folder_ends_the_first_start(build: Callable[[Bucket], Mount]) -> None:
    bucket = Bucket()
    stage = Stage(bucket, lambda _: build(bucket))
    stage.play([Run("A", 1000, Wait(max(RETRY_SECONDS)))] * (1 + len(RETRY_SECONDS)))
    (life,) = stage.pods[0].lives[:1]

    assert isinstance(life.error, OutputUnwritable)
    assert stage.published == {}
    stage.close()
