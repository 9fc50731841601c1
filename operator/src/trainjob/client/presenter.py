"""Every sentence and figure about a job, for all commands."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from trainjob.api import Evaluation, FirstFailure, Progress
from trainjob.client.log_lines import without_harmless
from trainjob.client.view import RESTARTS, JobView, Outcome, ReplicaView, describe_pod
from trainjob.core.agent_reports import EvaluationResult
from trainjob.core.conditions import COMPLETE, FAILED, find_condition
from trainjob.core.pods import Pod
from trainjob.core.stragglers import describe, describe_input
from trainjob.core.wording import printable, short_duration
from trainjob_trainer.contract.replicas import EVALUATOR

# Figures.


_SHARES = ("accuracy", "acc", "precision", "recall", "auc")


def format_metric(name: str, value: float | str) -> str:
    """Return `accuracy 97.5 %` or `loss 0.0812`; a status has the values as text, also `nan`."""
    try:
        number = float(value)
    except ValueError:
        return f"{name} {value}"
    if not math.isfinite(number):
        return f"{name} {number}"
    if name.lower().endswith(_SHARES) and 0 <= number <= 1:
        return f"{name} {100 * number:.1f} %"
    return f"{name} {number:.4g}"


def format_rate(rate: float) -> str:
    """Return examples per second, such as `1,250`."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"


def format_count(done: int | None, total: int | None, of: str = "/") -> str:
    """Return `3/10`, or `3` if the total is unknown."""
    return "" if done is None else f"{done}{of}{total}" if total else f"{done}"


def time_of_day(at: datetime) -> str:
    """Return `12:03:04`, in the local time."""
    return at.astimezone().strftime("%H:%M:%S")


def describe_metrics(metrics: Mapping[str, float | str]) -> str:
    """Return `accuracy 97.5 %, loss 0.0812`."""
    return ", ".join(format_metric(name, value) for name, value in metrics.items()) or "no metrics"


def main_metric(metrics: Mapping[str, float | str]) -> str:
    """Return the metric that people look at first, such as `accuracy 97.5 %`: a share, else the first one."""
    ordered = sorted(metrics, key=lambda name: not name.lower().endswith(_SHARES))
    return format_metric(ordered[0], metrics[ordered[0]]) if ordered else ""


def describe_age(length: timedelta) -> str:
    """Return `12 minutes ago`."""
    seconds = int(length.total_seconds())
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if count := seconds // size:
            return f"{count} {name}{'' if count == 1 else 's'} ago"
    return "just now"


def format_size(size: int) -> str:
    """Return a number of bytes such as `12 MB`."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}" if size < 10 * unit else f"{size // unit} {name}"
    return f"{size} B"


def describe_evaluation(evaluation: Evaluation | EvaluationResult) -> str:
    """Return `step 440: accuracy 97.5 %, loss 0.0812, final checkpoint`."""
    final = ", final checkpoint" if isinstance(evaluation, EvaluationResult) and evaluation.final else ""
    return f"step {evaluation.step}: {describe_metrics(evaluation.metrics)}{final}"


def describe_figures(job: JobView) -> str:
    """Return `step 120 of 440, epoch 3, 1,250 examples/s, 2m left, loss 0.5`."""
    progress = job.status.progress or Progress()
    figures = []
    if progress.step is not None:
        figures.append(f"step {format_count(progress.step, progress.total_steps, ' of ')}")
    if progress.epoch is not None:
        figures.append(f"epoch {progress.epoch}")
    if progress.examples_per_second is not None and not job.is_over:
        figures.append(f"{format_rate(progress.examples_per_second)} examples/s")
    if progress.eta and not job.is_over:
        figures.append(f"{progress.eta} left")
    if progress.metrics:
        figures.append(describe_metrics(progress.metrics))
    return ", ".join(figures)


# The state of a job.


def describe_state(job: JobView, separator: str = ": ") -> str:
    """Return `Running: training on 2 workers`."""
    return printable(separator.join(filter(None, (job.state, job.message))))


def brief_message(job: JobView) -> str:
    """Return the state in one sentence, without the result of the evaluation, which is shown by itself."""
    return job.message.partition(_SCORED)[0] if job.evaluation is not None else job.message


_SCORED = "; the checkpoint of step "


def describe_progress(job: JobView) -> str:
    """Return `digits: Running: training on 2 workers, step 120 of 440, 1,250 examples/s, 40s left`."""
    figures = "" if job.is_over else describe_figures(job)
    return ", ".join(filter(None, (f"{job.name}: {describe_state(job)}", printable(figures))))


def describe_resume(job: JobView) -> str:
    """Return `resumed from step 220`, or an empty string."""
    return f"resumed from step {job.resumed_from}" if job.resumed_from else ""


def describe_deletion(name: str, last: JobView | None, *, replaced: bool = False) -> str:
    """Return the sentence for a job that was deleted while a command waited for it."""
    known = f" (last seen: {describe_state(last, ', ')})" if last else ""
    again = "; another job of that name is there now" if replaced else ""
    return f"{name} was deleted{known}{again}"


# Changes between two states of a job, one line each, for output without a live display.


# These states change with every checkpoint; only their results are printed.
_PASSING_STATES = ("preparing", "saving", "evaluating")
_BETWEEN = ("training", "waiting")


def describe_changes(before: JobView | None, after: JobView) -> tuple[str, ...]:
    """Return the lines about the changes from `before` to `after`; `before` is None at the start."""
    old = {replica.name: replica for replica in before.replicas} if before else {}
    about_job = [f"{after.name}: {line}" for line in _state_changes(before, after)]
    about_replicas = [line for each in after.replicas for line in _replica_changes(old.get(each.name), each)]
    about_training = [f"{after.name}: {line}" for line in _training_changes(before, after)]
    return (*about_job, *about_replicas, *about_training)


def _state_changes(before: JobView | None, after: JobView) -> Iterator[str]:
    failure = _failure_between(before, after) if before is not None else None
    if failure is not None:
        yield f"Restarting: {failure.message}"
    known = None if before is None else (before.status.state, before.message)
    if after.status.state and known != (after.status.state, after.message):
        yield printable(": ".join(filter(None, (after.state, brief_message(after)))))


def _training_changes(before: JobView | None, after: JobView) -> Iterator[str]:
    known = before.resumed_from if before and before.status.attempt == after.status.attempt else None
    if after.resumed_from is not None and after.resumed_from != known:
        yield describe_resume(after)
    slow_before = {straggler.replica for straggler in before.status.stragglers} if before else set()
    yield from (describe(each) for each in after.status.stragglers if each.replica not in slow_before)
    if after.evaluation is not None and not _is_same(before.evaluation if before else None, after.evaluation):
        yield f"evaluation at {describe_evaluation(after.evaluation)}"


def _is_same(before: Evaluation | EvaluationResult | None, after: Evaluation | EvaluationResult) -> bool:
    """Return whether it is the same result; the last checkpoint's is reported again as the final one."""
    return before is not None and (before.step, before.metrics) == (after.step, after.metrics)


def _failure_between(before: JobView, after: JobView) -> FirstFailure | None:
    """Return a failure that `after` doesn't show any more: agents may restart training between two states."""
    failure = after.status.first_failure
    is_new = after.status.restarts.last_time != before.status.restarts.last_time
    is_shown = failure == before.status.first_failure or (failure and failure.message == after.message)
    return failure if is_new and not is_shown else None


def _replica_changes(before: ReplicaView | None, after: ReplicaView) -> Iterator[str]:
    if before is not None and (before.state, before.pod) == (after.state, after.pod):
        return
    if after.state in _PASSING_STATES or after.pod is None:
        return
    is_same_pod = before is not None and before.pod == after.pod
    if is_same_pod and after.state == "running":  # TensorFlow is imported; more isn't known
        return
    if before is not None and is_same_pod and before.state in _PASSING_STATES and after.state in _BETWEEN:
        return
    report = after.report
    step = f", step {format_count(report.step, report.total_steps, ' of ')}" if report.step else ""
    yield f"{after.name}: {after.state}{step}"


# Advice on failures, one sentence each.


_NO_MODULE = re.compile(r"No module named '([^']+)'")
_NO_FILE = re.compile(r"can't open file '([^']+)'")
_TENSORFLOW = ("tensorflow", "keras")
_NO_SPACE = "No space left on device"


@dataclass(frozen=True)
class Advice:
    """The advice for jobs that ran in one environment.

    Attributes:
        by_reason: advice by reason of failure (table of exit codes), for reasons that need no log.
        tensorflow: Python did not find TensorFlow or Keras.
        module: Python did not find the module `{module}`.
        file: Python did not find the script `{file}`.
        command: there is no such command.
        killed: stands before the advice for `OutOfMemory` when only SIGKILL is known.
        again: nothing else is known.
    """

    by_reason: Mapping[str, str]
    tensorflow: str
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
            if module[1].partition(".")[0] in _TENSORFLOW:
                return self.tensorflow
            if module[1].partition(".")[0] == "horovod":
                return _HOROVOD
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
    "NcclFailed": "see that each worker has a GPU of its own, that the pods' network interface is NCCL's "
    "(NCCL_SOCKET_IFNAME), and that /dev/shm has some GiB",
    "PeerLost": "look at the logs of the other replicas, one of which failed first",
}

_HOROVOD = (
    "Horovod must come with the Python environment or image, with a TensorFlow that it works with: its last"
    " release, 0.28.1, with TensorFlow 2.12 on Python 3.11 (examples/horovod.Dockerfile)"
)

HERE = Advice(
    by_reason={
        **_SAME_EVERYWHERE,
        "InvalidConfiguration": "correct what the message names, and run the same command again",
        "OutputFinished": (
            "start over in a new folder with --fresh, or ask for more epochs to continue from the end"
        ),
        "OutputUnwritable": "make the output folder writable, or choose another one with --folder",
        "OutputFull": (
            "free some disk space, or choose another disk with --folder; the same command then continues"
        ),
        "StorageUnavailable": "see that the files or the server that the message names can be reached",
        "PortInUse": "end the program that has the port, or choose other ports with --base-port",
        "CheckpointMismatch": (
            "the checkpoint is of another model: start over with --fresh, or restore the model"
        ),
        "OutOfMemory": "give it a smaller batch or model, or fewer replicas on this machine",
    },
    tensorflow="install TensorFlow into the environment that trainjob runs in: "
    "pip install 'trainjob-trainer[cpu]', or [gpu] for NVIDIA GPUs",
    module="install the package of '{module}' into the environment that trainjob runs in",
    file="there is no {file}: commands start in the folder of the job's file",
    command="check the command of the container trainer: it must be installed on this machine",
    killed="it was killed by SIGKILL, which is how a system out of memory ends programs",
    again="correct it, and run the same command again: training continues from the last checkpoint, if any",
)

IN_PYTHON = replace(
    HERE,
    by_reason={
        **HERE.by_reason,
        "InvalidConfiguration": "correct what the message names, and call run() again",
        "OutputFinished": "start over with run(fresh=True), or ask for more epochs to continue from the end",
        "OutputUnwritable": "make the output folder writable",
        "OutputFull": "free some disk space; the same call then continues",
        "PortInUse": "end the program that has the port, or call run() again",
        "CheckpointMismatch": (
            "the checkpoint is of another model: start over with run(fresh=True), or restore the model"
        ),
    },
    module="install the package of '{module}' into this Python environment",
    file="there is no {file}: commands start in the working directory of the call",
    command="check command=[...]: the program must be installed on this machine",
    again="correct it, and call run() again: training continues from the last checkpoint, if any",
)
"""For runs on this machine that Python code has started."""

ON_CLUSTER = Advice(
    by_reason={
        **_SAME_EVERYWHERE,
        "InvalidConfiguration": "correct what the message names, delete the job and submit it again",
        "OutputFinished": "ask for more epochs, or start over in a new folder with spec.output.resume: Never",
        "OutputUnwritable": "let the pods write into the output: see their securityContext.fsGroup",
        "OutputFull": "make room in the output's volume, or name a larger one in spec.output",
        "StorageUnavailable": "see that the pods reach the volume or the server that the message names",
        "PortInUse": "another container of the pod has port 2222 or 2223: leave them to the trainer",
        "CheckpointMismatch": "the checkpoint is of another model: start over with spec.output.resume: Never",
        "OutOfMemory": "raise resources.limits.memory of the container trainer, or give it a smaller batch",
    },
    tensorflow="the image has no TensorFlow: start from one that has it, or install it there",
    module="install the package of '{module}' into the image",
    file="there is no {file} in the image: see its WORKDIR and the command of the container trainer",
    command="check the command of the container trainer: the image must have it",
    killed="it was killed by SIGKILL, mostly for want of memory",
    again="correct it, delete the job, submit it again: training continues from the last checkpoint, if any",
)


# The end of a job: its results, or what failed and what to do.


_SHOWN_LOG_LINES = 20


@dataclass(frozen=True, kw_only=True)
class Results:
    """Where the output and the logs of a job are, in the form that is shown.

    Attributes:
        output: the job's output folder, or its `gs://` address.
        has_model: whether the output has a model.
        has_checkpoints: whether it has checkpoints.
        has_events: whether it has event files for TensorBoard.
        logs: the log file of each replica, or the command that prints its log; by replica.
        tails: the last lines of each pod's log, by pod.
        advice: for the environment that the job ran in.
        command: the command line, to be repeated.
        starts_over: whether that command starts from the beginning each time.
        copy: of a job in a cluster, the command that copies its output.
    """

    output: str
    has_model: bool = False
    has_checkpoints: bool = False
    has_events: bool = False
    logs: Mapping[str, str] = field(default_factory=dict)
    tails: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    advice: Advice = HERE
    command: str = "trainjob run FILE"
    starts_over: bool = False
    copy: str = ""


def results_on_cluster(job: JobView) -> Results:
    """Return the results of a job in a cluster, as far as its status has them."""
    failed = job.status.first_failure.rank if job.status.first_failure else ""
    role, _, index = failed.rpartition("-")
    command = f"trainjob logs {job.name} -n {job.namespace} --role {role} --index {index}"
    path = job.status.output.path if job.status.output else ""
    has_any = bool(path) and job.checkpoint_step is not None
    # Whether the script has left a model isn't known here.
    copy = f"trainjob cp {job.name}: ./{job.name} -n {job.namespace}" if path else ""
    return Results(output=path, has_checkpoints=has_any, logs={failed: command}, advice=ON_CLUSTER, copy=copy)


def describe_end(job: JobView, results: Results) -> tuple[str, ...]:
    """Return the lines for a job that has ended."""
    if job.outcome is Outcome.INTERRUPTED:
        return (f"{job.name} was interrupted: {job.message}",)
    is_complete = job.outcome is Outcome.COMPLETE
    condition = find_condition(job.status, COMPLETE if is_complete else FAILED)
    message = condition.message if condition else "" if is_complete else job.message
    message = message.partition(_SCORED)[0] if is_complete and job.evaluation is not None else message
    duration = f" after {short_duration(job.elapsed)}" if job.elapsed is not None else ""
    lines = [f"{job.name} {'is complete' if is_complete else 'failed'}{duration}{message and ': '}{message}"]
    if job.is_smoke_test:
        lines += _smoke_test(job, results)
    if is_complete:
        lines += () if job.is_smoke_test else _success(job, results)
        return (*lines, *_notices(job))
    lines += _restarts(job)
    lines += _first_failure(job, results)
    if len(lines) == 1 and condition:
        lines.append(f"  reason        {condition.reason}")
    return (*lines, *_notices(job))


def _notices(job: JobView) -> Iterator[str]:
    """Yield a line for each thing that was computed otherwise than the script says."""
    return (f"  notice        {each}" for each in job.status.notices)


def describe_interruption(job: JobView, results: Results) -> tuple[str, ...]:
    """Return the lines for a run that was interrupted."""
    step = job.checkpoint_step
    kept = f" The checkpoint of step {step} is kept in {results.output}/checkpoints." if step else ""
    if results.starts_over:
        again = "this command starts over each time, in a new folder"
    elif step:
        again = f"continue from there with the same command: {results.command}"
    else:
        again = f"start again with the same command: {results.command}"
    end = f"{job.name} was interrupted; all its processes have ended.{kept}"
    return (end, *_restarts(job), *_notices(job), f"  {again}")


_SHOWN_RESTARTS = 10


def _restarts(job: JobView) -> Iterator[str]:
    """Yield a line for each restart of a run here: when, who, why, and from which step it continued."""
    events = [event for event in job.events if event.reason in RESTARTS]
    title = "  restarts      "
    if (earlier := len(events) - _SHOWN_RESTARTS) > 0:
        yield f"{title}{earlier} earlier"
        title = " " * len(title)
    for event in events[-_SHOWN_RESTARTS:]:
        yield f"{title}{time_of_day(event.at)} {event.message}"
        title = " " * len(title)


def _success(job: JobView, results: Results) -> Iterator[str]:
    steps = max((each.report.step or 0 for each in job.replicas), default=0)
    if facts := ", ".join(filter(None, (str(steps or ""), describe_resume(job)))):
        yield f"  steps         {facts}"
    yield from _restarts(job)
    yield from _evaluation(job, results)
    if results.has_model:
        yield f"  model         {results.output}/model"
    if results.has_checkpoints:
        yield f"  checkpoints   {results.output}/checkpoints"
    if results.has_events:
        yield f"  TensorBoard   tensorboard --logdir {results.output}"
    if results.copy:
        yield f"  copy it here  {results.copy}"


def _smoke_test(job: JobView, results: Results) -> Iterator[str]:
    """Yield a line for each thing that a smoke test tries, and whether it worked."""
    progress = job.status.progress or Progress()
    trained = [each for each in job.replicas if not each.is_evaluator and each.report.step]
    steps = max([progress.step or 0, *(each.report.step or 0 for each in trained)])
    on = f" on {', '.join(each.name for each in trained)}" if trained else ""
    own = {key: value for key, value in progress.metrics.items() if not key.startswith("val_")}
    held_out = {key: value for key, value in progress.metrics.items() if key.startswith("val_")}
    taken = f"{steps} step{'' if steps == 1 else 's'}{on}: {describe_metrics(own)}" if steps else ""
    yield _tried("training", taken, "no step was taken")
    validated = describe_metrics(held_out) if held_out else ""
    yield _tried("validation", validated, "not tried, none comes with the training")
    saved = f"step {job.checkpoint_step}" if job.checkpoint_step is not None else ""
    yield _tried("checkpoint", saved, "none was saved")
    score = describe_evaluation(job.last_evaluation) if job.last_evaluation is not None else ""
    missing = "none was reported" if _has_evaluator(job) else "not tried, the job has no evaluator"
    yield _tried("evaluation", score, missing)
    if job.replicas:  # a cluster's job doesn't report it
        model = f"{results.output}/model" if results.has_model else ""
        yield _tried("export", model, "not tried, only train_and_evaluate writes the model by itself")
    yield from _evaluation(job, results) if any(r.is_evaluator and r.has_failed for r in job.replicas) else ()


def _tried(what: str, worked: str, otherwise: str) -> str:
    return f"  {what:<13} {f'ok: {worked}' if worked else otherwise}"


def _evaluation(job: JobView, results: Results) -> Iterator[str]:
    evaluation, failed = job.evaluation, [r for r in job.replicas if r.is_evaluator and r.has_failed]
    is_early = isinstance(evaluation, EvaluationResult) and not evaluation.final
    if evaluation is not None:
        early = "not the final checkpoint: " if is_early else ""
        yield f"  evaluation    {early}{describe_evaluation(evaluation)}"
    for replica in failed:
        yield "  The training is complete, but its evaluation is not."
        tail = results.tails.get(replica.pod or "") or tuple(replica.message.splitlines())
        yield from _log(replica.name, tail, results)
    if is_early and not failed:
        yield "  The final checkpoint was not evaluated."
    elif evaluation is None and not failed and _has_evaluator(job):
        yield "  evaluation    none was reported"


def _has_evaluator(job: JobView) -> bool:
    role = job.spec.get(EVALUATOR)
    return not isinstance(role, dict) or role.get("replicas", 1) != 0


def _first_failure(job: JobView, results: Results) -> Iterator[str]:
    first = job.status.first_failure
    if first is None or not first.rank:
        return
    node = f", on node {first.node}" if first.node else ""
    yield f"  first failure {first.rank}, {_describe_exit(first)}{node}"
    tail = results.tails.get(first.pod) or tuple(first.log_tail.splitlines())
    yield from _log(first.rank, tail, results)
    if job.outcome is Outcome.FAILED:
        yield f"  what to do    {results.advice.on(first.reason, first.exit_code, chr(10).join(tail))}"


def _describe_exit(failure: FirstFailure) -> str:
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


def _log(replica: str, tail: tuple[str, ...], results: Results) -> Iterator[str]:
    if tail := without_harmless(tail):
        yield f"  the last lines of {replica}:"
        yield from (f"    | {line}" for line in tail[-_SHOWN_LOG_LINES:])
    if replica in results.logs:
        yield f"  whole log     {results.logs[replica]}"


# One job in full: state, figures, conditions, first failure, pods.


def describe_job(
    job: JobView, pods: Iterable[Pod], now: datetime, results: Results | None = None
) -> tuple[str, ...]:
    """Return the lines.

    Args:
        job: the job.
        pods: the job's own pods; of a run here its replicas are shown instead.
        now: the current time, ideally by the API server's clock.
        results: of a run here.
    """
    failure = _first_failure(job, results or results_on_cluster(job))
    replicas = _replicas(job, results) if results else _pods(job, pods, now)
    place = f"  folder        {results.output}" if results else f"  namespace     {job.namespace}"
    parts = (_header(job, place, now), _facts(job), _conditions(job, now), failure, replicas)
    return tuple(printable(line) for part in parts for line in part)


def _header(job: JobView, place: str, now: datetime) -> Iterator[str]:
    state = f"{job.state}, being deleted" if job.deleting else job.state
    yield f"{job.name}   {state}" + (f": {job.message}" if job.message else "")
    yield place
    ages = [f"created {short_duration(now - job.created_at)} ago"] if job.created_at else []
    start, end = job.status.start_time, job.status.completion_time
    if start and end:
        ages.append(f"took {short_duration(end - start)}, over since {short_duration(now - end)}")
    elif start and not job.is_over:
        ages.append(f"at it for {short_duration(now - start)}")
    if ages:
        yield f"  time          {'; '.join(ages)}"


def _facts(job: JobView) -> Iterator[str]:
    status = job.status
    if status.worker is not None and status.worker.summary:
        yield f"  workers       {status.worker.summary} ready"
    if figures := describe_figures(job):
        yield f"  progress      {figures}"
    if not job.is_over:
        yield from (f"  straggler     {describe(straggler)}" for straggler in status.stragglers)
        steps = status.progress or Progress()
        if (waiting := describe_input(steps.step_seconds, steps.input_seconds)) is not None:
            yield f"  input         {waiting}"
    if status.output is not None and (status.output.path or job.checkpoint_step is not None):
        of = f"step {job.checkpoint_step} in " if job.checkpoint_step is not None else ""
        yield f"  checkpoint    {of}{status.output.path}"
    if job.last_evaluation is not None:
        yield f"  evaluation    {describe_evaluation(job.last_evaluation)}"
    yield f"  restarts      {_describe_restarts(job)}"
    yield from _notices(job)


def _describe_restarts(job: JobView) -> str:
    restarts, attempt = job.status.restarts, job.status.attempt
    reset = f", {restarts.reset} more that training has got beyond" if restarts.reset else ""
    uncounted = f", {restarts.not_counted} that don't count" if restarts.not_counted else ""
    last = f", attempt {attempt}" if attempt else ""
    return f"{restarts.counted} of {job.spec.get('maxRestarts', 3)}{reset}{uncounted}{last}"


def _conditions(job: JobView, now: datetime) -> Iterator[str]:
    if not job.status.conditions:
        return
    yield "  conditions"
    rows = [("TYPE", "STATUS", "SINCE", "REASON", "MESSAGE")]
    for c in job.status.conditions:
        rows.append((c.type, c.status, short_duration(now - c.last_transition_time), c.reason, c.message))
    yield from (f"    {line}" for line in layout(rows))


def _pods(job: JobView, pods: Iterable[Pod], now: datetime) -> Iterator[str]:
    progress = job.status.progress or Progress()
    times = {"STEP TIME": progress.step_seconds, "OWN WORK": progress.work_seconds}
    known = {title: seconds for title, seconds in times.items() if seconds}
    rows = [("REPLICA", "STATE", "READY", *known, "NODE", "AGE", "POD")]
    for pod in pods:
        name, ready = pod.replica.name, "yes" if pod.ready else "no"
        figures = (_seconds(seconds.get(name)) for seconds in known.values())
        age = short_duration(now - pod.created_at) if pod.created_at else ""
        rows.append((name, describe_pod(pod), ready, *figures, pod.node, age, pod.name))
    if len(rows) == 1:
        yield "  pods          none"
        return
    yield "  pods"
    yield from (f"    {line}" for line in layout(rows))


def _replicas(job: JobView, results: Results) -> Iterator[str]:
    rows = [("REPLICA", "STATE", "STEP", "LOG")]
    for each in job.replicas:
        step = format_count(each.report.step, each.report.total_steps)
        rows.append((each.name, each.state, step, results.logs.get(each.name, "")))
    yield "  replicas"
    yield from (f"    {line}" for line in layout(rows))


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3g} s"


# Tables.


_GAP = "   "


def layout(rows: Iterable[Sequence[str]], widths: Sequence[int] = ()) -> Iterator[str]:
    """Yield the rows with aligned columns, at least as wide as `widths`."""
    every = [[cell or "-" for cell in row] for row in rows]
    wide = column_widths(every, widths)
    for row in every:
        padded = [cell.ljust(width) for cell, width in zip(row, wide, strict=True)]
        yield _GAP.join(padded).rstrip()


def column_widths(rows: Sequence[Sequence[str]], least: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the width of each column."""
    columns = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return tuple(max(pair) for pair in zip(columns, least, strict=True)) if least else tuple(columns)
