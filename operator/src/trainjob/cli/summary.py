"""The summary of a run: where the output is, or what failed and what to do."""

import re
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from trainjob.api import FirstFailure
from trainjob.cli.screen import describe_evaluation, resumed_from
from trainjob.cli.view import JobView, ReplicaView
from trainjob.core.conditions import COMPLETE, FAILED, find_condition, is_true
from trainjob.core.names import EVALUATOR
from trainjob.core.policies.success_policy import NO_STEPS
from trainjob.core.wording import short_duration

# Advice on failures, one sentence each.


_NO_MODULE = re.compile(r"No module named '([^']+)'")
_NO_FILE = re.compile(r"can't open file '([^']+)'")
_NO_SPACE = "No space left on device"


@dataclass(frozen=True)
class Advice:
    """The advice for jobs that ran in one environment.

    Attributes:
        by_reason: advice by reason of failure (table of exit codes), for reasons that need no log.
        module: Python did not find the module `{module}`.
        file: Python did not find the script `{file}`.
        command: there is no such command.
        killed: stands before the advice for `OutOfMemory` when only SIGKILL is known.
        again: nothing else is known.
    """

    by_reason: Mapping[str, str]
    module: str
    file: str
    command: str
    killed: str
    again: str

    def on(self, reason: str, exit_code: int | None, log: str) -> str:
        """Return the advice.

        Args:
            reason: the reason of the first failure, as in the table of exit codes.
            exit_code: the replica's exit code, if it ran.
            log: the last lines of its log.
        """
        if reason in self.by_reason:
            return self.by_reason[reason]
        if module := _NO_MODULE.search(log):
            return self.module.format(module=module[1])
        if file := _NO_FILE.search(log):
            return self.file.format(file=file[1])
        if exit_code in (126, 127):
            return self.command
        if _NO_SPACE in log:
            return self.by_reason["OutputFull"]
        if exit_code == 137:
            return f"{self.killed}: {self.by_reason['OutOfMemory']}"
        return self.again


_SAME_EVERYWHERE = {
    "NotFinite": "try a smaller learning rate or clipped gradients; TRAIN_ON_NAN=skip leaves such steps "
    "out (not with parameter servers)",
    "WeightsDiverged": "look for faults of memory and GPUs where those ran whom the message names; if code "
    "of your own gives each worker other weights on purpose, set TRAIN_COMPARE_WEIGHTS=false",
    "Stalled": "look in the log for what it waits for; spec.stallTimeoutSeconds is how long it may",
    "Fenced": "a newer start of this job writes its output: look at that one",
    "PeerLost": "look at the logs of the other replicas, one of which failed first",
}

HERE = Advice(
    by_reason={
        **_SAME_EVERYWHERE,
        "InvalidConfiguration": "correct what the message names, and run the same command again",
        "OutputFinished": (
            "start over in a new folder with --fresh, or ask for more epochs to go on from the end"
        ),
        "OutputUnwritable": "make the output folder writable, or choose another one with --folder",
        "OutputFull": (
            "free some disk space, or choose another disk with --folder; the same command then goes on"
        ),
        "PortInUse": "end the program that has the port, or choose other ports with --base-port",
        "CheckpointMismatch": (
            "the checkpoint is of another model: start over with --fresh, or restore the model"
        ),
        "OutOfMemory": "give it a smaller batch or model, or fewer replicas on this machine",
    },
    module="install the package of '{module}' into the environment that trainjob runs in",
    file="there is no {file}: commands start in the folder of the job's file",
    command="check the command of the container trainer: it must be installed on this machine",
    killed="it was killed by SIGKILL, which is how a system out of memory ends programs",
    again="correct it, and run the same command again: training goes on from the last checkpoint, if any",
)

ON_CLUSTER = Advice(
    by_reason={
        **_SAME_EVERYWHERE,
        "InvalidConfiguration": "correct what the message names, delete the job and submit it again",
        "OutputFinished": "ask for more epochs, or start over in a new folder with spec.output.resume: Never",
        "OutputUnwritable": "let the pods write into the output: see their securityContext.fsGroup",
        "OutputFull": "make room in the output's volume, or name a larger one in spec.output",
        "PortInUse": "another container of the pod has port 2222 or 2223: leave them to the trainer",
        "CheckpointMismatch": "the checkpoint is of another model: start over with spec.output.resume: Never",
        "OutOfMemory": "raise resources.limits.memory of the container trainer, or give it a smaller batch",
    },
    module="install the package of '{module}' into the image",
    file="there is no {file} in the image: see its WORKDIR and the command of the container trainer",
    command="check the command of the container trainer: the image must have it",
    killed="it was killed by SIGKILL, mostly for want of memory",
    again="correct it, delete the job and submit it again: training goes on from the last checkpoint, if any",
)


# The summary of a job that has ended or was interrupted.


_SHOWN_LOG_LINES = 20


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where the output of a run is, in the form that is shown.

    Attributes:
        output: the job's output folder, or its `gs://` address.
        has_model: whether the output has a model.
        has_checkpoints: whether it has checkpoints.
        has_events: whether it has event files for TensorBoard.
        logs: the log file of each replica, by replica.
        tails: the last lines of each pod's log, by pod.
        command: the command line, to be repeated.
        starts_over: whether that command starts from the beginning each time.
    """

    output: str
    has_model: bool = False
    has_checkpoints: bool = False
    has_events: bool = False
    logs: dict[str, str] = field(default_factory=dict)
    tails: dict[str, tuple[str, ...]] = field(default_factory=dict)
    command: str = "trainjob run FILE"
    starts_over: bool = False


def is_complete(view: JobView) -> bool:
    """Return whether the job is complete."""
    return is_true(view.status, COMPLETE)


def summarize(view: JobView, places: Places) -> tuple[str, ...]:
    """Return the lines for a job that has ended."""
    lines = _success(view, places) if is_complete(view) else _failure(view, places)
    return tuple(lines)


def summarize_interruption(view: JobView, places: Places) -> tuple[str, ...]:
    """Return the lines for a run that was interrupted."""
    step = view.checkpoint_step
    kept = f" The checkpoint of step {step} is kept in {places.output}/checkpoints." if step else ""
    if places.starts_over:
        again = "this command starts over each time, in a new folder"
    elif step:
        again = f"go on from there with the same command: {places.command}"
    else:
        again = f"start again with the same command: {places.command}"
    return (f"{view.name} was interrupted; all its processes have ended.{kept}", f"  {again}")


def _success(view: JobView, places: Places) -> Iterator[str]:
    steps = max((r.report.step or 0 for r in view.replicas), default=0)
    did = f"{steps} steps in " if steps else "done in "
    since = resumed_from(view)
    yield f"{view.name} is complete: {did}{short_duration(view.elapsed)}" + (
        f", resumed from step {since}" if since else ""
    )
    yield from (f"  stopped early {r.report.stopped_early}" for r in view.replicas if r.report.stopped_early)
    if not _has_reported(view):
        yield f"  {NO_STEPS}"
    yield from _scores(view, places)
    if places.has_model:
        yield f"  model         {places.output}/model"
    if places.has_checkpoints:
        yield f"  checkpoints   {places.output}/checkpoints"
    if places.has_events:
        yield f"  TensorBoard   tensorboard --logdir {places.output}"


def _has_reported(view: JobView) -> bool:
    known = view.status.progress is not None and view.status.progress.step is not None
    return known or view.evaluation is not None or any(r.report.step is not None for r in view.replicas)


def _scores(view: JobView, places: Places) -> Iterator[str]:
    if view.evaluation is not None:
        which = "final checkpoint, " if view.evaluation.final else "not the final checkpoint: "
        yield f"  evaluation    {which}{describe_evaluation(view.evaluation)}"
    evaluators = [replica for replica in view.replicas if replica.name.startswith(f"{EVALUATOR}-")]
    for replica in evaluators:
        if replica.has_failed:
            yield f"  The training is complete, but its evaluation is not: {view.message}."
            yield from _log(replica.name, _tail(replica, places), places)
        elif view.evaluation is None or not view.evaluation.final:
            yield f"  The final checkpoint was not evaluated: {view.message}."


def _failure(view: JobView, places: Places) -> Iterator[str]:
    condition = find_condition(view.status, FAILED)
    message = condition.message if condition else view.message
    yield f"{view.name} failed: {message}"
    first = view.status.first_failure
    if first is None or not first.rank:
        if condition:
            yield f"  reason        {condition.reason}"
        return
    yield f"  first failure {first.rank}, {describe_ending(first)}"
    tail = places.tails.get(first.pod or "") or tuple((first.log_tail or "").splitlines())
    yield from _log(first.rank, tail, places)
    yield f"  what to do    {HERE.on(first.reason or '', first.exit_code, chr(10).join(tail))}"


def describe_ending(failure: FirstFailure) -> str:
    """Return `exit code 1 (Crashed), at step 30`."""
    code = failure.exit_code
    at = f", at step {failure.step}" if failure.step is not None else ""
    if code is None:
        return f"{failure.reason}{at}"
    try:
        how = f"killed by {signal.Signals(code - 128).name}" if code > 128 else ""
    except ValueError:
        how = ""
    return f"{how or f'exit code {code}'} ({failure.reason}){at}"


def _tail(replica: ReplicaView, places: Places) -> tuple[str, ...]:
    return places.tails.get(replica.pod or "") or tuple(replica.message.splitlines())


def _log(replica: str, tail: tuple[str, ...], places: Places) -> Iterator[str]:
    yield from quote_log(replica, tail)
    if replica in places.logs:
        yield f"  whole log     {places.logs[replica]}"


def quote_log(replica: str, tail: tuple[str, ...]) -> Iterator[str]:
    """Yield the last lines of a replica's log, with a heading and indented."""
    if tail:
        yield f"  the last lines of {replica}:"
        yield from (f"    | {line}" for line in tail[-_SHOWN_LOG_LINES:])
