"""Reports of a job's agents and training processes, read leniently: a report never breaks a job."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import fields, replace
from itertools import chain, islice
from typing import Annotated, Any

from pydantic import AliasPath, BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator
from pydantic.alias_generators import to_camel

from trainjob.api.status import Restarts
from trainjob.core.names import Replica
from trainjob.core.wording import printable, quoted, reason_word
from trainjob_trainer.contract.curves import LARGEST_CURVES, MOST_CURVES
from trainjob_trainer.contract.replicas import NAME, ROLES
from trainjob_trainer.contract.reports import (
    ABSENT,
    LONGEST_MESSAGE,
    LONGEST_NOTICE,
    MOST_NOTICES,
    Failure,
    Report,
)
from trainjob_trainer.contract.restarts import RestartCounts
from trainjob_trainer.contract.wire import integer, key_of

# Values from untrusted JSON: a value of an unexpected type counts as absent.


LONGEST_NAME = 253
"""Characters of an object's name, by Kubernetes' rules."""


def mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object; an empty one for any other value."""
    return value if isinstance(value, Mapping) else {}


def finite(value: object) -> float | None:
    """Return a number that JSON can hold as a float, or None."""
    number = integer(value) if isinstance(value, int) else value
    return float(number) if isinstance(number, int | float) and math.isfinite(number) else None


def text(value: object, longest: int = LONGEST_NAME) -> str:
    """Return the beginning of a text, on one line, without terminal control sequences."""
    if not isinstance(value, str):
        return ""
    if len(value) <= longest and value.isprintable():
        return value
    return printable(" ".join(value[: 4 * longest].splitlines()).replace("\t", " "))[:longest]


# Models of untrusted JSON: a field's validator reads any value.


class Lenient(BaseModel):
    """A JSON object of an untrusted program; unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, defer_build=True)

    @classmethod
    def keep(cls, raw: object) -> dict[str, Any]:
        """Return the part of an object that is kept: the model's keys, with values cut to their limits."""
        return cls.model_validate(mapping(raw)).model_dump(by_alias=True, exclude_unset=True)


# Types of fields.


_MOST_METRICS = 32
_LONGEST_METRIC = 128


def read_replica(name: object) -> Replica | None:
    """Return the replica of a name such as `worker-1`, or None."""
    found = NAME.fullmatch(str(name))
    return Replica(found[1], int(found[2])) if found else None


def _number(value: object) -> float | None:
    """Return a float; JSON has no NaN or infinity, so reports write them as text."""
    if isinstance(value, float) or (isinstance(value, str) and value in ("nan", "inf", "-inf")):
        return float(value)
    return finite(value)


def _figure(value: object) -> object:
    """Return a number as it was reported, or None; NaN and infinities become text."""
    number = _number(value)
    if number is None:
        return None
    return value if math.isfinite(number) else str(number)


def _known_metrics(value: object) -> dict[str, Any]:
    """Return the first `_MOST_METRICS` metrics, as they were reported."""
    metrics = mapping(value).items()
    numbers = ((name, _figure(n)) for name, n in metrics if text(name, _LONGEST_METRIC) == name)
    return dict(islice(((name, n) for name, n in numbers if n is not None), _MOST_METRICS))


def _metrics(value: object) -> dict[str, str]:
    return {name: f"{float(number):.6g}" for name, number in _known_metrics(value).items()}


def _dump_metrics(metrics: Mapping[str, str]) -> dict[str, float | str]:
    """Return metrics as a report has them: as numbers; NaN and infinities are text there too."""
    numbers = {name: float(text) for name, text in metrics.items()}
    return {name: n if math.isfinite(n) else metrics[name] for name, n in numbers.items()}


def _world(value: object) -> dict[str, int]:
    counts = {role: integer(mapping(value).get(role)) for role in ROLES}
    return {role: n for role, n in counts.items() if n is not None}


def merge_notices(*sources: Iterable[str]) -> tuple[str, ...]:
    """Return the first `MOST_NOTICES` notices of all sources, each once, those that are known first."""
    return tuple(dict.fromkeys(chain(*sources)))[:MOST_NOTICES]


def _notices(value: object) -> list[str]:
    lines = (text(line, LONGEST_NOTICE) for line in (value if isinstance(value, list) else ()))
    return list(merge_notices(filter(None, lines)))


def _start(value: object) -> str:
    return value[:4096] if isinstance(value, str) else ""


def _word(value: object) -> str:
    return text(value, 32)


Int = Annotated[int | None, PlainValidator(integer)]
Finite = Annotated[float | None, PlainValidator(finite)]
Seconds = Annotated[float, PlainValidator(lambda value: finite(value) or 0.0)]
Metrics = Annotated[Mapping[str, str], PlainValidator(_metrics), PlainSerializer(_dump_metrics)]
Notices = Annotated[list[str], PlainValidator(_notices)]
Flag = Annotated[bool, PlainValidator(lambda value: value is True)]
Text = Annotated[str, PlainValidator(text)]
Word = Annotated[str, PlainValidator(_word)]


# Progress reports of training processes.


class EvaluationResult(Lenient):
    """The evaluator's result for one checkpoint; metric values are text, as in the status."""

    step: Annotated[int, PlainValidator(integer)]
    metrics: Metrics = Field(default_factory=dict)
    final: Flag = False


def evaluation_of(report: Report | None) -> EvaluationResult | None:
    """Return the evaluator's result in a report, or None."""
    known = report.evaluation if report is not None else None
    return EvaluationResult.model_validate(known) if known is not None else None


def _evaluation(value: object) -> dict[str, Any] | None:
    step, raw = integer(mapping(value).get("step")), mapping(value)
    if step is None:
        return None
    return {"step": step, "metrics": _known_metrics(raw.get("metrics")), "final": raw.get("final") is True}


def _curves(value: object) -> dict[str, str] | None:
    """Return the texts of curves if they are short enough; their points are read once the job is over."""
    texts = ((name, each) for name, each in mapping(value).items() if text(name, _LONGEST_METRIC) == name)
    kept = dict(islice(((n, t) for n, t in texts if isinstance(t, str) and t.isascii()), MOST_CURVES))
    return kept if 0 < sum(map(len, (*kept, *kept.values()))) <= LARGEST_CURVES else None


def _error(value: object) -> dict[str, str] | None:
    if not isinstance(value, Mapping):
        return None
    return {"reason": text(value.get("reason")), "message": printable(_start(value.get("message")))}


_BY_TYPE: Mapping[str, Callable[[Any], object]] = {
    "int | None": integer,
    "float | None": finite,
    "bool | None": lambda value: True if value is True else None,
    "str | None": lambda value: quoted(_start(value)) or None,
}
_READERS: Mapping[str, Callable[[Any], object]] = {
    "state": lambda value: text(value, 64),
    "loss": _number,
    "metrics": lambda value: {name: _number(n) for name, n in _known_metrics(value).items()} or None,
    "evaluation": _evaluation,
    "curves": _curves,
    "error": _error,
    "notices": lambda value: tuple(_notices(value)) or None,
}
"""Of the fields of a progress report that aren't read by their type."""


_FIELDS = [
    (each.name, key_of(each.name), _READERS.get(each.name) or _BY_TYPE[str(each.type)])
    for each in fields(Report)
]


def read_report(raw: Mapping[str, Any]) -> Report:
    """Return the progress report of a training process, each value cut to its limits."""
    values: dict[str, Any] = {name: read(raw.get(key)) for name, key, read in _FIELDS}
    return Report(**values)


# Reports of a job's agents.
#
# An agent runs in the user's image, so its reports are untrusted: they are cut to the known keys, replicas
# and lengths before they are kept, and their texts are cleaned of terminal control sequences.


def read_failure(value: object) -> Failure | None:
    """Return the failure that an agent reports, with printable texts; None if it names no replica."""
    raw = mapping(value)
    if read_replica(raw.get("replica")) is None:
        return None
    failure = Failure.from_json(raw)
    return replace(
        failure,
        pod=text(failure.pod),
        reason=reason_word(failure.reason, "Crashed"),
        message=text(failure.message, LONGEST_MESSAGE),
        log_tail=printable(failure.log_tail),
    )


def restart_counts(attempt: int, restarts: Restarts) -> RestartCounts:
    """Return the restart counts of a status, for the agents."""
    return RestartCounts(
        attempt,
        counted=restarts.counted + restarts.reset,
        not_counted=restarts.not_counted,
        reset=restarts.reset,
        since_progress=restarts.since_progress,
        furthest_step=restarts.furthest_step,
    )


def _read_known(value: object) -> Report | None:
    return read_report(value) if isinstance(value, Mapping) else None


_AS_JSON = PlainSerializer(lambda value: None if value is None else value.to_json())


class Member(Lenient):
    """One replica as the leading agent sees it.

    Attributes:
        state: `absent`, `idle`, `running`, `stopping`, `finished` or `lost`.
        seconds: how long it has been in that state.
    """

    pod: Text = ""
    incarnation: Int = None
    state: Annotated[str, PlainValidator(lambda value: _word(value) or ABSENT)] = ABSENT
    seconds: Seconds = 0.0
    report: Annotated[Report | None, PlainValidator(_read_known), _AS_JSON] = None


class SentReport(Lenient):
    """The report of any agent, without the leading agent's `members`.

    Attributes:
        phase: `meeting`, `running`, `stopping`, `finished` or `failed`.
        restart_counts: the agents' own.
        world: replicas of each training role in the current attempt.
        failure: the cause of the latest restart, or of the end.
        notices: those of all replicas and attempts, as long as this agent has led.
    """

    type: Word = ""
    role: Word = ""
    phase: Word = ""
    child: Word = ""
    phase_seconds: Finite = None
    leader_lost_seconds: Finite = None
    beat_age: Finite = None
    replica: Text = ""
    pod: Text = ""
    attempt: Int = None
    incarnation: Int = None
    stopped: Flag = False
    report: Annotated[Report | None, PlainValidator(_read_known), _AS_JSON] = None
    world: Annotated[Mapping[str, int], PlainValidator(_world)] = Field(default_factory=dict)
    failure: Annotated[Failure | None, PlainValidator(read_failure), _AS_JSON] = None
    restart_counts: Annotated[RestartCounts, PlainValidator(RestartCounts.from_json), _AS_JSON] = Field(
        default_factory=RestartCounts, alias="restarts"
    )
    notices: Notices = Field(default_factory=list)


def _members(value: object) -> dict[Replica, Member]:
    return {
        replica: Member.model_validate(mapping(member))
        for name, member in mapping(value).items()
        if (replica := read_replica(name)) is not None
    }


class AgentReport(SentReport):
    """The leading agent's latest report, as a snapshot has it.

    Attributes:
        unreachable: seconds for which no agent has answered the controller.
        leader_lost: seconds for which another agent hasn't reached the leading one, or None.
    """

    members: Annotated[Mapping[Replica, Member], PlainValidator(_members)] = Field(default_factory=dict)
    unreachable: Seconds = Field(0.0, alias="unreachableSeconds")
    leader_lost: Finite = Field(None, validation_alias=AliasPath("witness", "leaderLostSeconds"))


def project_report(raw: Mapping[str, Any], replicas: Container[str]) -> dict[str, Any]:
    """Return the part of an agent report that is kept: known keys and replicas, values cut to their limits.

    Args:
        raw: as the agent has sent it.
        replicas: names of the replicas that the job has, or has pods of.
    """
    members = mapping(raw.get("members"))
    kept = {name: Member.keep(member) for name, member in members.items() if name in replicas}
    return {**SentReport.keep(raw), **({"members": kept} if "members" in raw else {})}


class TerminationMessage(SentReport):
    """The termination message of an agent that has failed.

    Attributes:
        gave_up: the agents have decided not to restart training.
    """

    gave_up: Flag = False


def read_termination_message(raw: Mapping[str, Any]) -> TerminationMessage | None:
    """Return an agent's termination message, or None if another program wrote it."""
    return TerminationMessage.model_validate(raw) if raw.get("agent") == 1 else None
