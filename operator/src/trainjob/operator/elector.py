"""Takes part in the election by a Lease of the API server, and tells when the leadership is won or lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Protocol

from trainjob.cluster import ClusterError, Manifest, NotFound
from trainjob.operator.leader import Candidacy, Claim, Lease, Look, Lost, Pause, Terms

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
        terms: Terms,
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
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                case Look():
                    await self._attempt(self._look())
                case Claim(instead_of):
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
