"""Progress reports of training processes, read leniently: a report never breaks a job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainjob.core.lenient import INT64_MAX, integer
from trainjob.core.wording import quoted

_MOST_METRICS = 32
_LONGEST_NAME = 128


@dataclass(frozen=True)
class EvaluationResult:
    """What the evaluator measured on one checkpoint; metric values as text, as the status holds them."""

    step: int
    metrics: Mapping[str, str]
    final: bool = False


@dataclass(frozen=True)
class Report:
    """The latest that one training process said of itself; None where it said nothing.

    Attributes:
        state: `starting`, `waiting`, `training`, `saving`, `evaluating`, `finished` or `failed`.
        step: steps done.
        epoch: the current one, from 1.
        checkpoint_step: the step of the newest whole checkpoint.
        resumed_from: the step that this process resumed from.
        step_seconds: what a step took lately.
        work_seconds: what of it was this replica's own work, not waiting for others.
        input_seconds: what of that it waited for its data.
        global_batch: examples a step, of all workers together.
        stopped_early: why training ended before `total_steps`; empty if it didn't.
    """

    state: str = ""
    step: int | None = None
    total_steps: int | None = None
    epoch: int | None = None
    total_epochs: int | None = None
    loss: float | None = None
    examples_per_second: float | None = None
    step_seconds: float | None = None
    work_seconds: float | None = None
    input_seconds: float | None = None
    metrics: Mapping[str, str] = field(default_factory=dict)
    checkpoint_step: int | None = None
    resumed_from: int | None = None
    global_batch: int | None = None
    evaluation: EvaluationResult | None = None
    stopped_early: str = ""


def read_report(raw: Mapping[str, Any]) -> Report:
    """Return the report; values of an unexpected type are left out."""
    evaluation, stopped_early = raw.get("evaluation"), raw.get("stoppedEarly")
    return Report(
        state=str(raw.get("state", "")),
        step=integer(raw.get("step")),
        total_steps=integer(raw.get("totalSteps")),
        epoch=integer(raw.get("epoch")),
        total_epochs=integer(raw.get("totalEpochs")),
        loss=_number(raw.get("loss")),
        examples_per_second=_finite(raw.get("examplesPerSecond")),
        step_seconds=_finite(raw.get("stepSeconds")),
        work_seconds=_finite(raw.get("workSeconds")),
        input_seconds=_finite(raw.get("inputSeconds")),
        metrics=_metrics(raw.get("metrics")),
        checkpoint_step=integer(raw.get("checkpointStep")),
        resumed_from=integer(raw.get("resumedFrom")),
        global_batch=integer(raw.get("globalBatch")),
        evaluation=_evaluation(evaluation) if isinstance(evaluation, Mapping) else None,
        stopped_early=quoted(stopped_early) if isinstance(stopped_early, str) else "",
    )


def _evaluation(raw: Mapping[str, Any]) -> EvaluationResult | None:
    step = integer(raw.get("step"))
    if step is None:
        return None
    return EvaluationResult(step, _metrics(raw.get("metrics")), final=raw.get("final") is True)


def _number(value: object) -> float | None:
    """Return a float; JSON has no NaN or infinity, so reports write them as text."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return float(value) if abs(value) <= INT64_MAX else None
    return float(value) if isinstance(value, float) or value in ("nan", "inf", "-inf") else None


def _finite(value: object) -> float | None:
    """Return a float that the status can hold: NaN is no JSON, and never equals what was written."""
    number = _number(value)
    return number if number is not None and math.isfinite(number) else None


def _metrics(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        return {}
    numbers = {str(name): _number(number) for name, number in value.items()}
    known = {name: f"{n:.6g}" for name, n in numbers.items() if n is not None and _is_name(name)}
    return dict(list(known.items())[:_MOST_METRICS])


def _is_name(text: str) -> bool:
    return text.isprintable() and len(text) <= _LONGEST_NAME
