"""One pass over one job: observe, plan, execute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import groupby

from trainjob.api import TrainJobStatus
from trainjob.cluster import AlreadyExists, Cluster, JobKey, NotFound, Refused, Snapshot
from trainjob.core.actions import Action, Create, Delete, Plan
from trainjob.core.names import LABEL_ROLE
from trainjob.core.observed import Observed, Refusal, read_observed
from trainjob.core.plan import plan
from trainjob.core.settings import Settings


class Reconciler:
    """Carries out what `plan` says, and keeps nothing but the cluster's latest refusal of each job.

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
        self._refusals: dict[JobKey, tuple[str, Refusal]] = {}  # with the job's uid: names are used again

    async def reconcile(self, key: JobKey) -> timedelta | None:
        """Bring one job a step on, and return when to look again, or None for not before something changes.

        Raises:
            AlreadyExists, Conflict, NotFound: the job's objects are not what they were observed to be.
            ClusterError: the cluster could not be asked; nothing is lost, try again later.
        """
        snapshot = await self._cluster.observe(key)
        if snapshot is None:
            self._refusals.pop(key, None)
            return None
        observed = self._read(snapshot)
        planned = plan(observed, self._clock())
        if planned.only_creates:
            refused = await self._act(planned)
            if self._remember(observed, refused, planned) or refused is None:
                return timedelta(0)  # what has come of it goes into the status, behind other jobs' creations
            await self._record(snapshot, observed, planned)
            return planned.requeue
        await self._record(snapshot, observed, planned)
        refused = await self._act(planned)
        return timedelta(0) if self._remember(observed, refused, planned) else planned.requeue

    def _read(self, snapshot: Snapshot) -> Observed:
        meta = snapshot.job["metadata"]
        uid, refusal = self._refusals.get(JobKey(meta["namespace"], meta["name"]), ("", None))
        return read_observed(
            job=snapshot.job,
            pods=snapshot.pods,
            service=snapshot.service,
            claim=snapshot.claim,
            network_policy=snapshot.network_policy,
            progress=snapshot.progress,
            refusal=refusal if uid == meta["uid"] else None,
            settings=self._settings,
        )

    async def _record(self, snapshot: Snapshot, observed: Observed, planned: Plan) -> None:
        """Write the status if it differs, and post the events."""
        if planned.status != observed.status:
            await self._cluster.write_status(
                observed.key, observed.meta.uid, observed.meta.resource_version, dump_status(planned.status)
            )
        for event in planned.events:
            await self._cluster.post_event(
                snapshot.job, type_=event.type, reason=event.reason, message=event.message
            )

    async def _act(self, planned: Plan) -> Refusal | None:
        """Execute the actions in order, those of one kind at once, up to a creation that is refused.

        A name that is taken stops what comes after, too: pods don't start behind a Service that may be
        anybody's.
        """
        for group in _groups(planned.actions):
            unseen: AlreadyExists | None = None
            errors = await asyncio.gather(*map(self._execute, group), return_exceptions=True)
            for action, error in zip(group, errors, strict=True):
                if isinstance(error, AlreadyExists):
                    unseen = error
                elif isinstance(error, NotFound) and not isinstance(action, Create):
                    continue
                elif isinstance(error, Refused) and isinstance(action, Create):
                    return _refusal_of(action, error)
                elif error is not None:
                    raise error
            if unseen is not None:
                raise unseen
        return None

    def _remember(self, observed: Observed, refused: Refusal | None, planned: Plan) -> bool:
        """Keep the latest refusal for the next plan, and tell whether it is worth a plan at once."""
        before = observed.refusal
        if refused is not None:
            latest = replace(refused, at=self._clock()).after(before)
            self._refusals[observed.key] = observed.meta.uid, latest
            return before is None or (before.what, before.reason) != (refused.what, refused.reason)
        if any(isinstance(action, Create) for action in planned.actions):
            self._refusals.pop(observed.key, None)
        return False

    async def _execute(self, action: Action) -> None:
        if isinstance(action, Create):
            await self._cluster.create(action.manifest)
        elif isinstance(action, Delete):
            await self._cluster.delete(action.ref)
        else:
            await self._cluster.set_labels(action.ref, dict(action.labels))


def _groups(actions: tuple[Action, ...]) -> Iterator[tuple[Action, ...]]:
    """Divide the actions into runs of one kind: pods only after what they need, deletions after labels."""
    for _, group in groupby(actions, _kind):
        yield tuple(group)


def _kind(action: Action) -> tuple[type[Action], bool]:
    return type(action), isinstance(action, Create) and action.manifest["kind"] == "Pod"


def _refusal_of(action: Create, refused: Refused) -> Refusal:
    meta = action.manifest["metadata"]
    return Refusal(
        what=f"{action.manifest['kind']} {meta['name']}",
        reason=refused.reason,
        message=refused.message,
        role=meta.get("labels", {}).get(LABEL_ROLE, ""),
    )


def dump_status(status: TrainJobStatus) -> dict[str, object]:
    """Return the status as JSON, without what isn't known."""
    dumped: dict[str, object] = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped
