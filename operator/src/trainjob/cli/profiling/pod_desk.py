"""A replica in a cluster, asked by a small program that runs in its pod: training pods have no API token."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainjob.cli.cluster.answers import ServerProblem, describe_problem, is_missing
from trainjob.cli.cluster.jobs import pods_of
from trainjob.cli.cluster.problems import ClusterProblem, explain
from trainjob.cli.cluster.reading import Job, read_job
from trainjob.cli.cluster.resources import TRAINJOBS
from trainjob.cli.cluster.selection import Wanted, newest_pods, own_pods, why_no_log
from trainjob.cli.profiling import request_files
from trainjob.cli.profiling.desk import Away, read_answer
from trainjob.core.names import Replica
from trainjob.core.pods import PodState
from trainjob.core.wording import last_line, quoted

if TYPE_CHECKING:
    from trainjob.cli.cluster.server import Server

_SILENT = "it gives no reason"


class PodDesk:
    """That of one replica of a job; its pod may be replaced meanwhile.

    Args:
        server: that has the job.
        job: as it is now.
        replica: which one.
    """

    def __init__(self, server: Server, job: Job, replica: Replica) -> None:
        self._server, self._job, self._replica = server, job, replica
        self._program = Path(request_files.__file__).read_text(encoding="utf-8")
        self._pod: str | None = None

    def ask(self, request: Mapping[str, Any]) -> None:
        """Leave a request, instead of any other."""
        self._run("ask", json.dumps(request))

    def answer(self) -> Mapping[str, Any]:
        """Return what has been answered last, empty if nothing has."""
        return read_answer(self._run("answer"))

    def withdraw(self, number: str) -> None:
        """Take the request of this id back."""
        self._run("withdraw", number)

    def why_over(self) -> str | None:
        """Return why nothing will be answered any more, in a sentence; None while something may."""
        try:
            job = read_job(self._server.get(TRAINJOBS, self._job.namespace, self._job.name))
        except ServerProblem as problem:
            return f"{self._job.name} was deleted" if is_missing(problem) else None
        if job.uid != self._job.uid:
            return f"{self._job.name} was deleted, and another job of its name is there"
        return describe_end(job)

    def _run(self, *words: str) -> str:
        # Without what PYTHONPATH would bring along: it is meant for the training.
        command = ["python3", "-I", "-S", "-c", self._program, words[0], self._replica.name, *words[1:]]
        try:
            pod = self._pod = self._pod or self._find_pod()
            done = self._server.execute(self._job.namespace, pod, command)
        except ServerProblem as problem:
            self._pod = None  # it may have been replaced
            if is_missing(problem):
                raise Away(f"pod {pod} is gone") from problem
            if _is_forbidden(problem):
                raise explain(problem) from problem
            raise Away(describe_problem(problem)) from problem
        if done.code is None:
            raise ClusterProblem(f"no python3 can be run in pod {pod}: {quoted(done.complaint)}")
        if done.code:
            raise ClusterProblem(f"pod {pod} can't be asked: {last_line(done.complaint) or _SILENT}")
        return done.output

    def _find_pod(self) -> str:
        pods = own_pods(pods_of(self._server, self._job.namespace, self._job.name), self._job.uid)
        found = newest_pods(pods, Wanted(self._replica.role, self._replica.index))
        if not found:
            raise Away("it has no pod now")
        pod = found[0]
        if pod.state is not PodState.RUNNING:
            raise Away(f"its pod has ended (exit code {pod.exit_code})" if pod.ended else why_no_log(pod))
        return pod.name


def describe_end(job: Job) -> str | None:
    """Return how the job has ended, in a sentence; None if it hasn't."""
    return f"{job.name} is over: {job.state}" if job.is_over else None


def _is_forbidden(problem: ServerProblem) -> bool:
    answer = getattr(problem, "answer", None)
    return answer is not None and answer.code in (401, 403)
