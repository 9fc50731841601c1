"""One pass over one job: observe, plan, execute."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
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
from trainjob.core.actions import Action, Create, Creation, Delete, Patch, Plan, Replace
from trainjob.core.manifests import load_templates
from trainjob.core.observed import Observed, Refusal, read_observed
from trainjob.core.plan import plan
from trainjob.core.settings import Settings

_log = logging.getLogger(__name__)

PORTION = 32
"""Concurrent actions for one job; bounds the creation bodies in memory, and leaves connections to others."""

MOST_FAILED_PASSES = 8
"""Failed passes in a row, about 13 s of waits, before any error of a creation is reported as a refusal."""


LARGE = 100
REST_SECONDS_A_POD = 0.0002
"""Five times what a look at a pod takes, so that the starts of a thousand pods leave time to other jobs."""

OnWritten = Callable[[Observed, TrainJobStatus], None]


def ignore(*_: object) -> None:
    """Do nothing."""


@dataclass
class _CreationHistory:
    """The outcome of the latest creations for one job.

    Attributes:
        uid: the job's uid; names are reused.
        refusal: the cluster's latest refusal, until a creation succeeds.
        status_pending: the last pass created the objects of a new job; its status write is pending.
        failed_passes: passes in a row whose actions failed.
        pods: the number of its pods that the latest pass has looked at.
        restored: uids of objects that were changed by another client and restored.
    """

    uid: str
    refusal: Refusal | None = None
    status_pending: bool = False
    failed_passes: int = 0
    pods: int = 0
    restored: frozenset[str] = frozenset()


class Reconciler:
    """Executes what `plan` returns; of each job it keeps only the outcome of the latest writes.

    It logs every action and event once, with the job.

    Args:
        cluster: the cluster of the jobs.
        clock: returns the current time, timezone-aware.
        settings: the settings for every job.
        on_written: called after each write of a status, with what was observed and the new status. The API
            server accepts one write of each version, so no two controllers are called for the same change.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Callable[[], datetime],
        settings: Settings | None = None,
        on_written: OnWritten = ignore,
    ) -> None:
        self._cluster = cluster
        self._on_written = on_written
        self._settings = settings or Settings()
        self._clock = clock
        self._histories: dict[JobKey, _CreationHistory] = {}
        load_templates()  # now, so that the first job needn't wait for it

    async def reconcile(self, key: JobKey) -> timedelta | None:
        """Make one pass over a job, and return when to make the next one, or None to wait for a change.

        The status is written before what it decides is done: after a crash in between, the controller
        resumes from it. Only the objects of a new job come first, so that pods don't wait for other jobs'
        statuses; of a large one only what its pods need, since nothing shows whether they have their token.

        Raises:
            AlreadyExists, Conflict, NotFound: the job's objects have changed since they were observed.
            ClusterError: a request failed; nothing is lost, try again later.
        """
        await self._cluster.release(key)
        snapshot = await self._cluster.observe(key)
        if snapshot is None:
            self._histories.pop(key, None)
            self._cluster.set_target(key, None)
            return None
        history, uid = self._histories.get(key), snapshot.job["metadata"]["uid"]
        if history is None or history.uid != uid:
            history = self._histories[key] = _CreationHistory(uid)
        history.pods = len(snapshot.pods)
        observed = read_observed(snapshot, self._settings, refusal=history.refusal, restored=history.restored)
        planned = plan(observed, self._clock())
        self._cluster.set_target(key, planned.target)

        is_new, is_pending = not snapshot.job.get("status"), history.status_pending
        # Only once, and only a few: pods that fail, or are many, must not delay the status.
        is_whole = is_new and planned.only_creates and len(planned.actions) <= PORTION
        is_whole = is_whole and not is_pending and not history.failed_passes
        first = tuple(a for a in planned.actions if is_whole or (is_new and isinstance(a, Create)))
        later = tuple(a for a in planned.actions if not (is_new and isinstance(a, Create)))
        if first and not is_pending:  # else the pass before has created it
            at_once = observed.in_place and self._cluster.pods_wait_for_secrets
            refused = await self._execute_all(history, key, _waves(first) if at_once else _groups(first))
            if refused is not None:
                is_news = self._remember(history, refused)
                if not (is_whole and is_news):
                    await self._record(history, snapshot, observed, planned)
                return timedelta(0) if is_news else planned.requeue
            if is_whole:
                history.status_pending, history.refusal = True, None
                return timedelta(0)  # the next pass writes the status, after other jobs' creations
        # Before creations for a job that isn't new an unchanged status is written too: that fails if the job
        # is deleted, since the deletion of its pods may be observed before its own.
        always = planned.creates and not is_new and history.refusal is None
        await self._record(history, snapshot, observed, planned, always=always)
        refused = await self._execute_all(history, key, _groups(later))
        if refused is not None:
            return timedelta(0) if self._remember(history, refused) else planned.requeue
        if planned.creates:
            history.refusal = None
        return planned.requeue

    def rest(self, key: JobKey) -> float:
        """Return for how many seconds no other pass over this job may begin after the latest one."""
        history = self._histories.get(key)
        return history.pods * REST_SECONDS_A_POD if history is not None and history.pods >= LARGE else 0.0

    async def _record(
        self,
        history: _CreationHistory,
        snapshot: Snapshot,
        observed: Observed,
        planned: Plan,
        *,
        always: bool = False,
    ) -> None:
        """Execute `beforehand`, write the status if it differs or `always`, and post the events."""
        for action in planned.beforehand:
            try:
                await self._execute(observed.key, action)
            except NotFound:
                pass
            except Refused as refused:  # a refusal must not keep a job from ending
                _log.warning("%s: %s: %s; deleted with the job", observed.key, action, refused)
        if always or planned.status != observed.status:
            await self._cluster.write_status(
                observed.key, observed.meta.uid, observed.meta.resource_version, dump_status(planned.status)
            )
            self._on_written(observed, planned.status)
        for event in planned.events:
            await self._cluster.post_event(
                snapshot.job, type_=event.type, reason=event.reason, message=event.message
            )
            _log.info("%s: event %s: %s", observed.key, event.reason, event.message)
        history.status_pending = False

    def _remember(self, history: _CreationHistory, refused: Refusal) -> bool:
        """Keep the latest refusal for the next plan, and return whether to plan again at once."""
        before = history.refusal
        history.refusal = replace(refused, at=self._clock()).after(before)
        return before is None or (before.what, before.reason) != (refused.what, refused.reason)

    async def _execute_all(
        self, history: _CreationHistory, key: JobKey, groups: Iterable[tuple[Action, ...]]
    ) -> Refusal | None:
        """Execute groups of actions in order, up to a creation that is refused; return that refusal.

        The actions of a group are sent at once, a portion at a time: if a quota admits fifty pods of a
        thousand, the others aren't all requested. A name that is in use also stops the later groups: pods
        don't start with a Service of another owner. After many failed passes any error of a creation counts
        as its refusal, so that a lasting failure is reported.
        """
        is_lasting = history.failed_passes >= MOST_FAILED_PASSES
        refusing = (Refused, AlreadyExists, Unavailable) if is_lasting else (Refused,)
        for group in groups:
            failed: list[tuple[Action, BaseException]] = []
            for begin in range(0, len(group), PORTION):
                portion = group[begin : begin + PORTION]
                results = await asyncio.gather(
                    *(self._execute(key, action) for action in portion), return_exceptions=True
                )
                outcomes = zip(portion, results, strict=True)
                failed += [(a, e) for a, e in outcomes if e is not None and not _is_fine(a, e)]
                if any(_stops(action, error) for action, error in failed):
                    break
                await asyncio.sleep(0)  # other tasks run even if the cluster responds at once
            refusals = [
                _refusal_of(action, error)
                for action, error in failed
                if isinstance(action, Creation) and isinstance(error, refusing)
            ]
            if refusals:
                return next((r for r in refusals if r.permanent), refusals[0])
            if failed:
                errors = [error for _, error in failed]
                error = next((e for e in errors if not isinstance(e, AlreadyExists)), errors[0])
                history.failed_passes += isinstance(error, (AlreadyExists, Unavailable))
                raise error
        history.failed_passes = 0
        return None

    async def _execute(self, key: JobKey, action: Action) -> None:
        if isinstance(action, Creation):
            await self._cluster.create(action.build())
        elif isinstance(action, Replace):
            await self._cluster.replace(action.manifest)
            self._histories[key].restored |= {action.manifest["metadata"]["uid"]}
        elif isinstance(action, Delete):
            await self._cluster.delete(action.ref)
        elif isinstance(action, Patch):
            await self._cluster.patch(action.ref, action.resource_version, action.patch, action.subresource)
        else:
            await self._cluster.set_labels(action.ref, dict(action.labels))
        _log.info("%s: %s", key, action)


def _groups(actions: tuple[Action, ...]) -> Iterator[tuple[Action, ...]]:
    """Group consecutive actions of one kind: pods come after what they need, deletions after labels."""
    for _, group in groupby(actions, type):
        yield tuple(group)


_WAVES = {"Service": 1, "NetworkPolicy": 1, "ConfigMap": 1, "Secret": 2}
"""When what a job has beside its pods is created; the pods, and what a scheduler looks at, come in wave 0."""


def _waves(creations: tuple[Action, ...]) -> Iterator[tuple[Action, ...]]:
    """Group creations so that pods don't wait for what they need; only their token comes last.

    Without that Secret no container starts: a pod does nothing if one of the other objects can't be created.
    So the pods are there, and scheduled, before all that nobody looks at until they run: in one wave with it
    they come a quarter later, because the API server works on all of them at once.
    """

    def wave(action: Action) -> int:
        return _WAVES.get(action.kind, 0) if isinstance(action, Creation) else 0

    for _, group in groupby(sorted(creations, key=wave), wave):
        yield tuple(group)


def _is_fine(action: Action, error: BaseException) -> bool:
    """Return whether the action failed because the object is already as it should be, or has another way."""
    if isinstance(action, Creation):
        return action.may_exist and isinstance(error, AlreadyExists)
    if isinstance(action, Patch) and action.subresource == "resize" and isinstance(error, Refused):
        return True  # the pod is replaced soon
    return isinstance(error, NotFound)


def _stops(action: Action, error: BaseException) -> bool:
    """Return whether the other actions of this group would fail in the same way."""
    if isinstance(action, Creation):
        return not isinstance(error, AlreadyExists)  # a name that is in use says nothing about other names
    return isinstance(error, Unavailable)


def _refusal_of(action: Creation, error: ClusterError) -> Refusal:
    return Refusal(
        what=f"{action.kind} {action.name}",
        reason=error.reason if isinstance(error, Refused) else type(error).__name__,
        message=error.message if isinstance(error, Refused) else str(error),
        role=action.role,
    )


def dump_status(status: TrainJobStatus) -> dict[str, object]:
    """Return the status as JSON, without fields that are None."""
    dumped: dict[str, object] = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped
