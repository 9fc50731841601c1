"""All jobs that the page shows, kept up to date: the runs on this machine, and the jobs of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainjob.client.connection import ClusterOptions, connected, has_cluster
from trainjob.client.handle import ClusterJob, JobHandle
from trainjob.client.history import History, history_state, metric_names, read_history, thin_out
from trainjob.client.job_logs import Wanted, newest_pods, own_pods
from trainjob.client.jobs import follow, job_scope, pod_scope
from trainjob.client.page import JobHistory, ReplicaRow, build_page, cells_of
from trainjob.client.presenter import describe_end, format_metric, results_on_cluster
from trainjob.client.problems import ClusterProblem, NoJob, describe_problem
from trainjob.client.run_record import Run, all_runs, index_name, index_state
from trainjob.client.runs import LocalJob, results_in
from trainjob.client.view import JobView, Outcome, read_job
from trainjob.cluster.kube.informer import Failed, Gone, Listed, Scope, Seen
from trainjob.cluster.kube.resources import EVENTS
from trainjob.cluster.protocol import ClusterError, Manifest, PostedEvent
from trainjob.core.pods import Pod, event_time
from trainjob.core.wording import printable

if TYPE_CHECKING:
    from trainjob.cluster.kube.client import ApiClient

Json = dict[str, Any]

_RUN, _JOB = "run/", "job/"
"""How keys begin."""

_SCAN_SECONDS = 1.0
"""Between two looks for new runs."""

_RETRY_SECONDS = 10.0
"""Before a cluster that refused is asked again."""

_PROBLEM_SECONDS = 30.0
"""A problem that hasn't come again for so long is over."""


@dataclass
class LiveJob:
    """One job as it was seen last; a run here has a folder.

    Its key is its name on the page, which a later run of the same folder keeps.
    """

    key: str
    handle: JobHandle
    view: JobView
    began: datetime | None
    folder: Path | None = None
    history: JobHistory = field(default_factory=JobHistory)
    _read: tuple[object, History, tuple[str, ...]] = (None, {}, ())

    def see(self, view: JobView) -> None:
        """Take a newer state."""
        self.view = view
        self.history.observe(view)

    @property
    def row(self) -> Json:
        """Return its row in the list."""
        page, cells = build_page(self.view), cells_of(self.view)
        return {
            "key": self.key,
            "name": page.name,
            "place": self.handle.place,
            "state": page.state,
            "tone": page.tone,
            "message": page.message,
            "steps": cells["STEP"],
            "share": page.share,
            "score": printable(cells["SCORE"]),
            "began": self.began.isoformat() if self.began is not None else None,
        }

    async def details(self, objects: ClusterObjects | None, others: Iterable[LiveJob] = ()) -> Json:
        """Return what the page shows of it, its row included.

        Args:
            objects: of a job in a cluster.
            others: runs of its name, whose curves are shown beside its own.
        """
        job, folder = self.view, self.folder
        pods: Iterable[Pod] = ()
        events: Iterable[PostedEvent] = job.events
        beside = list[tuple[str, History]]()
        if folder is not None:
            _, curves, damages = await asyncio.to_thread(self._read_curves, folder)
            for other in others:
                if other.folder is not None:
                    _, drawn, _ = await asyncio.to_thread(other._read_curves, other.folder)
                    beside.append((other.view.name, drawn))
            notes, results = [*damages], await asyncio.to_thread(results_in, folder)
        else:
            note = _THINNED if job.status.curves else _SAMPLED
            curves, results, notes = self.history.curves, results_on_cluster(job), [note]
        if objects is not None:
            pods = newest_pods(own_pods(objects.pods.values(), job.uid), Wanted())
            events = map(read_event, objects.events.values())
            notes += objects.problems.values()
        page = build_page(job, self.history, pods=pods, results=results)
        has_failure = job.outcome is Outcome.FAILED or job.status.first_failure is not None
        return self.row | {
            "facts": page.rows,
            "replicas": list(map(_replica, page.replicas)),
            "events": list(map(_event, sorted(events, key=lambda event: event.at, reverse=True))),
            "end": list(map(printable, describe_end(job, results))) if job.is_over and has_failure else [],
            "curves": figures_of(curves, beside),
            "notes": list(map(printable, notes)),
        }

    def _read_curves(self, folder: Path) -> tuple[object, History, tuple[str, ...]]:
        """Return its curves, and sentences about damage; what hasn't changed isn't read again."""
        state, damages = history_state(folder), list[str]()
        if self._read[0] != state:
            with suppress(OSError, ValueError):  # a folder that is being removed, a file that is no text
                self._read = state, read_history(folder, damages.append), tuple(damages)
        return self._read


_SAMPLED = (
    "The curves of a job in a cluster have only the points that its status has had since `trainjob ui` was "
    "started; TensorBoard has all points."
)
_THINNED = "The curves of a job in a cluster have some 200 points in all; TensorBoard has all points."


def _replica(row: ReplicaRow) -> Json:
    cells = row.cells
    of_pod = f"{cells['step time']} a step" if cells.get("step time") else ""
    return {
        "name": cells["replica"],
        "state": cells["state"],
        "steps": cells.get("step") or of_pod,
        "detail": ", ".join(f"{title} {cells[title]}" for title in ("loss", "node") if cells.get(title)),
        "failed": row.tone == "bad",
    }


def _event(event: PostedEvent) -> Json:
    texts = {"reason": printable(event.reason), "message": printable(event.message)}
    return {"at": event.at.isoformat(), "warning": event.type == "Warning", **texts}


def read_event(manifest: Manifest) -> PostedEvent:
    """Return an Event object of a cluster; how often it has happened stands in the message."""
    message, count = str(manifest.get("message") or ""), manifest.get("count")
    often = f" ({count} times)" if isinstance(count, int) and count > 1 else ""
    kind, reason = str(manifest.get("type") or ""), str(manifest.get("reason") or "")
    return PostedEvent(event_time(manifest), kind, reason, message + often)


_MOST_POINTS, _MOST_POINTS_BESIDE = 600, 200


def figures_of(curves: History, beside: Sequence[tuple[str, History]] = ()) -> list[Json]:
    """Return a figure for each metric, with its training and its validation.

    Args:
        curves: of the job that is shown.
        beside: names and curves of other runs; a series of one of them has its number as `other`.
    """
    return [
        {
            "name": printable(name),
            "percent": format_metric(name, 1.0).endswith("%"),
            "series": [
                {"label": label, "points": thin_out(curves[prefix + name], _MOST_POINTS)}
                for label, prefix in {"training": "", "validation": "val_"}.items()
                if curves.get(prefix + name)
            ]
            + [
                {"label": f"{printable(run)}{label}", "other": number, "points": points}
                for number, (run, known) in enumerate(beside)
                for label, prefix in {"": "", " validation": "val_"}.items()
                if (points := thin_out(known.get(prefix + name, {}), _MOST_POINTS_BESIDE))
            ],
        }
        for name in metric_names(curves)
    ]


class ClusterObjects:
    """The pods of one job in a cluster, and the events about it, by uid.

    They need permissions of their own; `problems` has why one of the two can't be shown.
    """

    def __init__(self, api: ApiClient, job: JobView, on_change: Callable[[], None]) -> None:
        self._api, self._on_change = api, on_change
        self._pods_of = pod_scope(job.namespace, job.name)
        self._events_of = Scope(EVENTS, job.namespace, fields=f"involvedObject.uid={job.uid}")
        self.pods: dict[str, Manifest] = {}
        self.events: dict[str, Manifest] = {}
        self.problems: dict[str, str] = {}

    async def run(self) -> None:
        """Keep them up to date."""
        await asyncio.gather(
            self._follow("pods", self._pods_of, self.pods),
            self._follow("events", self._events_of, self.events),
        )

    async def _follow(self, what: str, scope: Scope, objects: dict[str, Manifest]) -> None:
        try:
            async with aclosing(follow(self._api, scope)) as changes:
                async for change in changes:
                    if isinstance(change, Seen):
                        objects[change.manifest["metadata"]["uid"]] = change.manifest
                    elif isinstance(change, Gone):
                        objects.pop(change.manifest["metadata"]["uid"], None)
                    self._on_change()
        except ClusterError as error:
            self.problems[what] = f"Its {what} aren't shown: {describe_problem(error)}"
            self._on_change()


_MOST_BESIDE = 3


def _began(job: LiveJob) -> datetime:
    return job.began or datetime.min.replace(tzinfo=UTC)


class LiveJobs:
    """All jobs, kept up to date while `run` runs.

    Args:
        where: the options for a cluster. Without any, a cluster is shown if there is a kubeconfig.
        all_namespaces: the cluster's jobs of all namespaces.

    Attributes:
        version: grows with each change.
        jobs: by key.
    """

    def __init__(self, where: ClusterOptions, *, all_namespaces: bool = False) -> None:
        self._where, self._all_namespaces = where, all_namespaces
        self._changed = asyncio.Event()
        self._following = set[str]()
        self._is_stale = True
        self._problem, self._problem_until = "", 0.0
        self._api: ApiClient | None = None
        self.version = 0
        self.jobs: dict[str, LiveJob] = {}

    @property
    def problem(self) -> str:
        """Return why the cluster's jobs may be out of date, or an empty string."""
        return self._problem if asyncio.get_running_loop().time() < self._problem_until else ""

    @property
    def rows(self) -> list[Json]:
        """Return the row of each job: those that go on, then the latest."""
        jobs = sorted(self.jobs.values(), key=_began, reverse=True)
        return [job.row for job in sorted(jobs, key=lambda job: job.view.is_over)]

    def beside(self, job: LiveJob) -> list[LiveJob]:
        """Return the newest other runs of a run's name in its folder, such as `digits.1` beside `digits`."""
        found = [
            each
            for each in self.jobs.values()
            if each.folder is not None and job.folder is not None and each.folder != job.folder
            if each.folder.parent == job.folder.parent
            if each.folder.name.partition(".")[0]
            == job.folder.name.partition(".")[0]  # no job's name has a dot
        ]
        return sorted(found, key=_began, reverse=True)[:_MOST_BESIDE]

    async def later_than(self, version: int) -> int:
        """Return the version once it is another one."""
        while self.version == version:
            await self._changed.wait()
        return self.version

    async def run(self) -> None:
        """Follow all jobs; ends by being cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_runs(group))
            group.create_task(self._watch_cluster())

    @asynccontextmanager
    async def objects_of(self, key: str) -> AsyncGenerator[ClusterObjects | None]:
        """Follow the pods and events of a job in a cluster, while in the context."""
        job, api = self.jobs.get(key), self._api
        if job is None or job.folder is not None or api is None:
            yield None
            return
        objects = ClusterObjects(api, job.view, self._change)
        following = asyncio.ensure_future(objects.run())
        try:
            yield objects
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    def _change(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def _see(
        self, key: str, handle: JobHandle, view: JobView, began: datetime | None, folder: Path | None = None
    ) -> None:
        known = self.jobs.get(key)
        if known is None or (known.began, known.view.uid) != (began, view.uid):
            known = self.jobs[key] = LiveJob(key, handle, view, began, folder)
        known.handle = handle  # the connection may be a new one
        known.see(view)
        self._change()

    def _keep(self, kind: str, keys: Iterable[str]) -> None:
        """Forget the other jobs of this kind."""
        for key in {key for key in self.jobs if key.startswith(kind)} - set(keys):
            del self.jobs[key]
        self._change()

    async def _watch_runs(self, group: asyncio.TaskGroup) -> None:
        seen: object = None
        while True:
            state = await asyncio.to_thread(index_state)
            if state != seen or self._is_stale:
                seen, self._is_stale = state, False
                self._take(await asyncio.to_thread(all_runs), group)
            await asyncio.sleep(_SCAN_SECONDS)

    def _take(self, runs: Iterable[Run], group: asyncio.TaskGroup) -> None:
        found = {_RUN + index_name(run.folder): run for run in runs}
        for key, run in found.items():
            if key in self._following:
                continue
            self._see(key, LocalJob(run), run.view, run.record.began, run.folder)
            if run.is_running:
                self._following.add(key)
                group.create_task(self._follow_run(key, run))
        self._keep(_RUN, found)

    async def _follow_run(self, key: str, run: Run) -> None:
        try:
            job = LocalJob(run)
            async with aclosing(job.changes()) as changes:
                async for view in changes:
                    self._see(key, job, view, run.record.began, run.folder)
        except NoJob:
            self.jobs.pop(key, None)
            self._change()
        finally:
            self._following.discard(key)
            self._is_stale = True  # another run may have taken the folder

    async def _watch_cluster(self) -> None:
        is_asked_for = self._where != ClusterOptions() or self._all_namespaces
        while True:
            try:
                if is_asked_for or has_cluster(self._where):
                    async with connected(self._where) as cluster:
                        self._api = cluster.api
                        await self._follow_jobs(None if self._all_namespaces else cluster.namespace)
            except ClusterProblem as problem:
                self._report(str(problem))
            finally:
                self._api = None
            await asyncio.sleep(_RETRY_SECONDS)

    async def _follow_jobs(self, namespace: str | None) -> None:
        assert self._api is not None  # noqa: S101 - the caller has just connected
        async with aclosing(follow(self._api, job_scope(namespace))) as changes:
            async for change in changes:
                match change:
                    case Seen(manifest):
                        job = read_job(manifest)
                        handle = ClusterJob(self._api, job.namespace, job.name)
                        self._see(f"{_JOB}{job.namespace}/{job.name}", handle, job, job.created_at)
                    case Gone(manifest):
                        job = read_job(manifest)
                        self.jobs.pop(f"{_JOB}{job.namespace}/{job.name}", None)
                        self._change()
                    case Listed(_, objects):
                        self._problem = ""
                        self._keep(_JOB, (f"{_JOB}{inside}/{name}" for (inside, name), _ in objects))
                    case Failed(error):
                        self._report(f"{describe_problem(error)}; trying again")

    def _report(self, problem: str) -> None:
        self._problem = problem
        self._problem_until = asyncio.get_running_loop().time() + _PROBLEM_SECONDS
        self._change()
