"""Every sentence and figure about a job, for all commands."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from trainjob.api import Evaluation
from trainjob.client.log_lines import is_harmless
from trainjob.client.view import RESTARTS, Figures, JobView, Outcome, ReplicaView
from trainjob.cluster.protocol import PostedEvent
from trainjob.core.agent_reports import EvaluationResult
from trainjob.core.conditions import COMPLETE, FAILED, find_condition
from trainjob.core.stragglers import describe
from trainjob.core.wording import printable, short_duration
from trainjob_trainer.contract.replicas import EVALUATOR

_SHARES = ("accuracy", "acc", "precision", "recall")


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
    """Return what people look at first, such as `accuracy 97.5 %`: a share or an AUC, else the first one."""
    ordered = sorted(metrics, key=lambda name: not name.lower().endswith((*_SHARES, "auc")))
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


def training_phrases(job: JobView, figures: Figures, left: str, of: str = " of ") -> tuple[str, ...]:
    """Return `step 120 of 440`, `2m left`, `epoch 3`, `1,250 examples/s`, as far as they are known."""
    rate, is_over = figures.examples_per_second, job.is_over
    # In other states the figures of the last step are out of date.
    is_current = is_over or any(each.is_stepping for each in job.replicas) if job.replicas else not is_over
    phrases = (
        f"step {format_count(figures.step, figures.total_steps, of)}" if figures.step is not None else "",
        f"{left} left" if left and not is_over else "",
        f"epoch {format_count(figures.epoch, figures.total_epochs, of)}" if figures.epoch is not None else "",
        f"{format_rate(rate)} examples/s" if rate is not None and is_current else "",
    )
    return tuple(filter(None, phrases))


def describe_figures(job: JobView, left: str = "") -> str:
    """Return `step 120 of 440, 2m left, epoch 3, 1,250 examples/s, loss 0.5`."""
    figures, eta = job.figures, job.status.progress.eta if job.status.progress else ""
    metrics = (format_metric(*metric) for metric in figures.metrics.items())
    return ", ".join((*training_phrases(job, figures, left or eta or ""), *metrics))


def last_events(events: Iterable[PostedEvent], most: int) -> tuple[str, ...]:
    """Return the last events, each with its local time, and how many came before."""
    shown = tuple(events)
    earlier = len(shown) - most
    lines = [f"{time_of_day(event.at)} {event.message}" for event in shown[-most:]]
    return (*([f"{earlier} earlier event{'' if earlier == 1 else 's'}"] if earlier > 0 else []), *lines)


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


def describe_changes(before: JobView | None, after: JobView) -> tuple[str, ...]:
    """Return the lines about the changes from `before` to `after`; `before` is None at the start."""
    old = {replica.name: replica for replica in before.replicas} if before else {}
    about_job = [f"{after.name}: {line}" for line in _state_changes(before, after)]
    about_replicas = [line for each in after.replicas for line in _replica_changes(old.get(each.name), each)]
    about_training = [f"{after.name}: {line}" for line in _training_changes(before, after)]
    return (*about_job, *about_replicas, *about_training)


def _state_changes(before: JobView | None, after: JobView) -> Iterator[str]:
    failure = after.status.first_failure
    if before is not None and failure is not None and failure != before.status.first_failure:
        # Agents may restart training between two states: nothing else says so then.
        is_new = after.status.restarts.last_time != before.status.restarts.last_time
        if is_new and failure.message != after.message:
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
    scored, new = before.evaluation if before else None, after.evaluation
    # The last checkpoint's result is reported again as the final one.
    if new is not None and (scored is None or (scored.step, scored.metrics) != (new.step, new.metrics)):
        yield f"evaluation at {describe_evaluation(new)}"


def _replica_changes(before: ReplicaView | None, after: ReplicaView) -> Iterator[str]:
    known = before.state if before is not None and before.pod == after.pod else None
    if after.pod is None or after.state == known or after.state in _PASSING_STATES:
        return
    if known is not None and after.state == "running":  # TensorFlow is imported; more isn't known
        return
    if known in _PASSING_STATES and after.state in ("training", "waiting"):
        return
    report = after.report
    step = f", step {format_count(report.step, report.total_steps, ' of ')}" if report.step else ""
    yield f"{after.name}: {after.state}{step}"


# Advice on failures, one sentence each.


_NO_MODULE = re.compile(r"No module named '([^']+)'")
_NO_NETWORK = re.compile(r"Network is unreachable|in name resolution|Name or service not known|getaddrinfo")
_NO_FILE = re.compile(r"can't open file '([^']+)'")


@dataclass(frozen=True)
class Advice:
    """What to do, for jobs that ran in one environment.

    The keys of its texts are reasons of failures that need no log (table of exit codes), and what a log says
    is missing: `tensorflow`, `module`, `file` or `command`; `killed` stands before the advice for
    `OutOfMemory` when only SIGKILL is known, and `again` is for everything else.
    """

    texts: Mapping[str, str]

    def on(self, reason: str, exit_code: int | None, log: str) -> str:
        """Return the advice for a first failure with this reason, exit code and end of the log."""
        texts = self.texts
        if reason in texts:
            return texts[reason]
        if module := _NO_MODULE.search(log):
            package = module[1].partition(".")[0]
            if package == "horovod":
                return _HOROVOD
            kind = "tensorflow" if package in ("tensorflow", "keras") else "module"
            return texts[kind].format(module=module[1])
        if file := _NO_FILE.search(log):
            return texts["file"].format(file=file[1])
        if exit_code in (126, 127):
            return texts["command"]
        if "No space left on device" in log:
            return texts["OutputFull"]
        if "network" in texts and _NO_NETWORK.search(log):
            return texts["network"]
        return f"{texts['killed']}: {texts['OutOfMemory']}" if exit_code == 137 else texts["again"]


_SAME_EVERYWHERE = {
    "NotFinite": "try a smaller learning rate or clipped gradients; TRAIN_ON_NAN=skip leaves such steps "
    "out (not with parameter servers)",
    "WeightsDiverged": "check memory and GPUs of the nodes of the workers that the message names; if your "
    "own code gives workers different weights on purpose, set TRAIN_COMPARE_WEIGHTS=false",
    "Stalled": "see in its log what it waits for; spec.stallTimeoutSeconds sets how long it may wait",
    "Fenced": "a newer start of this job writes to the output: see that one",
    "OutputTaken": "give one of the two jobs another name or another output",
    "NcclFailed": "check that each worker has its own GPU, that NCCL uses the pods' network interface "
    "(NCCL_SOCKET_IFNAME), and that /dev/shm has some GiB",
    "PeerLost": "see the logs of the other replicas: one of them failed first",
}

_HOROVOD = (
    "install Horovod in the Python environment or image, with a TensorFlow that it supports: its last "
    "release, 0.28.1, works with TensorFlow 2.12 on Python 3.11 (examples/horovod.Dockerfile)"
)

HERE = Advice(
    {
        **_SAME_EVERYWHERE,
        "InvalidConfiguration": "correct what the message names, and run the same command again",
        "OutputFinished": "start over in a new folder with --fresh, or ask for more epochs to continue from "
        "the end",
        "OutputUnwritable": "make the output folder writable, or choose another one with --folder; a bucket: "
        "trainjob doctor --bucket URI",
        "OutputFull": "free some disk space, or choose another disk with --folder; the same command then "
        "continues",
        "StorageUnavailable": "check that the files or the server that the message names can be reached",
        "PortInUse": "end the program that uses the port, or choose other ports with --base-port",
        "CheckpointMismatch": "the checkpoint belongs to another model: start over with --fresh, or change "
        "the model back",
        "OutOfMemory": "use a smaller batch or model, or fewer replicas on this machine",
        "network": "with several workers the replicas reach only each other: add --network host to give "
        "them this machine's network",
        "tensorflow": "install TensorFlow into the environment that trainjob runs in: "
        "pip install 'trainjob-trainer[cpu]', or [gpu] for NVIDIA GPUs",
        "module": "install the package of '{module}' into the environment that trainjob runs in",
        "file": "there is no {file}: commands start in the folder of the job's file",
        "command": "check the command of the container trainer: it must be installed on this machine",
        "killed": "it was killed by SIGKILL, usually because memory ran out",
        "again": "correct it, and run the same command again: training continues from the last checkpoint, "
        "if any",
    }
)

IN_PYTHON = Advice(
    {
        **HERE.texts,
        "InvalidConfiguration": "correct what the message names, and call run() again",
        "OutputFinished": "start over with run(fresh=True), or ask for more epochs to continue from the end",
        "OutputUnwritable": "make the output folder writable",
        "OutputFull": "free some disk space; the same call then continues",
        "PortInUse": "end the program that uses the port, or call run() again",
        "CheckpointMismatch": "the checkpoint belongs to another model: start over with run(fresh=True), or "
        "change the model back",
        "network": "with several workers the replicas reach only each other: set TRAINJOB_NETWORK=host to "
        "give them this machine's network",
        "module": "install the package of '{module}' into this Python environment",
        "file": "there is no {file}: commands start in the working directory of the call",
        "command": "check command=[...]: the program must be installed on this machine",
        "again": "correct it, and call run() again: training continues from the last checkpoint, if any",
    }
)
"""For runs on this machine that Python code has started."""

ON_CLUSTER = Advice(
    {
        **_SAME_EVERYWHERE,
        "InvalidConfiguration": "correct what the message names, delete the job and submit it again",
        "OutputFinished": "ask for more epochs, or start over in a new folder with spec.output.resume: Never",
        "OutputUnwritable": "let the pods write into the output: see their securityContext.fsGroup, or for a "
        "bucket output.credentials",
        "OutputFull": "make room in the output's volume, or name a larger one in spec.output",
        "StorageUnavailable": "check that the pods can reach the volume or the server that the message names",
        "PortInUse": "another container of the pod uses port 2222 or 2223: the trainer needs these ports, "
        "so choose another one there",
        "CheckpointMismatch": "the checkpoint belongs to another model: start over with spec.output.resume: "
        "Never",
        "OutOfMemory": "raise resources.limits.memory of the container trainer, or use a smaller batch",
        "tensorflow": "the image has no TensorFlow: start from one that has it, or install it there",
        "module": "install the package of '{module}' into the image",
        "file": "there is no {file} in the image: see its WORKDIR and the command of the container trainer",
        "command": "check the command of the container trainer: the image must have it",
        "killed": "it was killed by SIGKILL, usually because memory ran out",
        "again": "correct it, delete the job, submit it again: training continues from the last checkpoint, "
        "if any",
    }
)


# The end of a job: its results, or what failed and what to do.


_SHOWN_LOG_LINES = 20


@dataclass(frozen=True, kw_only=True)
class Results:
    """Where the output and the logs of a job are, in the form that is shown.

    Attributes:
        output: the job's output folder, or in a cluster its address in a bucket.
        models: the models that lie in it, in its own folder `model` or by the script, relative to it.
        checkpoints: where they are; empty if there are none.
        has_events: whether it has event files for TensorBoard.
        logs: the log file of each replica, or the command that prints its log; by replica.
        tails: the last lines of each pod's log, by pod.
        command: the command line, to be repeated.
        starts_over: whether that command starts from the beginning each time.
        copy: of a job in a cluster, the command that copies its output.
    """

    output: str
    models: tuple[str, ...] = ()
    checkpoints: str = ""
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
    checkpoints = f"{path}/checkpoints" if path and job.checkpoint_step is not None else ""
    # Whether the script has left a model isn't known here.
    copy = f"trainjob cp {job.name}: ./{job.name} -n {job.namespace}" if path else ""
    return Results(output=path, checkpoints=checkpoints, logs={failed: command}, advice=ON_CLUSTER, copy=copy)


def results_of(job: JobView) -> Results:
    """Return the results of a job: those in its folder on this machine, or those in its cluster."""
    if not job.folder:
        return results_on_cluster(job)
    from trainjob.client.runs import results_in  # noqa: PLC0415 - it imports this module

    return results_in(Path(job.folder))


Rows = Iterator[tuple[str, str]]
"""Names and texts."""


def write_rows(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a line for each row."""
    return (f"  {name:<13} {text}" for name, text in rows)


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
    elif is_complete:
        lines += _success(job, results)
    if not is_complete:
        lines += (*write_rows(_restarts(job)), *describe_failure(job, results))
        if len(lines) == 1 and condition:
            lines += write_rows([("reason", condition.reason)])
    return (*lines, *write_rows(("notice", each) for each in job.status.notices))


def describe_interruption(job: JobView, results: Results) -> tuple[str, ...]:
    """Return the lines for a run that was interrupted."""
    step = job.checkpoint_step
    place = results.checkpoints or f"{results.output}/checkpoints"
    kept = f" The checkpoint of step {step} is kept in {place}." if step else ""
    if results.starts_over:
        again = "this command starts over each time, in a new folder"
    else:
        how = "continue from there" if step else "start again"
        again = f"{how} with the same command: {results.command}"
    end = f"{job.name} was interrupted; all its processes have ended.{kept}"
    notices = (("notice", each) for each in job.status.notices)
    return (end, *write_rows((*_restarts(job), *notices)), f"  {again}")


_SHOWN_RESTARTS = 10


def _restarts(job: JobView) -> Rows:
    """Yield a row for each restart of a run here: when, who, why, and from which step it continued."""
    texts = last_events((event for event in job.events if event.reason in RESTARTS), _SHOWN_RESTARTS)
    return (("" if number else "restarts", text) for number, text in enumerate(texts))


def _success(job: JobView, results: Results) -> Iterator[str]:
    steps = max((each.report.step or 0 for each in job.replicas), default=0)
    facts = ", ".join(filter(None, (str(steps or ""), describe_resume(job))))
    yield from write_rows([("steps", facts)] if facts else [])
    yield from write_rows(_restarts(job))
    yield from _evaluation(job, results)
    left = {
        "model": _models(results),
        "checkpoints": results.checkpoints,
        "TensorBoard": f"tensorboard --logdir {results.output}" if results.has_events else "",
        "copy it here": results.copy,
    }
    yield from write_rows(row for row in left.items() if row[1])


def _models(results: Results) -> str:
    shown = ", ".join(f"{results.output}/{name}" for name in results.models[:_SHOWN_MODELS])
    more = len(results.models) - _SHOWN_MODELS
    return f"{shown} and {more} more" if more > 0 else shown


_SHOWN_MODELS = 3


def _smoke_test(job: JobView, results: Results) -> Iterator[str]:
    """Yield a line for each thing that a smoke test tries, and whether it worked."""
    trained = [each.name for each in job.replicas if not each.is_evaluator and each.report.step]
    figures, steps = job.figures, job.figures.step or 0
    on = f" on {', '.join(trained)}" if trained else ""
    own = {key: value for key, value in figures.metrics.items() if not key.startswith("val_")}
    held_out = {key: value for key, value in figures.metrics.items() if key.startswith("val_")}
    taken = f"{steps} step{'' if steps == 1 else 's'}{on}: {describe_metrics(own)}" if steps else ""
    saved = f"step {job.checkpoint_step}" if job.checkpoint_step is not None else ""
    score = describe_evaluation(job.last_evaluation) if job.last_evaluation is not None else ""
    unscored = "none was reported" if _has_evaluator(job) else "not tried, the job has no evaluator"
    tried = [
        ("training", taken, "no step was taken"),
        (
            "validation",
            held_out and describe_metrics(held_out),
            "not tried, the training runs no validation",
        ),
        ("checkpoint", saved, "none was saved"),
        ("evaluation", score, unscored),
    ]
    if job.replicas:  # a cluster's job doesn't report it
        tried.append(
            ("export", _models(results), "not tried, only train_and_evaluate writes the model by itself")
        )
    yield from write_rows(
        (what, f"ok: {worked}" if worked else otherwise) for what, worked, otherwise in tried
    )
    if any(each.is_evaluator and each.has_failed for each in job.replicas):
        yield from _evaluation(job, results)


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


def describe_failure(job: JobView, results: Results) -> Iterator[str]:
    """Yield the lines about the first failure of a job: who, how, its log, and what to do if it failed."""
    first = job.status.first_failure
    if first is None or not first.rank:
        return
    code, how = first.exit_code, first.reason
    if code is not None:
        by_signal = {128 + each: f"killed by {each.name}" for each in signal.Signals}
        how = f"{by_signal.get(code, f'exit code {code}')} ({first.reason})"
    step = f", at step {first.step}" if first.step is not None else ""
    node = f", on node {first.node}" if first.node else ""
    yield f"  first failure {first.rank}, {how}{step}{node}"
    tail = results.tails.get(first.pod) or tuple(first.log_tail.splitlines())
    yield from _log(first.rank, tail, results)
    if job.outcome is Outcome.FAILED:
        yield f"  what to do    {results.advice.on(first.reason, first.exit_code, chr(10).join(tail))}"


def _log(replica: str, tail: tuple[str, ...], results: Results) -> Iterator[str]:
    if tail := tuple(line for line in tail if not is_harmless(line)):
        yield f"  the last lines of {replica}:"
        yield from (f"    | {line}" for line in tail[-_SHOWN_LOG_LINES:])
    if replica in results.logs:
        yield f"  whole log     {results.logs[replica]}"
