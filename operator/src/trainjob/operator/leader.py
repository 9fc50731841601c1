"""Which of several replicas is at work: the decisions, without a clock and without I/O.

The rules are those of client-go's leader election. A replica never reads the times that another one has
written, because clocks differ; it measures with its own how long a Lease has stayed as it is. The leader
stops before that: its deadline counts from before it sent its last renewal, the others' wait from after they
have seen it. So there are never two, unless one clock runs `lease_seconds / renew_deadline` times as fast as
another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Terms:
    """How long things may take, in seconds.

    Attributes:
        lease_seconds: for how long others leave an unchanged Lease alone; a whole number.
        renew_deadline: how long a leader goes on without a successful renewal.
        retry_seconds: between two renewals, or two looks at another's Lease.
    """

    lease_seconds: int = 15
    renew_deadline: float = 10.0
    retry_seconds: float = 2.0


@dataclass(frozen=True)
class Lease:
    """What a Lease says.

    Attributes:
        holder: the identity of the leader; empty after it has stepped back.
        seconds: how long to leave the Lease alone once it is no longer renewed.
        acquired: when the holder became the leader, by its own clock; passed on, never compared.
        renewed: when it last said so; only ever compared for being another text.
        transitions: how often the holder has changed.
        version: the resourceVersion.
    """

    holder: str
    seconds: float
    acquired: str = ""
    renewed: str = ""
    transitions: int = 0
    version: str = ""


@dataclass(frozen=True)
class Sighting:
    """The Lease as it was last seen.

    Attributes:
        lease: None when there is none.
        since: the own clock's time when it was first seen in this state.
        closed_seconds: how long from then on it is left alone.
    """

    lease: Lease | None
    since: float
    closed_seconds: float


def see(lease: Lease | None, now: float, before: Sighting | None = None) -> Sighting:
    """Return the sighting that follows `before`; `now` is a time after the answer has arrived."""
    if before is not None and _is_unchanged(before.lease, lease):
        return replace(before, lease=lease)
    if lease is not None:
        return Sighting(lease, now, lease.seconds if lease.holder else 0.0)
    # Whoever held the Lease that was deleted may go on until its deadline, as if it were there.
    return Sighting(None, now, before.closed_seconds if before is not None else 0.0)


def _is_unchanged(before: Lease | None, lease: Lease | None) -> bool:
    """Tell whether nobody has claimed the Lease in between; labels and the like don't count."""
    if before is None or lease is None:
        return before is lease
    return replace(before, version="") == replace(lease, version="")


def elect(sighting: Sighting, identity: str, now: float) -> float:
    """Return how many seconds `identity` must leave the Lease alone; 0 when it may claim it now."""
    if sighting.lease is not None and sighting.lease.holder == identity:
        return 0.0
    return max(0.0, sighting.since + sighting.closed_seconds - now)


@dataclass(frozen=True)
class Look:
    """Read the Lease."""


@dataclass(frozen=True)
class Claim:
    """Write the Lease in the own name: instead of this one, whose version is the precondition, or anew."""

    instead_of: Lease | None


@dataclass(frozen=True)
class Pause:
    """Nothing for so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Lost:
    """The leadership is over: do nothing any more."""

    why: str


Step = Look | Claim | Pause | Lost


class Candidacy:
    """One replica's part in the election: says what to do next, and is told what came of it.

    Args:
        identity: no other process, also no later one, may have the same.
        terms: the durations.
    """

    def __init__(self, identity: str, terms: Terms) -> None:
        self._identity = identity
        self._terms = terms
        self._sighting: Sighting | None = None
        self._is_current = False  # the sighting is what the API server has, as far as we know
        self._next = float("-inf")
        self._until: float | None = None

    def leads_until(self) -> float | None:
        """Return the time at which a leader must have stopped unless it renews; None before it leads."""
        return self._until

    def step(self, now: float) -> Step:
        """Return what to do now."""
        if self._until is not None:
            if now >= self._until:
                return Lost(f"no renewal for {self._terms.renew_deadline:g} s")
            holder = self._sighting.lease.holder if self._sighting and self._sighting.lease else ""
            if self._is_current and holder not in ("", self._identity):
                return Lost(f"{holder} has taken it over")
        if now < self._next:
            return Pause(min(self._next, self._until or self._next) - now)
        if self._sighting is None or not self._is_current:
            return Look()
        wait = elect(self._sighting, self._identity, now)
        if wait > 0:
            self._await(now, wait)
            return Pause(self._next - now)
        return Claim(self._sighting.lease)

    def saw(self, lease: Lease | None, now: float) -> None:
        """A look at the Lease was answered at `now`."""
        self._sighting = see(lease, now, self._sighting)
        self._is_current = True

    def claimed(self, lease: Lease, sent: float, now: float) -> None:
        """A claim that was sent at `sent` is stored as `lease`."""
        self._sighting = see(lease, now, self._sighting)
        self._is_current = True
        self._until = sent + self._terms.renew_deadline
        self._next = sent + self._terms.retry_seconds

    def failed(self, now: float) -> None:
        """Something had no answer, or the Lease has changed in between."""
        self._is_current = False
        # A leader hurries: it has `renew_deadline` for as many attempts as possible.
        self._next = now + self._terms.retry_seconds / (4 if self._until is not None else 1)

    def _await(self, now: float, wait: float) -> None:
        self._is_current = False
        self._next = now + min(wait, self._terms.retry_seconds)
