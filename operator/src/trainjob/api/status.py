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
Points = Annotated[str, Longest(8192)]

Metrics = dict[str, Word]
Figure = Annotated[float, Strict(False)]
Seconds = dict[str, Figure]


class Condition(Reported):
    """One fact about the job, in the form that `kubectl wait` reads."""

    type: Word = Field(description="Queued, Running, Restarting, Suspended, Complete or Failed.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether the condition holds.")
    reason: Word = Field("", description="The reason in one word, for programs.")
    message: Sentence = Field("", description="The reason in one sentence, for people.")
    last_transition_time: Timestamp = Field(description="When status last changed.")
    observed_generation: Int64 | None = Field(None, description="The generation that this is about.")


class WorkerStatus(Reported):
    """The workers, as the scale subresource and the WORKERS column show them."""

    active: NotNegative = Field(0, description="Number of workers whose pods exist and haven't ended.")
    ready: NotNegative = Field(0, description="Number of workers whose pods are ready.")
    size: NotNegative | None = Field(None, description="Number of workers that training was last resized to.")
    unavailable: Annotated[tuple[Word, ...], Strict(False)] = Field(
        (), description="Unavailable workers: training continues without them (minReplicas)."
    )
    summary: Word = Field(
        "", description="Ready workers (at the end those that have trained) and desired ones, such as 2/2."
    )
    memory: Word = Field(
        "", description="The workers' memory limit, if it was raised after an out-of-memory kill."
    )
    selector: Named = Field("", description="Label selector of the worker pods, for the scale subresource.")


class Restarts(Reported):
    """Counts of the restarts."""

    counted: NotNegative = Field(0, description="Number of restarts that count against maxRestarts now.")
    not_counted: NotNegative = Field(
        0, description="Number of restarts after preemption, lost nodes and the like, which don't count."
    )
    reset: NotNegative = Field(
        0, description="Number of restarts that no longer count, since training has made progress."
    )
    since_progress: NotNegative = Field(0, description="Number of restarts since the latest new step.")
    furthest_step: Int64 | None = Field(None, description="The furthest step at which training has failed.")
    steps_lost: NotNegative = Field(0, description="Number of reported steps that had to be repeated.")
    reached_step: Int64 | None = Field(
        None, description="The step before the latest restart, until it is known where training continues."
    )
    same_failures: NotNegative = Field(
        0, description="How many times in a row the latest failure has occurred."
    )
    last_time: Timestamp | None = Field(None, description="When the latest restart was decided.")
    next_time: Timestamp | None = Field(None, description="When training starts again after a start timeout.")
    replaced_pods: Annotated[tuple[Named, ...], Strict(False)] = Field(
        (), description="Pods that the latest decision replaces."
    )
    diverged_nodes: Annotated[tuple[Named, ...], Strict(False)] = Field(
        (), description="Nodes with a worker whose weights differed from the others'."
    )


class StateSeconds(Reported):
    """Where the job's time has gone, in whole seconds, up to the latest change of its state."""

    starting: NotNegative = Field(
        0, description="Seconds until training first ran, and after each suspension."
    )
    training: NotNegative = Field(0, description="Seconds in which training ran.")
    restarting: NotNegative = Field(0, description="Seconds from each failure until training ran again.")
    evaluating: NotNegative = Field(
        0, description="Seconds from the end of training until the final checkpoint was scored."
    )
    suspended: NotNegative = Field(0, description="Seconds in which it was suspended.")
    queued: NotNegative = Field(0, description="Seconds in its queue.")
    since: Timestamp | None = Field(None, description="When the state last changed.")


class Progress(Reported):
    """How far training is, as worker 0 or the chief reported it last."""

    attempt: Int64 | None = Field(None, description="The attempt that reported it.")
    step: Int64 | None = Field(None, description="Number of steps done.")
    state: Word = Field("", description="The activity, such as training, saving or evaluating.")
    since: Timestamp | None = Field(None, description="Time of the latest new step or state.")
    total_steps: Int64 | None = Field(None, description="Number of steps in all, when known.")
    epoch: Int64 | None = Field(None, description="The current epoch, the first is 1.")
    eta: Word | None = Field(None, description="Estimated time left, such as 3m20s.")
    examples_per_second: Figure | None = Field(
        None, description="Examples a second, of all workers together."
    )
    global_batch: Int64 | None = Field(None, description="Examples a step, of all workers together.")
    metrics: Metrics = Field(default_factory=dict, description="The latest metrics by name, loss included.")
    step_seconds: Seconds = Field(default_factory=dict, description="Seconds of a step, by replica.")
    work_seconds: Seconds = Field(
        default_factory=dict, description="Seconds of a step in which the replica itself works, by replica."
    )
    input_seconds: Seconds = Field(
        default_factory=dict,
        description="Seconds of its work in which the replica waits for its data, by replica.",
    )
    time: Timestamp | None = Field(None, description="Time of the report.")


class Straggler(Reported):
    """A replica that all others wait for in every step."""

    replica: Word = Field("", description="Name of the replica, such as worker-2.")
    node: Named = Field("", description="Name of its node.")
    work_seconds: Figure = Field(0.0, description="Seconds of its own work in a step.")
    median_seconds: Figure = Field(0.0, description="Seconds of the others' work in a step, the median.")


class OutputStatus(Reported):
    """The content of the output."""

    path: Path = Field("", description="The job's folder in the volume, or its address in the bucket.")
    checkpoint_step: Int64 | None = Field(None, description="Step of the newest complete checkpoint.")
    checkpoint_time: Timestamp | None = Field(
        None, description="Time at which that checkpoint was first seen."
    )


class Evaluation(Reported):
    """The evaluator's latest result."""

    step: Int64 = Field(description="Step of the checkpoint that was evaluated.")
    metrics: Metrics = Field(default_factory=dict, description="The metrics by name.")


class FirstFailure(Reported):
    """The failure that came first, not those that followed from it."""

    pod: Named = Field("", description="Name of the pod.")
    node: Named = Field("", description="Name of its node.")
    rank: Word = Field("", description="Name of the replica, such as worker-1.")
    reason: Word = Field("", description="The reason in one word, as in the table of exit codes.")
    message: Sentence = Field("", description="The failure in one sentence.")
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
    completion_time: Timestamp | None = Field(
        None, description="When the job finished, as Complete or Failed."
    )
    worker: WorkerStatus | None = Field(None, description="Counts of the workers.")
    restarts: Restarts = Field(default_factory=Restarts, description="Counts of the restarts.")
    state_seconds: StateSeconds = Field(
        default_factory=StateSeconds,
        description="Seconds of the job's time in each state, until the latest change.",
    )
    attempt: Int64 | None = Field(None, description="The current attempt, the first is 1.")
    progress: Progress | None = Field(
        None, description="The progress of training, as worker 0 or the chief reported it last."
    )
    stragglers: Annotated[tuple[Straggler, ...], Strict(False)] = Field(
        (), description="Replicas that all others wait for in every step."
    )
    stragglers_reported: Annotated[tuple[Word, ...], Strict(False)] = Field(
        (), description="Stragglers of this attempt that an event has reported."
    )
    output: OutputStatus | None = Field(None, description="The content of the output.")
    evaluation: Evaluation | None = Field(None, description="The evaluator's latest result.")
    curves: dict[str, Points] = Field(
        default_factory=dict,
        description=(
            "Once training is over: the metrics over its steps, by name (the evaluator's with val_), such as "
            "10:2.3026 20:1.9."
        ),
    )
    first_failure: FirstFailure | None = Field(
        None, description="The failure that caused the end or the latest restart."
    )
    notices: Annotated[tuple[Notice, ...], Strict(False)] = Field(
        (),
        description="The first 8 log lines that say where the computation differs from the script.",
    )
