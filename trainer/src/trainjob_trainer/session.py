"""The state of this process, as its job and its script have it, and the seed that all replicas share."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import signal
import sys
import weakref
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from trainjob_trainer.checkpoint.bucket import build_files
from trainjob_trainer.checkpoint.fence import Fence, build_fence
from trainjob_trainer.checkpoint.files import Patience
from trainjob_trainer.checkpoint.store import CheckpointStore
from trainjob_trainer.contract.files import EVALUATIONS, HISTORY
from trainjob_trainer.edge import (
    EVALUATOR_STOPPED,
    StopRequest,
    exit_now,
    install_edge,
    is_listening,
    leave,
)
from trainjob_trainer.environment import Environment, setting
from trainjob_trainer.errors import Preempted, TrainerError
from trainjob_trainer.identity import Trainings
from trainjob_trainer.mirror import Mirror, pulled_mirror
from trainjob_trainer.reporting.machine import keep_freed_memory
from trainjob_trainer.reporting.progress import ProgressFile, announce, notice, storage_is_away
from trainjob_trainer.resume import end_if_finished
from trainjob_trainer.task import Task, of_the_job

if TYPE_CHECKING:
    from trainjob_trainer.keras.fit_call import FitCall, ModelRecord


@dataclass
class Session:
    """What the process of one replica is and has, whichever way it trains.

    Attributes:
        models: the record of each model that the script has called `fit` on.
        count: how many times the script has called `fit`.
        step: optimizer steps of all models of the script, earlier attempts included. It only grows, and shows
            whether training has come further than before a failure.
        call: the current `fit`.
        is_scoring: whether Keras's `evaluate` or `predict` is running in the evaluator.
        trained: the model of the last `fit` that has ended, on the writer.
        fence: the writer's claim to the checkpoints, if its start has a generation.
        mirror: of the folder of this replica, if a bucket keeps it.
        manages: whether `fit` resumes and saves: in a job, and within `train_and_evaluate`.
        settings: those of the script's code, by name; the environment's come before them.
    """

    task: Task
    environment: Environment
    progress: ProgressFile
    models: weakref.WeakKeyDictionary[Any, ModelRecord] = field(default_factory=weakref.WeakKeyDictionary)
    count: int = 0
    step: int = 0
    call: FitCall | None = None
    is_scoring: bool = False
    trained: Any = None
    stop: StopRequest = field(default_factory=StopRequest)
    fence: Fence | None = None
    mirror: Mirror | None = None
    manages: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    def setting(self, name: str) -> Any:
        """Return the value of a setting, as `environment.setting`."""
        return setting(name, os.environ, self.settings.get(name))

    @property
    def is_writer(self) -> bool:
        """Whether the files that this replica writes are the job's."""
        return self.task.is_writer

    @functools.cached_property
    def trainings(self) -> Trainings:
        """The trainings below the job's folder of checkpoints."""
        folder, keep = self.environment.checkpoint_dir, self.setting("keep")
        files = build_files(self.environment)
        return Trainings(CheckpointStore(folder, keep, files=files, fence=self.fence), self.fence)

    def claim_output(self, *, waits: bool = True) -> None:
        """Ensure, before anything is written, that this process may write it; as `Fence.claim`."""
        if self.fence is not None:
            self.fence.claim(waits=waits)


@contextlib.contextmanager
def assigned(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute to another value within the block: callbacks may nest calls of Keras."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


_instead: list[Session] = []


@contextlib.contextmanager
def running_as(session: Session) -> Iterator[None]:
    """Have `current_session` return this one in the block: the library knows more than the environment."""
    _instead.append(session)
    try:
        yield
    finally:
        _instead.pop()


def current_session() -> Session:
    """Return the session of this process, as its environment describes it.

    Raises InvalidConfiguration if TF_CONFIG or a TRAINJOB_* variable is malformed.
    """
    return _instead[-1] if _instead else _by_environment()


def forget_environment() -> None:
    """Have `current_session` read the environment again, which has changed."""
    _by_environment.cache_clear()


@functools.lru_cache(maxsize=1)
def _by_environment() -> Session:
    return _build({}, manages=bool(of_the_job(os.environ).get("TF_CONFIG", "").strip()))


def _build(settings: Mapping[str, Any], *, manages: bool) -> Session:
    task = Task.from_environment(os.environ)
    output, resume = (setting(name, os.environ, settings.get(name)) for name in ("output", "resume"))
    environment = Environment.from_environment(os.environ, task, sys.argv[0], output, resume=resume)
    progress = ProgressFile.from_environment(os.environ)
    if task.is_writer or task.is_evaluator:
        progress.keep_curves(environment.output_dir / (EVALUATIONS if task.is_evaluator else HISTORY))
    mirror = Patience().write(lambda: pulled_mirror(environment), environment.output_dir)
    fence = build_fence(task, environment)
    if mirror is not None and (task.is_writer or task.is_evaluator):
        mirror.keep_pushing(lambda: _may_push(task, progress, fence))
    return Session(
        task, environment, progress, fence=fence, mirror=mirror, manages=manages, settings=settings
    )


def _may_push(task: Task, progress: ProgressFile, fence: Fence | None) -> bool:
    """Return whether all replicas have taken over what the bucket has; Fenced after a newer start."""
    if not task.is_evaluator and progress.last.step is None:
        return False
    if fence is not None:
        fence.check()
    return True


def join(settings: Mapping[str, Any]) -> Session:
    """Return this process, ready to train as its job and these settings of the script's code have it.

    Without a job it is one for `running_as`, since the script chooses the output.

    Raises:
        InvalidConfiguration: a setting has a value that it can't have.
        OutputUnwritable, OutputFull: the writer can't write its folder.
        Fenced: a newer generation of this job already writes there.
        SystemExit: this job has already finished (code 0).
    """
    install_hook()
    session = current_session()
    if not os.environ.get("TRAINJOB_OUTPUT_DIR"):
        stop, progress = session.stop, session.progress
        session = dataclasses.replace(_build(settings, manages=True), stop=stop, progress=progress)
        install_edge(session.task, progress, stop, output=session.environment.output_dir)
    elif session.is_writer and (settings.get("output") or settings.get("resume") is False):
        notice(f"output and resume are ignored: in a job, the output is {session.environment.output_dir}")
    session.settings = settings
    for name in settings:
        session.setting(name)
    end_on_request(session)
    session.progress.update(state="starting")
    session.progress.keep_fresh()
    # Before TensorFlow waits for the others, whose job may be finished or can't write its output.
    if not session.task.is_evaluator:
        end_if_finished(session.trainings.root, session.environment.uid, session.progress)
    if session.is_writer:
        session.trainings.root.prepare()
    return session


os.register_at_fork(after_in_child=forget_environment)


# The end of the process: its failure is reported, and SIGTERM saves what has been reached.


def install_hook(_: ModuleType | None = None) -> None:
    """Handle uncaught errors; end a process whose environment is malformed before it writes anywhere.

    Called with `tensorflow.python.eager.context`, it also sets what TensorFlow reads when its runtime starts.
    """
    os.environ.setdefault("NCCL_DEBUG", "WARN")
    # Several processes share a laptop's GPU: TensorFlow would reserve all of it for the first one.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    keep_freed_memory()
    try:
        session = current_session()
    except TrainerError as error:
        leave(None, ProgressFile.from_environment(os.environ), error)
    install_edge(session.task, session.progress, session.stop, output=session.environment.output_dir)


def end_on_request(session: Session) -> None:
    """End on SIGTERM, which TensorFlow would swallow; a `fit` that takes steps saves its progress.

    A script's own handler is kept.
    """
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        session.stop.install(_end)


def _end() -> None:
    session = current_session()
    if not is_listening():
        return
    if session.call is not None and not storage_is_away.is_set():
        with contextlib.suppress(TrainerError):
            session.call.record.writer.settle()
    if session.mirror is not None and not storage_is_away.is_set():
        with contextlib.suppress(OSError, TrainerError):
            if session.task.is_evaluator or _may_push(session.task, session.progress, session.fence):
                session.mirror.push()
    text = f"{session.task.replica} was asked to stop"
    if session.task.is_evaluator:
        announce(text)
        exit_now(EVALUATOR_STOPPED)
    leave(session.task, session.progress, Preempted(text))


# Random numbers, equal in every replica of a job unless the user seeds them.
#
# Every worker takes its share of the same global batches, and the evaluator holds out the same examples:
# both need one order of the data. With their own seeds, replicas would train on some examples
# twice and on some never, and score those that they were trained on.


def job_seed() -> int:
    """Return a number that all replicas of a job share, in every attempt.

    It comes from the job's name, not from its UID: a job that is created again and resumes from its
    predecessor's checkpoint must hold out the same examples.
    """
    return zlib.crc32(os.environ.get("TRAINJOB_NAME", "").encode())


def is_seeded_by_user(context: Any) -> bool:
    """Return whether the user has chosen TensorFlow's seed, and with it Keras's order of examples."""
    return context.global_seed() not in (None, job_seed())


ORDERED_BY_ARGUMENT = {
    "parallel_map_dataset_v2",
    "parallel_interleave_dataset_v4",
    "parallel_batch_dataset",
    "legacy_parallel_interleave_dataset_v2",
}
"""Functions of TensorFlow's operations for `map`, `interleave`, `batch` and `parallel_interleave`."""


def refuse_disorder(operations: ModuleType) -> None:
    """Let no argument `deterministic=False` of tf.data through: it comes before the option.

    `operations` is a module of TensorFlow's generated functions, which have that argument as a text.
    """
    for name in ORDERED_BY_ARGUMENT & set(dir(operations)):
        original = getattr(operations, name)

        def ordered(*args: Any, original: Any = original, **kwargs: Any) -> Any:
            return original(*args, **{**kwargs, "deterministic": "default"})

        setattr(operations, name, functools.wraps(original)(ordered))
