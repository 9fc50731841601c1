"""The logs of a job, up to now or while it runs, and what there is to say around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainjob.cli.cluster.conclusion import conclude
from trainjob.cli.cluster.ending import describe_deletion
from trainjob.cli.cluster.exits import Exit
from trainjob.cli.cluster.jobs import find_job, pods_of
from trainjob.cli.cluster.log_following import LogFollowing
from trainjob.cli.cluster.merged_logs import merge_logs, pod_lines
from trainjob.cli.cluster.printing import LogPrinter
from trainjob.cli.cluster.problems import NoJob
from trainjob.cli.cluster.reading import Job, Outcome, read_job
from trainjob.cli.cluster.seats import describe_waits
from trainjob.cli.cluster.selection import (
    Wanted,
    earlier_pods,
    has_log,
    newest_pods,
    own_pods,
    why_no_log,
)
from trainjob.core.pods import Pod
from trainjob.core.wording import printable

if TYPE_CHECKING:
    from trainjob.cli.cluster.server import Server


class LogShowing:
    """Shows the logs of one job.

    Args:
        server: that has the job.
        namespace: of the job.
        name: of the job.
        wanted: replicas that are asked for.
        printer: for lines and notes.
        tail: of each replica, begin with this many lines before the end.
    """

    def __init__(
        self,
        server: Server,
        namespace: str,
        name: str,
        *,
        wanted: Wanted,
        printer: LogPrinter,
        tail: int | None = None,
    ) -> None:
        self._server, self._namespace, self._name = server, namespace, name
        self._wanted, self._printer, self._tail = wanted, printer, tail

    def follow(self) -> Exit:
        """Show what is written until the job is over, then what came of it.

        Raises:
            NoJob: there is none, or it was deleted.
        """
        job = self._find()
        last, deleted = LogFollowing(self._server, job, self._wanted, self._printer, self._tail).run()
        if deleted:
            raise NoJob(printable(describe_deletion(self._name, last)))
        return conclude(last)

    def show(self) -> Exit:
        """Show what is written by now."""
        job = self._find()
        pods = newest_pods(
            own_pods(pods_of(self._server, self._namespace, self._name), job.uid), self._wanted
        )
        if not pods:
            which = "pods" if self._wanted == Wanted() else "such pods"
            self._printer.note(f"{self._name} has no {which}{_told(job)}")
        self._print([pod for pod in pods if has_log(pod)])
        waits = {pod.replica.title: why_no_log(pod) for pod in pods if not has_log(pod)}
        if waits:
            self._printer.note(f"no log yet of {describe_waits(waits)}")
        if job.outcome is Outcome.FAILED:
            conclude(job)
        return Exit.GOOD

    def show_previous(self) -> Exit:
        """Show what was written in the attempt before, or in place by the pods before."""
        job = self._find()
        every = own_pods(pods_of(self._server, self._namespace, self._name), job.uid)
        attempt = None if job.in_place else job.status.attempt or 1
        pods = [pod for pod in earlier_pods(every, self._wanted, attempt) if has_log(pod)]
        if pods:
            self._print(pods)
        else:
            self._show_what_is_kept(job, {pod.name for pod in every})
        return Exit.GOOD

    def _show_what_is_kept(self, job: Job, pods: set[str]) -> None:
        """Show the end of a log that the status has, where nothing else is left of a failure."""
        attempt, first = job.status.attempt or 1, job.status.first_failure
        lives_on = job.in_place and first is not None and first.pod in pods
        if attempt < 2 or job.is_over or first is None or not first.log_tail or lives_on:
            whole = "; a pod's log holds every attempt that it has lived through" if job.in_place else ""
            self._printer.note(f"no earlier pods of {self._name} are left (this is attempt {attempt}){whole}")
            return
        gone = (
            f"an earlier pod of {first.rank} is" if job.in_place else f"the pods of attempt {attempt - 1} are"
        )
        self._printer.note(f"{gone} gone; of {first.rank}, which failed first, this is left:")
        for line in first.log_tail.splitlines():
            self._printer.text(first.rank, printable(line))

    def _find(self) -> Job:
        return read_job(find_job(self._server, self._namespace, self._name))

    def _print(self, pods: list[Pod]) -> None:
        logs = pod_lines(self._server, pods, self._namespace, self._tail, self._printer.note)
        for replica, line in merge_logs(logs):
            self._printer.line(replica, line)


def _told(job: Job) -> str:
    return f": {job.state}" + (f", {job.status.message}" if job.status.message else "")
