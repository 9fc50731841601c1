"""What the controller reports about a job."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Strict

from trainjob.api.fields import Int64, Longest, NotNegative, Reported, Timestamp

Word = Annotated[str, Longest(64)]
Named = Annotated[str, Longest(253)]
Sentence = Annotated[str, Longest(2048)]
Notice = Annotated[str, Longest(300)]
LogTail = Annotated[str, Longest(2048)]
Path = Annotated[str, Longest(4096)]

Metrics = dict[str, Word]
Figure = Annotated[float, Strict(False)]
Seconds = dict[str, Figure]


class Condition(Reported):
    """One fact about the job, in the form that `kubectl wait` reads."""

    type: Word = Field(description="Queued, Running, Restarting, Suspended, Complete or Failed.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: Word = Field("", description="One word, for programs.")
    message: Sentence = Field("", description="One sentence, for people.")
    last_transition_time: Timestamp = Field(description="When status last changed.")
    observed_generation: Int64 | None = Field(None, description="The generation that this is about.")


class WorkerStatus(Reported):
    """The workers, as the scale subresource and the WORKERS column show them."""

    active: NotNegative = Field(0, description="Workers whose pods exist and haven't ended.")
    ready: NotNegative = Field(0, description="Workers whose pods are ready.")
    size: NotNegative | None = Field(None, description="Workers that training was last resized to.")
    unavailable: Annotated[tuple[Word, ...], Strict(False)] = Field(
        (), description="Unavailable workers: training continues without them (minReplicas)."
    )
    summary: Word = Field(
        "", description="Ready workers (at the end those that have trained) and desired ones, such as 2/2."
    )
    selector: Named = Field("", description="Label selector of the worker pods, for the scale subresource.")


class Restarts(Reported):
    """How often training was restarted."""

    charged: NotNegative = Field(0, description="Restarts that count against maxRestarts.")
    uncharged: NotNegative = Field(0, description="Restarts after preemption, lost nodes and the like.")
    refunded: NotNegative = Field(
        0, description="Charged restarts that count no more: training has come further since."
    )
    since_progress: NotNegative = Field(0, description="Restarts in a row without a new step.")
    furthest_step: Int64 | None = Field(None, description="The furthest step at which training has failed.")
    steps_lost: NotNegative = Field(
        0, description="Steps that were done and had to be done again, as far as they were reported."
    )
    reached_step: Int64 | None = Field(
        None, description="The step before the latest restart, until it is known where training continues."
    )
    same: NotNegative = Field(0, description="How many times in a row the latest failure was the same.")
    last_time: Timestamp | None = Field(None, description="When the latest restart was decided.")
    next_time: Timestamp | None = Field(None, description="When training starts again after a start timeout.")
    replaced: Annotated[tuple[Named, ...], Strict(False)] = Field(
        (), description="Pods that the latest decision replaces."
    )
    diverged_nodes: Annotated[tuple[Named, ...], Strict(False)] = Field(
        (), description="Nodes whose workers' weights came apart from the others'."
    )


class Spent(Reported):
    """Where the job's time has gone, in whole seconds, up to the latest change of its state."""

    starting: NotNegative = Field(0, description="Until training first ran, and after a suspension.")
    training: NotNegative = Field(0, description="While training ran.")
    restarting: NotNegative = Field(0, description="From each failure until training ran again.")
    evaluating: NotNegative = Field(0, description="After training, until the final checkpoint was scored.")
    suspended: NotNegative = Field(0, description="While the user held it.")
    queued: NotNegative = Field(0, description="While its queue held it.")
    since: Timestamp | None = Field(None, description="When the state last changed.")


class Progress(Reported):
    """How far training is, as worker 0 or the chief reported it last."""

    attempt: Int64 | None = Field(None, description="The attempt that this is from.")
    step: Int64 | None = Field(None, description="Steps done.")
    state: Word = Field("", description="What it does, such as training, saving or evaluating.")
    since: Timestamp | None = Field(None, description="Since when: its last new step or other state.")
    total_steps: Int64 | None = Field(None, description="Steps in all, when known.")
    epoch: Int64 | None = Field(None, description="The current epoch, the first is 1.")
    eta: Word | None = Field(None, description="Time left, such as 3m20s.")
    examples_per_second: Figure | None = Field(None, description="Examples a second of all workers together.")
    global_batch: Int64 | None = Field(None, description="Examples a step, of all workers together.")
    metrics: Metrics = Field(default_factory=dict, description="Latest values, loss included, as strings.")
    step_seconds: Seconds = Field(default_factory=dict, description="What a step takes, by replica.")
    work_seconds: Seconds = Field(
        default_factory=dict, description="What each replica's own share of a step takes, without waits."
    )
    input_seconds: Seconds = Field(
        default_factory=dict, description="What of that each replica waits for its data."
    )
    time: Timestamp | None = Field(None, description="When this was reported.")


class Straggler(Reported):
    """A replica that all others wait for in every step."""

    replica: Word = Field("", description="Such as worker-2.")
    node: Named = Field("", description="Name of its node.")
    work_seconds: Figure = Field(0.0, description="Its own work in a step.")
    median_seconds: Figure = Field(0.0, description="The median of the others.")


class OutputStatus(Reported):
    """What lies in the output."""

    path: Path = Field("", description="The job's folder.")
    checkpoint_step: Int64 | None = Field(None, description="Step of the newest whole checkpoint.")
    checkpoint_time: Timestamp | None = Field(None, description="When that checkpoint was first seen.")


class Evaluation(Reported):
    """The evaluator's latest result."""

    step: Int64 = Field(description="Step of the checkpoint that was evaluated.")
    metrics: Metrics = Field(default_factory=dict, description="The results by name.")


class FirstFailure(Reported):
    """The failure that came first, not those that followed from it."""

    pod: Named = Field("", description="Name of the pod.")
    node: Named = Field("", description="Name of its node.")
    rank: Word = Field("", description="The replica, such as worker-1.")
    reason: Word = Field("", description="One word, as in the table of exit codes.")
    message: Sentence = Field("", description="One sentence.")
    exit_code: Int64 | None = Field(
        None, description="Exit code of the training process, or of the init container."
    )
    step: Int64 | None = Field(None, description="The last step that it reported.")
    log_tail: LogTail = Field("", description="The last lines of its log.")


class TrainJobStatus(Reported):
    """What the controller last observed; only the controller writes it."""

    observed_generation: Int64 | None = Field(None, description="The generation that this status is about.")
    conditions: Annotated[tuple[Condition, ...], Strict(False)] = Field(
        (), description="Queued, Running, Restarting, Suspended, Complete and Failed."
    )
    state: Word | None = Field(None, description="The state, such as Running or Waiting for storage.")
    message: Sentence | None = Field(None, description="The state in one sentence that explains it.")
    start_time: Timestamp | None = Field(None, description="When the controller first acted on the job.")
    first_step_time: Timestamp | None = Field(None, description="When the first step was reported.")
    completion_time: Timestamp | None = Field(None, description="When the job finished, well or not.")
    worker: WorkerStatus | None = Field(None, description="The workers.")
    restarts: Restarts = Field(default_factory=Restarts, description="How often training was restarted.")
    spent: Spent = Field(default_factory=Spent, description="Where the time has gone, in seconds.")
    attempt: Int64 | None = Field(None, description="The current attempt, the first is 1.")
    progress: Progress | None = Field(None, description="How far training is.")
    stragglers: Annotated[tuple[Straggler, ...], Strict(False)] = Field(
        (), description="Replicas that all others wait for in every step."
    )
    stragglers_reported: Annotated[tuple[Word, ...], Strict(False)] = Field(
        (), description="Those of this attempt that there was an event for."
    )
    output: OutputStatus | None = Field(None, description="What lies in the output.")
    evaluation: Evaluation | None = Field(None, description="The evaluator's latest result.")
    first_failure: FirstFailure | None = Field(
        None, description="The failure behind the end or last restart."
    )
    notices: Annotated[tuple[Notice, ...], Strict(False)] = Field(
        (),
        description="The first 8 log lines that say what was computed otherwise than the script says.",
    )
