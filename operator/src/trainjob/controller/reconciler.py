"""One pass over one job: observe, plan, execute."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby

from trainjob.api import TrainJobStatus
from trainjob.cluster import (
    AlreadyExists,
    Cluster,
    ClusterError,
    JobKey,
    NotFound,
    Refused,
    Snapshot,
    Unavailable,
)
from trainjob.core.actions import Action, Creation, Delete, Plan, Replace
from trainjob.core.dependents import Refusal
from trainjob.core.observed import Observed, read_observed
from trainjob.core.plan import plan
from trainjob.core.settings import Settings

_log = logging.getLogger(__name__)

PORTION = 32
"""Actions at once for one job. The bodies of so many creations exist at a time, and a job of a thousand pods
leaves connections to others.
"""

MOST_TROUBLES = 8
"""Failed passes in a row, some 13 s of waits, before what stands in the way is told as a refusal."""


@dataclass
class _Past:
    """How the creations for one job went lately.

    Attributes:
        uid: the job's: names are used again.
        refusal: the cluster's latest, until one succeeds.
        ahead: it was created for, and the status hasn't been written since.
        troubles: passes in a row whose actions came to nothing.
    """

    uid: str
    refusal: Refusal | None = None
    ahead: bool = False
    troubles: int = 0


class Reconciler:
    """Carries out what `plan` says, and keeps of each job only how its latest creations went.

    Args:
        cluster: where the job lives.
        clock: returns the time, with zone.
        settings: what holds for every job.
    """

    def __init__(
        self, cluster: Cluster, clock: Callable[[], datetime], settings: Settings | None = None
    ) -> None:
        self._cluster = cluster
        self._settings = settings or Settings()
        self._clock = clock
        self._pasts: dict[JobKey, _Past] = {}

    async def reconcile(self, key: JobKey) -> timedelta | None:
        """Bring one job a step on, and return when to look again, or None for not before something changes.

        Raises:
            AlreadyExists, Conflict, NotFound: the job's objects are not what they were observed to be.
            ClusterError: the cluster could not be asked; nothing is lost, try again later.
        """
        snapshot = await self._cluster.observe(key)
        if snapshot is None:
            self._pasts.pop(key, None)
            self._cluster.set_order(key, None)
            return None
        past = self._past_of(key, snapshot)
        observed = self._read(snapshot, past)
        planned = plan(observed, self._clock())
        self._cluster.set_order(key, planned.order)
        # Only for a new job, and once: what can't be created must not keep the status from being written, nor
        # a thousand pods.
        is_new = not snapshot.job.get("status")
        ahead = is_new and planned.only_creates and not past.ahead and len(planned.actions) <= PORTION
        if ahead:
            past.ahead = True
            refused = await self._act(past, planned)
            if self._remember(past, refused, planned) or refused is None:
                return timedelta(0)  # what has come of it goes into the status, behind other jobs' creations
        await self._clear(planned)
        again = planned.creates and not is_new and past.refusal is None
        await self._record(snapshot, observed, planned, always=again)
        past.ahead = False
        if ahead:
            return planned.requeue
        refused = await self._act(past, planned)
        return timedelta(0) if self._remember(past, refused, planned) else planned.requeue

    def _past_of(self, key: JobKey, snapshot: Snapshot) -> _Past:
        uid = snapshot.job["metadata"]["uid"]
        past = self._pasts.get(key)
        if past is None or past.uid != uid:
            past = self._pasts[key] = _Past(uid)
        return past

    def _read(self, snapshot: Snapshot, past: _Past) -> Observed:
        return read_observed(
            job=snapshot.job,
            pods=snapshot.pods,
            service=snapshot.service,
            claim=snapshot.claim,
            network_policy=snapshot.network_policy,
            progress=snapshot.progress,
            refusal=past.refusal,
            settings=self._settings,
            gang=snapshot.gang,
        )

    async def _clear(self, planned: Plan) -> None:
        """Do what comes before the status. A refusal must not keep a job from ending: all go with it."""
        for action in planned.beforehand:
            try:
                await self._execute(action)
            except NotFound:
                pass
            except Refused as refused:
                _log.warning("%s: %s: it goes when the job is deleted", action, refused)

    async def _record(self, snapshot: Snapshot, observed: Observed, planned: Plan, *, always: bool) -> None:
        """Write the status if it differs, and post the events.

        With `always` an equal one is written too, which changes nothing and fails if the job is gone: its
        pods are deleted with it, and that may be heard before its own end is.
        """
        if always or planned.status != observed.status:
            await self._cluster.write_status(
                observed.key, observed.meta.uid, observed.meta.resource_version, dump_status(planned.status)
            )
        for event in planned.events:
            await self._cluster.post_event(
                snapshot.job, type_=event.type, reason=event.reason, message=event.message
            )

    async def _act(self, past: _Past, planned: Plan) -> Refusal | None:
        """Execute the actions, and count the failures in a row: nobody else tells of what never succeeds."""
        try:
            refused = await self._execute_all(planned, is_told=past.troubles >= MOST_TROUBLES)
        except (AlreadyExists, Unavailable):
            past.troubles += 1
            raise
        if refused is None:
            past.troubles = 0
        return refused

    async def _execute_all(self, planned: Plan, *, is_told: bool) -> Refusal | None:
        """Execute the actions in order, up to a creation that is refused.

        A name that is taken stops what comes after its kind, too: pods don't start behind a Service that may
        be anybody's.

        Args:
            planned: what to execute.
            is_told: whether a creation that fails in any way is to be told as a refusal.
        """
        told = (Refused, AlreadyExists, Unavailable) if is_told else (Refused,)
        for group in _groups(planned.actions):
            failed = await self._execute_group(group)
            refusals = [
                _refusal_of(a, e) for a, e in failed if isinstance(a, Creation) and isinstance(e, told)
            ]
            if refusals:
                return next((r for r in refusals if r.permanent), refusals[0])
            errors = [e for _, e in failed]
            if errors:
                raise next((e for e in errors if not isinstance(e, AlreadyExists)), errors[0])
        return None

    async def _execute_group(self, group: tuple[Action, ...]) -> list[tuple[Action, BaseException]]:
        """Execute actions of one kind, a portion at a time, and return those that failed.

        What has come of a portion is known before the next one is begun: where a quota lets in fifty pods of
        a thousand, the others aren't asked for one by one.
        """
        failed: list[tuple[Action, BaseException]] = []
        for begin in range(0, len(group), PORTION):
            portion = group[begin : begin + PORTION]
            results = await asyncio.gather(*map(self._execute, portion), return_exceptions=True)
            outcomes = zip(portion, results, strict=True)
            failed += [(a, e) for a, e in outcomes if e is not None and not _is_fine(a, e)]
            if any(_stops(action, error) for action, error in failed):
                break
            await asyncio.sleep(0)  # a cluster that answers at once lets others go on, too
        return failed

    def _remember(self, past: _Past, refused: Refusal | None, planned: Plan) -> bool:
        """Keep the latest refusal for the next plan, and tell whether it is worth a plan at once."""
        before = past.refusal
        if refused is not None:
            past.refusal = replace(refused, at=self._clock()).after(before)
            return before is None or (before.what, before.reason) != (refused.what, refused.reason)
        if planned.creates:
            past.refusal = None
        return False

    async def _execute(self, action: Action) -> None:
        if isinstance(action, Creation):
            await self._cluster.create(action.build())
        elif isinstance(action, Replace):
            await self._cluster.replace(action.manifest)
        elif isinstance(action, Delete):
            await self._cluster.delete(action.ref)
        else:
            await self._cluster.set_labels(action.ref, dict(action.labels))


def _groups(actions: tuple[Action, ...]) -> Iterator[tuple[Action, ...]]:
    """Divide the actions into runs of one kind: pods only after what they need, deletions after labels."""
    for _, group in groupby(actions, type):
        yield tuple(group)


def _is_fine(action: Action, error: BaseException) -> bool:
    """Tell whether the action has come to nothing because all is as it should be."""
    if isinstance(action, Creation):
        return action.may_exist and isinstance(error, AlreadyExists)
    return isinstance(error, NotFound)


def _stops(action: Action, error: BaseException) -> bool:
    """Tell whether what has come of an action is to be expected of the others of its kind."""
    if isinstance(action, Creation):
        return not isinstance(error, AlreadyExists)  # one name that is taken says nothing of the others
    return isinstance(error, Unavailable)


def _refusal_of(action: Creation, error: ClusterError) -> Refusal:
    return Refusal(
        what=f"{action.kind} {action.name}",
        reason=error.reason if isinstance(error, Refused) else type(error).__name__,
        message=error.message if isinstance(error, Refused) else str(error),
        role=action.role,
    )


def dump_status(status: TrainJobStatus) -> dict[str, object]:
    """Return the status as JSON, without what isn't known."""
    dumped: dict[str, object] = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped
