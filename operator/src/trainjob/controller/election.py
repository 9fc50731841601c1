"""Which of several replicas is at work: the decisions, the Lease, and taking part."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from trainjob.cluster import ClusterError, Manifest, NotFound
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.transport import Resource

# Which of several replicas is at work: the decisions, without a clock and without I/O.
#
# The rules are those of client-go's leader election. A replica never reads the times that another one has
# written, because clocks differ; it measures with its own how long a Lease has stayed as it is. The leader
# stops before that: its deadline counts from before it sent its last renewal, the others' wait from after
# they have seen it. So there are never two, unless one clock runs `lease_seconds / renew_deadline` times as
# fast as another.


@dataclass(frozen=True)
class LeaseDurations:
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
class Observe:
    """Read the Lease."""


@dataclass(frozen=True)
class Acquire:
    """Write the Lease in the own name: instead of this one, whose version is the precondition, or anew."""

    instead_of: Lease | None


@dataclass(frozen=True)
class Wait:
    """Nothing for so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Lost:
    """The leadership is over: do nothing any more."""

    why: str


Step = Observe | Acquire | Wait | Lost


class Candidacy:
    """One replica's part in the election: says what to do next, and is told what came of it.

    Args:
        identity: no other process, also no later one, may have the same.
        terms: the durations.
    """

    def __init__(self, identity: str, terms: LeaseDurations) -> None:
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
            return Wait(min(self._next, self._until or self._next) - now)
        if self._sighting is None or not self._is_current:
            return Observe()
        wait = elect(self._sighting, self._identity, now)
        if wait > 0:
            self._await(now, wait)
            return Wait(self._next - now)
        return Acquire(self._sighting.lease)

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


# The one Lease at the API server.


LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")


class ApiLeases:
    """A `Leases` of the API server.

    Args:
        api: the API server.
        namespace: where the Lease is.
        name: its name.
    """

    def __init__(self, api: ApiClient, namespace: str, name: str) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name

    async def read(self) -> Manifest:
        """See `Leases.read`."""
        return await self._api.get(LEASES, self._namespace, self._name)

    async def create(self, spec: Manifest) -> Manifest:
        """See `Leases.create`."""
        return await self._api.create(LEASES, self._manifest(spec))

    async def replace(self, spec: Manifest, version: str) -> Manifest:
        """See `Leases.replace`."""
        return await self._api.replace(LEASES, self._manifest(spec, version))

    def _manifest(self, spec: Manifest, version: str = "") -> Manifest:
        meta = {"name": self._name, "namespace": self._namespace}
        if version:
            meta["resourceVersion"] = version
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": meta,
            "spec": spec,
        }


# Takes part in the election by a Lease of the API server, and tells when the leadership is won or lost.


_log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""How long to wait for one answer: twice within a leader's deadline."""

RELEASE_SECONDS = 2.0


class LeaseLost(Exception):
    """Another replica is, or may be, the leader now."""


class Leases(Protocol):
    """Where the one Lease is kept. Every method may raise `ClusterError`."""

    async def read(self) -> Manifest:
        """Return the Lease, or raise `NotFound`."""

    async def create(self, spec: Manifest) -> Manifest:
        """Create the Lease, and return it as stored."""

    async def replace(self, spec: Manifest, version: str) -> Manifest:
        """Replace the Lease of that resourceVersion, and return it as stored."""


class Elector:
    """See the module.

    Args:
        leases: where the Lease is.
        identity: who this is; no other process, also no later one, may have the same.
        terms: the durations.
        clock: seconds that only go forward, also while the machine sleeps.
        wall: the time of day, for people who read the Lease.

    Attributes:
        won: set once this replica leads.
        transitions: how often the Lease had changed hands by then; a successor's number is larger.
    """

    def __init__(
        self,
        leases: Leases,
        *,
        identity: str,
        terms: LeaseDurations,
        clock: Callable[[], float],
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._leases = leases
        self._identity = identity
        self._terms = terms
        self._clock = clock
        self._wall = wall
        self._candidacy = Candidacy(identity, terms)
        self.won = asyncio.Event()
        self.transitions = 0

    def leads_until(self) -> float | None:
        """Return the time by `clock` at which the leadership ends unless it is renewed; None without it."""
        return self._candidacy.leads_until()

    async def run(self) -> None:
        """Compete, then renew, until cancelled.

        Raises:
            LeaseLost: after it was won.
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
        """Step back, so that the next one need not wait; only after all work has stopped."""
        if self._candidacy.leads_until() is None:
            return
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                # Read anew: the last renewal may have been stored without its answer having come.
                held = read_lease(await self._leases.read())
                if held.holder == self._identity:
                    await self._leases.replace(self._spec(held, holder="", seconds=1), held.version)
        except (ClusterError, TimeoutError) as error:
            _log.warning("The lease could not be released (%s); the next leader waits until it ends", error)
        else:
            _log.info("Released the lease")

    async def _attempt(self, work: Awaitable[None]) -> None:
        until = self._candidacy.leads_until()
        try:
            async with asyncio.timeout(min(ANSWER_SECONDS, (until or float("inf")) - self._clock())):
                await work
        except (ClusterError, TimeoutError) as error:
            log = _log.warning if until is not None else _log.debug
            log("The lease could not be read or written: %s", str(error) or type(error).__name__)
            self._candidacy.failed(self._clock())

    async def _look(self) -> None:
        try:
            lease = read_lease(await self._leases.read())
        except NotFound:
            lease = None
        self._candidacy.saw(lease, self._clock())

    async def _claim(self, instead_of: Lease | None) -> None:
        sent = self._clock()
        spec = self._spec(instead_of, holder=self._identity, seconds=self._terms.lease_seconds)
        if instead_of is None:
            stored = await self._leases.create(spec)
        else:
            stored = await self._leases.replace(spec, instead_of.version)
        lease = read_lease(stored)
        self._candidacy.claimed(lease, sent, self._clock())
        if not self.won.is_set():
            self.transitions = lease.transitions
            _log.info("%s leads from now on", self._identity)
            self.won.set()

    def _spec(self, instead_of: Lease | None, *, holder: str, seconds: int) -> Manifest:
        now = self._wall().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = instead_of or Lease(holder, 0)
        is_same = before.holder == holder
        return {
            "holderIdentity": holder,
            "leaseDurationSeconds": seconds,
            "acquireTime": before.acquired if is_same and before.acquired else now,
            "renewTime": now,
            "leaseTransitions": before.transitions + (holder != "" and not is_same),
        }


def read_lease(manifest: Manifest) -> Lease:
    """Return what a Lease says; what is missing in one that somebody made by hand means nobody's."""
    spec = manifest.get("spec") or {}
    return Lease(
        holder=spec.get("holderIdentity") or "",
        seconds=spec.get("leaseDurationSeconds") or 0,
        acquired=spec.get("acquireTime") or "",
        renewed=spec.get("renewTime") or "",
        transitions=spec.get("leaseTransitions") or 0,
        version=manifest["metadata"]["resourceVersion"],
    )
