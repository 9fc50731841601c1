"""A job as Python sees it: `AsyncJob`, and `Job` for code without `await`."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainjob.client import background
from trainjob.client.connection import ClusterOptions, cluster_jobs, connected
from trainjob.client.history import read_history
from trainjob.client.presenter import IN_PYTHON, describe_end, describe_state, results_of
from trainjob.client.problems import ClusterProblem, NoJob
from trainjob.client.view import JobView, Outcome, current_metrics
from trainjob.core.wording import parse_duration, printable
from trainjob_trainer.contract.curves import read_curves

if TYPE_CHECKING:
    from trainjob.api import TrainJobStatus
    from trainjob.client.drawing import Cell, Lines
    from trainjob.client.handle import JobHandle
    from trainjob.client.output import Output


class JobFailed(Exception):
    """A job has failed, or a run here was interrupted.

    `str(error)` has the end of the job in several lines: what failed first, where, the last lines of its log
    and what to do.

    Attributes:
        name: of the job.
        reason: one word, as in the table of exit codes.
        replica: which one failed first, such as `worker-1`; empty if none did.
        node: of that replica; empty on this machine.
        step: the last one that it reported, or None.
        exit_code: its exit code, or None.
        log: the last lines of its log.
    """

    def __init__(self, job: JobView) -> None:
        first = job.status.first_failure
        self.name = job.name
        self.reason = first.reason if first else job.state
        self.replica = first.rank if first else ""
        self.node = first.node if first else ""
        self.step = first.step if first else None
        self.exit_code = first.exit_code if first else None
        self.log = printable(first.log_tail) if first else ""
        lines: tuple[str, ...] = (f"{job.name}: {describe_state(job)}",)
        if job.outcome is not Outcome.INTERRUPTED:
            results = results_of(job)
            lines = describe_end(job, replace(results, advice=IN_PYTHON) if job.folder else results)
        super().__init__("\n".join(map(printable, lines)))


class AsyncJob:
    """The asynchronous calls of a job, as `job.aio`: `await job.aio.wait()`."""

    def __init__(self, view: JobView, where: ClusterOptions) -> None:
        self.name, self.latest = view.name, view
        self._folder = Path(view.folder) if view.folder else None
        self._where = replace(where, namespace=view.namespace)
        self.place = "this machine" if view.folder else f"namespace {view.namespace}"

    async def attach(
        self,
        name: str,
        *,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | None = None,
    ) -> Job:
        """Return the job of this name.

        Without options for a cluster it is the run on this machine, if there is one, else the job of the
        kubeconfig's cluster.

        Args:
            name: of the job; of a run also its folder.
            namespace: of the cluster; None for the kubeconfig's.
            context: of the kubeconfig; None for the current one.
            kubeconfig: a file; None for KUBECONFIG or ~/.kube/config.

        Raises:
            NoJob: there is none of that name; the message suggests others.
        """
        from trainjob.client.handle import find_handle  # noqa: PLC0415 - imports much, and is needed late

        where = ClusterOptions(namespace, context, kubeconfig)
        async with find_handle(name, where) as handle:
            return Job(await handle.view(), where)

    async def all(
        self, *, namespace: str | None = None, context: str | None = None, kubeconfig: str | None = None
    ) -> list[Job]:
        """Return the runs on this machine, the latest first, and the jobs of the kubeconfig's namespace.

        With one of the options only those of that cluster and namespace. Without, a cluster that doesn't
        answer is left out, and a line on stderr says so. `await Job.aio.all()` is the same in asynchronous
        code.

        Raises:
            NoCluster: the cluster can't be used.
        """
        from trainjob.client.run_record import all_runs  # noqa: PLC0415 - as above

        where = ClusterOptions(namespace, context, kubeconfig)
        runs = [run.view for run in all_runs()] if where == ClusterOptions() else []
        return [Job(view, where) for view in runs + await cluster_jobs(where)]

    async def status(self) -> TrainJobStatus:
        """Return what is known about it now, as `Job.status` has it."""
        return (await self._view()).status

    async def metrics(self) -> dict[str, float]:
        """Return the latest metrics, as `Job.metrics` has them."""
        return current_metrics(await self._view())

    async def history(self) -> list[dict[str, float]]:
        """Return a row for each step that has metrics: `{"step": 40, "loss": 0.5, "val_loss": 0.6}`.

        A row has the metrics of its step only; `pandas.DataFrame(job.history())` is the table. A damaged
        file of TensorBoard counts up to the damage, and a line on stderr names it.

        Of a job in a cluster they are read as by `model`.

        Raises:
            ClusterProblem: its output can't be read.
        """
        rows: dict[int, dict[str, float]] = {}
        async with self._output() as output:
            for name, values in (await output.history(_note)).items():
                for step, value in values.items():
                    rows.setdefault(step, {})[name] = value
        return [{"step": step, **rows[step]} for step in sorted(rows)]

    async def result(self) -> Any:
        """Return what the function has returned, as JSON has it.

        Raises:
            ClusterProblem: it has no result, or its output can't be read.
        """
        from trainjob.client.output import NoSuchPath  # noqa: PLC0415 - as above

        try:
            async with self._output() as output:
                return await output.result()
        except NoSuchPath:
            raise ClusterProblem(
                f"{self.name} has no result: only a function that has returned a JSON value has one (see its "
                "log)"
            ) from None

    async def model(self, to: str | Path) -> Path:
        """Copy the trained model into the new folder `to`, and return its path.

        `keras.saving.load_model(job.model("./model") / "model.keras")` loads it. In a cluster a pod that
        lives as long as the call reads the job's output, and sends the files.

        Raises:
            ClusterProblem: it has left no model, or its output can't be read.
            FileExistsError: the folder exists.
        """
        async with self._output() as output:
            await output.model(Path(to))
        return Path(to)

    async def logs(
        self, *, follow: bool = False, tail: int | None = None, replica: str | None = None
    ) -> AsyncGenerator[str]:
        """Yield the lines of all replicas' logs, with the arguments of `Job.logs`."""
        from trainjob.client.job_logs import Wanted  # noqa: PLC0415 - as above

        role, _, index = (replica or "").rpartition("-")
        if replica and not (role and index.isdigit()):
            raise ValueError(f"{replica!r} is no replica: name one such as 'worker-0'")
        wanted = Wanted(role, int(index)) if replica else Wanted()
        async with (
            self._open() as handle,
            aclosing(handle.log_lines(wanted, follow=follow, tail=tail)) as lines,
        ):
            async for name, line in lines:
                yield line if replica else f"{name}: {line}"

    async def wait(self, timeout: float | str | None = None) -> Job:  # noqa: ASYNC109 - also for one call alone
        """Wait until the job is over, and return it; `Job.wait` has the errors."""
        display = _open_display(self)
        async with aclosing(self._changes(timeout)) as changes:
            async for view in changes:
                display.show(view)
        return self._conclude()

    async def suspend(self) -> None:
        """Stop its training after a checkpoint, and give its machines back; `resume` continues from there."""
        await self._patch({"suspend": True})

    async def resume(self) -> None:
        """Continue after `suspend`."""
        await self._patch({"suspend": False})

    async def scale(self, workers: int) -> None:
        """Train with so many workers from now on, from the last checkpoint; the global batch stays."""
        await self._patch({"worker": {"replicas": workers}})

    async def delete(self) -> None:
        """Stop and delete it; of a run on this machine, its folder too."""
        async with self._open() as handle:
            await handle.delete()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[JobHandle]:
        """Open the job for one call; each has a connection of its own, so that none is left open."""
        from trainjob.client.handle import ClusterJob  # noqa: PLC0415 - as above
        from trainjob.client.run_record import read_run_folder  # noqa: PLC0415 - as above
        from trainjob.client.runs import LocalJob  # noqa: PLC0415 - as above

        if self._folder is not None:
            run = read_run_folder(self._folder)
            if run is None:
                raise NoJob(f"the run {self._folder} was deleted")
            here = LocalJob(run)
            self._see(await here.view())
            yield here
            return
        async with connected(self._where) as cluster:
            there = ClusterJob(cluster.api, cluster.namespace, self.name, _note)
            self._see(await there.view())
            yield there

    async def _view(self) -> JobView:
        async with self._open():
            return self.latest

    async def _changes(self, timeout: float | str | None) -> AsyncGenerator[JobView]:  # noqa: ASYNC109
        """Yield the job until it is over; raises TimeoutError."""
        seconds = parse_duration(timeout) if isinstance(timeout, str) else timeout
        if seconds is None and timeout is not None:
            raise ValueError(f"{timeout!r} is not a duration: write seconds, or 90s, 15m, 1h30m")
        loop = asyncio.get_running_loop()
        until = None if seconds is None else loop.time() + seconds
        async with self._open() as handle, aclosing(handle.changes()) as changes:
            while True:
                try:
                    async with asyncio.timeout_at(until):
                        view = await anext(changes, None)
                except TimeoutError:
                    state = describe_state(self.latest)
                    raise TimeoutError(
                        f"{self.name} is not over after {timeout}; it continues ({state})"
                    ) from None
                if view is None:
                    return
                self._see(view)
                yield view

    def _see(self, view: JobView) -> None:
        if self.latest.uid and view.uid and view.uid != self.latest.uid:
            raise NoJob(
                f"{self.name} was deleted; another job of that name is there now: Job.attach({self.name!r})"
            )
        self.latest = view

    def _conclude(self) -> Job:
        if self.latest.outcome is not Outcome.COMPLETE:
            raise JobFailed(self.latest)
        return Job(self.latest, self._where)

    async def _patch(self, spec: dict[str, Any]) -> None:
        async with self._open() as handle:
            self._see(await handle.patch(spec))

    @asynccontextmanager
    async def _output(self) -> AsyncIterator[Output]:
        from trainjob.client.output import open_output  # noqa: PLC0415 - as above

        async with self._open() as handle, open_output(handle, self.latest, _note) as output:
            yield output


class Job:
    """One job, in a cluster or on this machine: `Trainer.run`, `Trainer.submit` and `Job.attach` return it.

        job = Job.attach("digits")
        job.wait(timeout="2h")
        job.metrics["accuracy"]

    Every call has an asynchronous twin: `await job.aio.wait()`. Each asks the cluster again, so a `Job` may
    be kept as long as you like. As the last value of a notebook's cell it shows its state, its figures and
    the curve of its loss.

    Calls raise `trainjob.NoJob` if the job was deleted, and `trainjob.NoCluster` if the cluster can't be
    used.
    """

    aio = AsyncJob(JobView(name=""), ClusterOptions())
    """The asynchronous calls; those of the class itself need no job: `await Job.aio.attach("digits")`."""

    def __init__(self, view: JobView, where: ClusterOptions) -> None:
        self.aio = AsyncJob(view, where)

    attach = classmethod(background.blocking(AsyncJob.attach))
    all = classmethod(background.blocking(AsyncJob.all))
    history = background.blocking(AsyncJob.history)
    result = background.blocking(AsyncJob.result)
    model = background.blocking(AsyncJob.model)
    suspend = background.blocking(AsyncJob.suspend)
    resume = background.blocking(AsyncJob.resume)
    scale = background.blocking(AsyncJob.scale)
    delete = background.blocking(AsyncJob.delete)

    @property
    def name(self) -> str:
        """Its name."""
        return self.aio.name

    @property
    def status(self) -> TrainJobStatus:
        """What is known about it now: `status.state`, `status.message`, `status.progress.step` and so on.

        The fields are those of a TrainJob's status, in Python's spelling: docs/reference/api.md.
        """
        return background.run(self.aio.status())

    @property
    def metrics(self) -> dict[str, float]:
        """The latest metrics: of training such as `loss`, of the evaluator such as `val_loss`."""
        return background.run(self.aio.metrics())

    def logs(
        self, *, follow: bool = False, tail: int | None = None, replica: str | None = None
    ) -> Generator[str]:
        """Yield the lines of all replicas' logs, each after the replica's name.

        Args:
            follow: wait for pods and further lines, through restarts, and end with the job.
            tail: begin with so many lines before the end of each log.
            replica: only of this one, such as `worker-0`; its name isn't put before each line.
        """
        with self._interruptible():
            yield from background.iterate(self.aio.logs(follow=follow, tail=tail, replica=replica))

    def wait(self, timeout: float | str | None = None) -> Job:
        """Wait until the job is over, and return it.

        Meanwhile a notebook shows the job, and updates it in place; elsewhere changes are printed. Ctrl-C
        ends the wait, not the job.

        Args:
            timeout: seconds, or a text such as `90s`, `15m` or `2h`.

        Raises:
            JobFailed: it failed; with the first failure, its node, its step and its log.
            TimeoutError: it isn't over yet.
        """
        with self._interruptible():  # also while it is shown: a cell's output takes its time
            display = _open_display(self.aio)
            for view in background.iterate(self.aio._changes(timeout)):
                display.show(view)
        return self.aio._conclude()

    def __repr__(self) -> str:
        return f"Job({self.name!r}, {self.aio.place}, {printable(describe_state(self.aio.latest))})"

    def _repr_html_(self) -> str:
        """Return the job as a notebook shows it; never raises, since a display must not fail."""
        from trainjob.client.drawing import to_html  # noqa: PLC0415 - rich is slow to import

        problem: tuple[str, ...] = ()
        try:
            background.run(self.aio._view())
        except ClusterProblem as error:
            problem = (str(error),)
        return to_html(self.aio.latest, self.aio.place, _curve(self.aio.latest), problem)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            again = f"Job.attach({self.name!r})"
            _note(
                f"{self.name} continues ({self.aio.place}): {again}.wait() waits for it again, "
                f"{again}.delete() ends it"
            )
            raise


jobs = Job.all


def _open_display(job: AsyncJob) -> Lines | Cell:
    from trainjob.client.drawing import open_display  # noqa: PLC0415 - as above

    return open_display(job.place, _curve(job.latest), time.monotonic)


def _curve(view: JobView) -> dict[int, float]:
    if view.folder:
        return read_history(Path(view.folder)).get("loss", {})
    if whole := read_curves(view.status.curves).get("loss"):
        return whole
    step, loss = view.figures.step, current_metrics(view).get("loss")
    return {step: loss} if step is not None and loss is not None else {}


def _note(text: str) -> None:
    print(f"trainjob: {printable(text)}", file=sys.stderr, flush=True)
