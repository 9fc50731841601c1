"""What is known of one job's agents from their own words, and whether the latest of it is news."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Report = Mapping[str, Any]
"""An agent's answer; its keys are in `docs/contract.md`."""

_DECISIVE = ("phase", "attempt", "world", "failure", "ledger")
_SEATED = ("pod", "incarnation", "state")


@dataclass(frozen=True)
class _Silence:
    """The leading agent doesn't answer.

    Attributes:
        pod: its pod's uid.
        since: when it was first asked in vain.
        witness: what another agent says, if one was asked.
    """

    pod: str
    since: float
    witness: Report | None = None


class GangRecord:
    """See the module. All times are seconds on one clock that only goes forward.

    Reports are kept as they are given: they come from `project_report`, which bounds them.

    Args:
        figures_seconds: how often figures alone, such as the step, are worth a look at the job.
    """

    def __init__(self, figures_seconds: float) -> None:
        self._figures_seconds = figures_seconds
        self._report: Report | None = None
        self._said: tuple[object, object] = _digest({})
        self._heard_at = 0.0
        self._silence: _Silence | None = None
        self._told: tuple[object, object] | None = None
        self._told_at = float("-inf")

    def hear(self, report: Report, now: float) -> None:
        """Take in the leading agent's answer."""
        self._report, self._heard_at, self._silence = report, now, None
        self._said = _digest(report)

    def miss(self, pod: str, now: float) -> float:
        """Take note that the agent of this pod leads and hasn't answered, and return for how long by now."""
        if self._silence is None or self._silence.pod != pod:
            self._silence = _Silence(pod, now)
        return self.silent_seconds(now)

    @property
    def is_silent(self) -> bool:
        """Tell whether the leading agent hasn't answered the latest call."""
        return self._silence is not None

    def silent_seconds(self, now: float) -> float:
        """Return for how long the leading agent hasn't answered."""
        return now - self._silence.since if self._silence is not None else 0.0

    def testify(self, witnesses: Iterable[Report]) -> None:
        """Take in what other agents say of the silent one: the one that heard of it last is believed."""
        if self._silence is not None:
            witness = min(witnesses, key=_lost_seconds, default=None)
            self._silence = _Silence(self._silence.pod, self._silence.since, witness)

    def rest(self) -> None:
        """Take note that no agent leads now: nobody is silent."""
        self._silence = None

    def gang(self, now: float) -> dict[str, Any] | None:
        """Return all of it for a snapshot; None while no agent has said anything."""
        silence = self._silence
        witness = silence.witness if silence is not None else None
        if self._report is None and witness is None:
            return None
        return {
            **(self._report or {}),
            **({"age": now - self._heard_at} if self._report is not None else {}),
            "unreachableSeconds": self.silent_seconds(now),
            **({"witness": witness} if witness is not None else {}),
        }

    def has_news(self, now: float) -> bool:
        """Tell whether the job is worth a look since this was last said; figures alone are only at times."""
        state = self._state(now)
        is_decisive = self._told is None or self._told[0] != state[0]
        is_due = now - self._told_at >= self._figures_seconds and self._told != state
        if is_decisive or is_due:
            self._told, self._told_at = state, now
        return is_decisive or is_due

    def _state(self, now: float) -> tuple[object, object]:
        """Return what decides something, and the mere figures."""
        if self._silence is not None:
            witness = self._silence.witness
            is_lost = None if witness is None else witness.get("leaderLostSeconds") is not None
            return (self._silence.pod, is_lost), now  # how long it lasts is a figure
        return self._said


def _digest(report: Report) -> tuple[object, object]:
    """Return what of a report decides something, and the mere figures."""
    members = [(seat, member) for seat, member in _members(report) if isinstance(member, Mapping)]
    seats = [(seat, *(m.get(key) for key in _SEATED), _has_stepped(m)) for seat, m in members]
    return ([report.get(key) for key in _DECISIVE], seats), [m.get("report") for _, m in members]


def _members(report: Report) -> Iterable[tuple[str, Any]]:
    members = report.get("members")
    return members.items() if isinstance(members, Mapping) else ()


def _has_stepped(member: Mapping[str, Any]) -> bool:
    """Tell whether training has got to a first step there: somebody is waiting for it."""
    report = member.get("report")
    return isinstance(report, Mapping) and report.get("step") is not None


def _lost_seconds(witness: Report) -> float:
    seconds = witness.get("leaderLostSeconds")
    return float(seconds) if isinstance(seconds, int | float) else 0.0
