"""This process as a replica of its job: the setup that every entry point of the trainer does first."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from trainjob_trainer.checkpoint.fence import build_fence
from trainjob_trainer.checkpoint.store import CheckpointStore
from trainjob_trainer.edge import EVALUATOR_STOPPED, StopRequest, exit_now, install_edge, leave
from trainjob_trainer.environment import Environment
from trainjob_trainer.errors import Preempted
from trainjob_trainer.reporting.machine import keep_freed_memory
from trainjob_trainer.reporting.progress import ProgressFile, announce, notice
from trainjob_trainer.resume import end_if_finished
from trainjob_trainer.task import Task


@dataclass(frozen=True)
class Replica:
    """The role, paths and outputs of this process."""

    task: Task
    environment: Environment
    store: CheckpointStore
    progress: ProgressFile
    stop: StopRequest


def join(
    env: Mapping[str, str] | None = None, output: str | Path | None = None, *, resume: bool = True
) -> Replica:
    """Read the environment, and install the job's handling of SIGTERM and uncaught errors.

    `output` and `resume` are for a process outside a job, as in `Environment.from_environment`.

    Raises:
        InvalidConfiguration: TF_CONFIG or TRAINJOB_* is malformed.
        OutputUnwritable, OutputFull: the writer can't write its folder.
        Fenced: a newer generation of this job already writes there.
        SystemExit: this job has already finished (code 0).
    """
    variables = os.environ if env is None else env
    stop = StopRequest()
    progress = ProgressFile.from_environment(variables)
    install_edge(None, progress, stop)
    task = Task.from_environment(variables)
    install_edge(task, progress, stop)
    environment = Environment.from_environment(variables, task, sys.argv[0], output, resume=resume)
    install_edge(task, progress, stop, output=environment.output_dir)
    if variables.get("TRAINJOB_OUTPUT_DIR") and (output or not resume) and task.is_writer:
        said = f"output={str(output)!r}" if output else "resume=False"
        notice(f"{said} is left out: the job says where its output is ({environment.output_dir})")
    stop.install(lambda: leave_on_request(task, progress))
    store = CheckpointStore(environment.checkpoint_dir, fence=build_fence(task, environment))
    replica = Replica(task, environment, store, progress, stop)
    progress.update(state="starting")
    progress.keep_fresh()
    # Before TensorFlow waits for the others, whose job may be finished or can't write its output.
    if not task.is_evaluator:
        end_if_finished(store, environment.uid, progress)
    if task.is_writer:
        store.prepare()
    keep_freed_memory(variables)
    return replica


def as_evaluator(replica: Replica) -> Replica:
    """Return this replica with an evaluator's paths: a process that trains alone also evaluates."""
    folder = replica.environment.output_dir / "evaluator"
    environment = dataclasses.replace(replica.environment, output_dir=folder, log_dir=folder / "logs")
    return dataclasses.replace(replica, environment=environment)


def leave_on_request(task: Task, progress: ProgressFile) -> NoReturn:
    """End the process after a request to stop."""
    if task.is_evaluator:
        announce(f"{task.replica} was asked to stop")
        exit_now(EVALUATOR_STOPPED)
    leave(task, progress, Preempted(f"{task.replica} was asked to stop"))
