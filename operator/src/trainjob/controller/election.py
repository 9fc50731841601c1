"""Leader election of the controller's replicas: the decisions, and the elector that carries them out.

The rules are those of client-go's leader election. Clocks differ, so a replica never interprets another
one's times; it measures with its own clock how long a Lease stays unchanged. The leader stops earlier: its
deadline counts from before it sent its last renewal, the wait of the others from after they observed that
renewal. So there are never two leaders, unless one clock runs `lease_seconds / renew_deadline` times as fast
as another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from trainjob.cluster import ClusterError, Manifest, NotFound
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.resources import Resource

_log = logging.getLogger(__name__)

LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")

ANSWER_SECONDS = 5.0
"""The timeout of one request; two of them fit into a leader's deadline."""

RELEASE_SECONDS = 2.0


@dataclass(frozen=True)
class Election:
    """The Lease of an election, and its durations in seconds.

    Attributes:
        namespace: of the Lease.
        name: of the Lease.
        lease_seconds: for how long other replicas respect an unchanged Lease; a whole number.
        renew_deadline: how long a leader keeps leading without a successful renewal.
        retry_seconds: between two renewals, or two reads of another replica's Lease.
    """

    namespace: str
    name: str = "trainjob-controller"
    lease_seconds: int = 15
    renew_deadline: float = 10.0
    retry_seconds: float = 2.0


@dataclass(frozen=True)
class Lease:
    """The content of a Lease.

    Attributes:
        holder: the identity of the leader; empty after a release.
        seconds: how long to respect the Lease once it is no longer renewed.
        acquired: when the holder became the leader, by its own clock; copied, never compared.
        renewed: when the holder last renewed it, by its own clock; compared as text for equality only.
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
    """The Lease as last observed.

    Attributes:
        lease: None if there is none.
        since: when this state was first observed, by the own clock.
        closed_seconds: for how long after `since` no other replica may acquire it.
    """

    lease: Lease | None
    since: float
    closed_seconds: float


def see(lease: Lease | None, now: float, before: Sighting | None = None) -> Sighting:
    """Return the sighting that follows `before`; `now` is a time after the response arrived."""
    if before is not None:
        old = before.lease
        if old is lease is None or (old and lease and replace(old, version=lease.version) == lease):
            return replace(before, lease=lease)  # labels and the like don't count
    if lease is not None:
        return Sighting(lease, now, lease.seconds if lease.holder else 0.0)
    # The holder of a deleted Lease may lead until its deadline, as if the Lease still existed.
    return Sighting(None, now, before.closed_seconds if before is not None else 0.0)


def elect(sighting: Sighting, identity: str, now: float) -> float:
    """Return how many seconds `identity` must wait before it may acquire the Lease; 0 if it may now."""
    if sighting.lease is not None and sighting.lease.holder == identity:
        return 0.0
    return max(0.0, sighting.since + sighting.closed_seconds - now)


@dataclass(frozen=True)
class Observe:
    """Read the Lease."""


@dataclass(frozen=True)
class Acquire:
    """Write the Lease with the own identity: replace `instead_of` at its version, or create it if None."""

    instead_of: Lease | None


@dataclass(frozen=True)
class Wait:
    """Do nothing for so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Lost:
    """The leadership has ended: stop all work."""

    why: str


class Candidacy:
    """One replica's state in the election, without a clock and I/O: the next step, and the results of steps.

    Args:
        identity: the name of this process; no other process, not even a later one, may use it.
        election: its durations.

    Attributes:
        leads_until: when the leadership ends unless it is renewed; None before it begins.
    """

    def __init__(self, identity: str, election: Election) -> None:
        self._identity = identity
        self._election = election
        self._sighting: Sighting | None = None
        self._is_current = False  # the sighting is the API server's state, as far as known
        self._next = float("-inf")
        self.leads_until: float | None = None

    def step(self, now: float) -> Observe | Acquire | Wait | Lost:
        """Return the next step."""
        until, seen = self.leads_until, self._sighting if self._is_current else None
        if until is not None:
            if now >= until:
                return Lost(f"no renewal for {self._election.renew_deadline:g} s")
            holder = seen.lease.holder if seen and seen.lease else ""
            if holder not in ("", self._identity):
                return Lost(f"{holder} has taken it over")
        if now < self._next:
            return Wait(min(self._next, until or self._next) - now)
        if seen is None:
            return Observe()
        wait = min(elect(seen, self._identity, now), self._election.retry_seconds)
        if wait > 0:
            self._is_current = False
            self._next = now + wait
            return Wait(self._next - now)
        return Acquire(seen.lease)

    def saw(self, lease: Lease | None, now: float) -> None:
        """Record the Lease that was read, or None; `now` is a time after the response arrived."""
        self._sighting = see(lease, now, self._sighting)
        self._is_current = True

    def claimed(self, lease: Lease, sent: float, now: float) -> None:
        """Record that the Lease written at `sent` is stored as `lease`."""
        self.saw(lease, now)
        self.leads_until = sent + self._election.renew_deadline
        self._next = sent + self._election.retry_seconds

    def failed(self, now: float) -> None:
        """Record that a request failed, or that the Lease changed in between."""
        self._is_current = False
        # A leader retries faster, to make more attempts within `renew_deadline`.
        self._next = now + self._election.retry_seconds / (4 if self.leads_until is not None else 1)


class LeaseLost(Exception):
    """Another replica is, or may be, the leader now."""


class Elector:
    """Takes part in the election, and reports when the leadership is won or lost.

    Args:
        api: the API server with the Lease.
        election: the Lease.
        identity: the name of this process; no other process, not even a later one, may use it.
        clock: returns seconds of a monotonic clock that includes the machine's sleep.
        wall: returns the time of day, for people who read the Lease.

    Attributes:
        won: set once this replica leads.
        transitions: how often the holder had changed by then; a successor's number is larger.
    """

    def __init__(
        self,
        api: ApiClient,
        election: Election,
        *,
        identity: str,
        clock: Callable[[], float],
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._election = election
        self._identity = identity
        self._clock = clock
        self._wall = wall
        self._candidacy = Candidacy(identity, election)
        self.won = asyncio.Event()
        self.transitions = 0

    def leads_until(self) -> float | None:
        """Return the time by `clock` at which the leadership ends unless renewed; None before it begins."""
        return self._candidacy.leads_until

    async def run(self) -> None:
        """Acquire the Lease, then renew it, until cancelled.

        Raises:
            LeaseLost: the leadership has ended.
        """
        while True:
            match self._candidacy.step(self._clock()):
                case Lost(why):
                    raise LeaseLost(why)
                case Wait(seconds):
                    await asyncio.sleep(seconds)
                case Observe():
                    await self._attempt(self._look())
                case Acquire(instead_of):
                    await self._attempt(self._claim(instead_of))

    async def release(self) -> None:
        """Release the Lease, so that the next leader need not wait; call it after all work has stopped."""
        if self.leads_until() is None:
            return
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                # Read again: the last renewal may be stored although its response was lost.
                held = await self._read()
                if held is not None and held.holder == self._identity:
                    await self._write(held, holder="", seconds=1)
        except (ClusterError, TimeoutError) as error:
            _log.warning("The lease could not be released (%s); the next leader waits until it ends", error)
        else:
            _log.info("Released the lease")

    async def _attempt(self, work: Awaitable[None]) -> None:
        until = self.leads_until()
        try:
            async with asyncio.timeout(min(ANSWER_SECONDS, (until or float("inf")) - self._clock())):
                await work
        except (ClusterError, TimeoutError) as error:
            log = _log.warning if until is not None else _log.debug
            log("The lease could not be read or written: %s", str(error) or type(error).__name__)
            self._candidacy.failed(self._clock())

    async def _look(self) -> None:
        self._candidacy.saw(await self._read(), self._clock())

    async def _claim(self, instead_of: Lease | None) -> None:
        sent = self._clock()
        seconds = self._election.lease_seconds
        lease = await self._write(instead_of, holder=self._identity, seconds=seconds)
        self._candidacy.claimed(lease, sent, self._clock())
        if not self.won.is_set():
            self.transitions = lease.transitions
            _log.info("%s is now the leader", self._identity)
            self.won.set()

    async def _read(self) -> Lease | None:
        try:
            return read_lease(await self._api.get(LEASES, self._election.namespace, self._election.name))
        except NotFound:
            return None

    async def _write(self, instead_of: Lease | None, *, holder: str, seconds: int) -> Lease:
        """Replace the Lease at its version, or create it if None, and return it as stored."""
        now = self._wall().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = instead_of or Lease(holder, 0)
        is_same = before.holder == holder
        metadata = {"name": self._election.name, "namespace": self._election.namespace}
        lease: Manifest = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": metadata,
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": seconds,
                "acquireTime": before.acquired if is_same and before.acquired else now,
                "renewTime": now,
                "leaseTransitions": before.transitions + (holder != "" and not is_same),
            },
        }
        if instead_of is None:
            return read_lease(await self._api.create(LEASES, lease))
        metadata["resourceVersion"] = instead_of.version
        return read_lease(await self._api.replace(LEASES, lease))


def read_lease(manifest: Manifest) -> Lease:
    """Return the content of a Lease; fields that are missing, as in one created by hand, are empty or 0."""
    spec = manifest.get("spec") or {}
    return Lease(
        holder=spec.get("holderIdentity") or "",
        seconds=spec.get("leaseDurationSeconds") or 0,
        acquired=spec.get("acquireTime") or "",
        renewed=spec.get("renewTime") or "",
        transitions=spec.get("leaseTransitions") or 0,
        version=manifest["metadata"]["resourceVersion"],
    )
