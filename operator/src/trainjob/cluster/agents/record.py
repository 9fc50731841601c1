"""The latest agent reports of one job, and whether they hold news."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainjob.core.agent_reports import finite, mapping

Report = Mapping[str, Any]
"""An agent report; its keys are in `docs/contract.md`."""

_DECISIVE = ("phase", "attempt", "world", "failure", "restarts")
_STATE = ("pod", "incarnation", "state")


@dataclass(frozen=True)
class _Silence:
    """A leading agent that does not answer.

    Attributes:
        pod: its pod's uid.
        since: time of the first request without an answer.
        witness: the report of another agent, if one was asked.
    """

    pod: str
    since: float
    witness: Report | None = None


class AgentRecord:
    """The latest agent reports of one job. All times are seconds of one monotonic clock.

    Reports are stored unchanged: they come from `project_report`, which bounds them.

    Args:
        figures_seconds: interval at which figures alone, such as the step, count as news.
    """

    def __init__(self, figures_seconds: float) -> None:
        self._figures_seconds = figures_seconds
        self._report: Report | None = None
        self._said: tuple[object, object] = _digest({})
        self._received_at = 0.0
        self._silence: _Silence | None = None
        self._reported: tuple[object, object] | None = None
        self._reported_at = float("-inf")

    def receive(self, report: Report, now: float) -> None:
        """Store the leading agent's report."""
        self._report, self._received_at, self._silence = report, now, None
        self._said = _digest(report)

    def miss(self, pod: str, now: float) -> float:
        """Record that this pod's agent leads and did not answer; return the seconds since the first time."""
        if self._silence is None or self._silence.pod != pod:
            self._silence = _Silence(pod, now)
        return self.silent_seconds(now)

    @property
    def is_silent(self) -> bool:
        """Return whether the leading agent did not answer the latest request."""
        return self._silence is not None

    def silent_seconds(self, now: float) -> float:
        """Return for how many seconds the leading agent has not answered."""
        return now - self._silence.since if self._silence is not None else 0.0

    def testify(self, witnesses: Iterable[Report]) -> None:
        """Store the report of the agent that the silent leader answered last."""
        if self._silence is not None:
            witness = min(witnesses, key=lambda w: finite(w.get("leaderLostSeconds")) or 0.0, default=None)
            self._silence = _Silence(self._silence.pod, self._silence.since, witness)

    def rest(self) -> None:
        """Record that no agent leads now, so that none is silent."""
        self._silence = None

    def agent_report(self, now: float) -> dict[str, Any] | None:
        """Return the reports for a snapshot; None while no agent has reported."""
        silence = self._silence
        witness = silence.witness if silence is not None else None
        if self._report is None and witness is None:
            return None
        return {
            **(self._report or {}),
            **({"age": now - self._received_at} if self._report is not None else {}),
            "unreachableSeconds": self.silent_seconds(now),
            **({"witness": witness} if witness is not None else {}),
        }

    def has_news(self, now: float) -> bool:
        """Return whether there is news since the last True; figures alone count every `figures_seconds`."""
        state = self._state(now)
        is_decisive = self._reported is None or self._reported[0] != state[0]
        is_due = now - self._reported_at >= self._figures_seconds and self._reported != state
        if is_decisive or is_due:
            self._reported, self._reported_at = state, now
        return is_decisive or is_due

    def _state(self, now: float) -> tuple[object, object]:
        """Return the decisive part of the state, and its figures."""
        if self._silence is not None:
            witness = self._silence.witness
            is_lost = None if witness is None else witness.get("leaderLostSeconds") is not None
            return (self._silence.pod, is_lost), now  # its duration is a figure
        return self._said


def _digest(report: Report) -> tuple[object, object]:
    """Return the decisive part of a report, and its figures."""
    members = {name: mapping(member) for name, member in mapping(report.get("members")).items()}
    states = [(name, *(m.get(key) for key in _STATE), _has_stepped(m)) for name, m in members.items()]
    return ([report.get(key) for key in _DECISIVE], states), [m.get("report") for m in members.values()]


def _has_stepped(member: Report) -> bool:
    """Return whether training has reported a first step there, which a user waits for."""
    return mapping(member.get("report")).get("step") is not None
