"""Progress reports of training processes, read leniently: a report never breaks a job."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from trainjob.core.lenient import finite, integer, known, mapping, text
from trainjob.core.wording import printable, quoted

_MOST_METRICS = 32
_LONGEST_NAME = 128
_STATE = 64
_LONGEST_SENTENCE = 4096
"""Characters that are looked at."""


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
        state: `starting`, `waiting`, `preparing`, `training`, `saving`, `evaluating`, `finished` or `failed`.
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
    evaluation = raw.get("evaluation")
    return Report(
        state=_state(raw.get("state")),
        step=integer(raw.get("step")),
        total_steps=integer(raw.get("totalSteps")),
        epoch=integer(raw.get("epoch")),
        total_epochs=integer(raw.get("totalEpochs")),
        loss=_number(raw.get("loss")),
        examples_per_second=finite(raw.get("examplesPerSecond")),
        step_seconds=finite(raw.get("stepSeconds")),
        work_seconds=finite(raw.get("workSeconds")),
        input_seconds=finite(raw.get("inputSeconds")),
        metrics=_metrics(raw.get("metrics")),
        checkpoint_step=integer(raw.get("checkpointStep")),
        resumed_from=integer(raw.get("resumedFrom")),
        global_batch=integer(raw.get("globalBatch")),
        evaluation=_evaluation(evaluation) if isinstance(evaluation, Mapping) else None,
        stopped_early=_sentence(raw.get("stoppedEarly")),
    )


def project_progress(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of a report: the known keys, and no value larger than it may be."""
    return known(raw, _PROGRESS)


def _evaluation(raw: Mapping[str, Any]) -> EvaluationResult | None:
    step = integer(raw.get("step"))
    if step is None:
        return None
    return EvaluationResult(step, _metrics(raw.get("metrics")), final=raw.get("final") is True)


def _number(value: object) -> float | None:
    """Return a float; JSON has no NaN or infinity, so reports write them as text."""
    if isinstance(value, float):
        return value
    if isinstance(value, str):
        return float(value) if value in ("nan", "inf", "-inf") else None
    return finite(value)


def _metrics(value: object) -> dict[str, str]:
    return {name: f"{_number(number):.6g}" for name, number in _known_metrics(value).items()}


def _known_metrics(value: object) -> dict[str, Any]:
    """Return the first metrics, as they were reported."""
    numbers = ((name, _figure(n)) for name, n in mapping(value).items() if _is_name(name))
    return dict(islice(((name, n) for name, n in numbers if n is not None), _MOST_METRICS))


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.isprintable() and len(name) <= _LONGEST_NAME


def _state(value: object) -> str:
    return text(value, _STATE)


def _sentence(value: object) -> str:
    return quoted(value[:_LONGEST_SENTENCE]) if isinstance(value, str) else ""


def _figure(value: object) -> object:
    """Return a number as it was reported, or None; one that JSON lacks is text."""
    number = _number(value)
    if number is None:
        return None
    return value if math.isfinite(number) else str(number)


def _known_evaluation(value: object) -> dict[str, Any] | None:
    return known(value, _EVALUATION) if isinstance(value, Mapping) else None


def _known_error(value: object) -> dict[str, Any] | None:
    return known(value, _ERROR) if isinstance(value, Mapping) else None


def _error_message(value: object) -> str:
    return printable(value[:_LONGEST_SENTENCE]) if isinstance(value, str) else ""


_ERROR: Mapping[str, Callable[[Any], object]] = {"reason": text, "message": _error_message}
_EVALUATION: Mapping[str, Callable[[Any], object]] = {
    "step": integer,
    "metrics": _known_metrics,
    "final": lambda value: value is True,
}
_PROGRESS: Mapping[str, Callable[[Any], object]] = {
    "state": _state,
    **dict.fromkeys(("step", "totalSteps", "epoch", "totalEpochs", "globalBatch"), integer),
    **dict.fromkeys(("checkpointStep", "resumedFrom", "evaluatedBatches"), integer),
    **dict.fromkeys(("loss", "examplesPerSecond", "stepSeconds", "workSeconds", "inputSeconds"), _figure),
    "metrics": _known_metrics,
    "evaluation": _known_evaluation,
    "stoppedEarly": _sentence,
    "error": _known_error,
    "time": finite,
}
