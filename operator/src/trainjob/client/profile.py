"""Asks a running replica for a TensorBoard profile, on this machine or in a pod."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainjob.api import TRAINER_CONTAINER
from trainjob.client import profile_requests
from trainjob.client.handle import ClusterJob
from trainjob.client.job_logs import Wanted, newest_pods, own_pods
from trainjob.client.jobs import pods_of
from trainjob.client.problems import ClusterProblem, NoJob, TimeIsOver, describe_problem, explain, is_missing
from trainjob.client.run_record import find_run
from trainjob.client.view import JobView, read_job, why_no_log
from trainjob.cluster.kube.exec import execute
from trainjob.cluster.kube.resources import TRAINJOBS
from trainjob.cluster.local import is_taken
from trainjob.cluster.protocol import ClusterError
from trainjob.core.agent_reports import integer, known, text
from trainjob.core.names import Replica
from trainjob.core.pods import PodState
from trainjob.core.wording import last_line, printable, quoted

if TYPE_CHECKING:
    from trainjob.client.handle import JobHandle
    from trainjob.cluster.kube.client import ApiClient


# Requests as files in the job's output folder, on this machine or in a pod.


_LONGEST_TEXT = 4096


class ReplicaUnavailable(Exception):
    """The replica can't take requests at the moment; the message says why."""


class ProfileClient(Protocol):
    """Leaves requests for one replica. The first three methods may raise `ReplicaUnavailable`."""

    async def ask(self, request: Mapping[str, Any]) -> None:
        """Leave a request, replacing any other."""

    async def answer(self) -> Mapping[str, Any]:
        """Return the last answer, empty if there is none."""

    async def withdraw(self, number: str) -> None:
        """Withdraw the request of this id."""

    async def why_over(self) -> str | None:
        """Return a sentence on why no more answers will come; None while they may come."""


LARGEST_ANSWER = 1 << 14
"""Characters; an answer has a few hundred."""


def read_answer(raw: str) -> Mapping[str, Any]:
    """Return the parsed answer, empty if it is invalid.

    A training image writes it, so its texts become one line without terminal control sequences.
    """
    try:
        answer = json.loads(raw) if len(raw) <= LARGEST_ANSWER else None
    except (ValueError, RecursionError):
        return {}
    return known(answer, _ANSWER) if isinstance(answer, dict) else {}


_ANSWER: Mapping[str, Callable[[Any], object]] = {
    **dict.fromkeys(("id", "state"), text),
    **dict.fromkeys(("step", "first", "last"), integer),
    **dict.fromkeys(("folder", "message"), lambda value: text(value, _LONGEST_TEXT)),
}


# Replicas of `trainjob run`, found by the lock on their output folder.


FOLDER = "profile"
_LEVELS = ("", "*/", "*/*/")
"""The folder of the runs contains volumes, and these contain jobs, perhaps below a `subPath`."""


@dataclass(frozen=True)
class LocalProfileClient:
    """The client for a replica on this machine.

    Attributes:
        output: the job's output folder.
        replica: such as `worker-0`.
    """

    output: Path
    replica: str

    async def ask(self, request: Mapping[str, Any]) -> None:
        """Leave a request, replacing any other."""
        try:
            profile_requests.ask(self.output / FOLDER, self.replica, json.dumps(request))
        except OSError as error:
            raise ReplicaUnavailable(f"can't write into {self.output / FOLDER}: {error.strerror}") from error

    async def answer(self) -> Mapping[str, Any]:
        """Return the last answer, empty if there is none."""
        return read_answer(profile_requests.answer(self.output / FOLDER, self.replica))

    async def withdraw(self, number: str) -> None:
        """Withdraw the request of this id."""
        profile_requests.withdraw(self.output / FOLDER, self.replica, number)

    async def why_over(self) -> str | None:
        """Return a sentence on why no more answers will come; None while they may come."""
        return None if is_taken(self.output) else f"nothing trains into {self.output} any more"


def find_output(folder: Path | None, name: str) -> Path:
    """Return the output folder of the job that runs here under this name.

    Args:
        folder: the one given to `trainjob run`; None: that of the run of this name.
        name: of the job.

    Raises:
        NoJob: none runs, or several do.
    """
    if folder is None:
        run = find_run(name)
        if run is not None and run.is_running:
            return run.folder
        raise NoJob(f"no `trainjob run` trains {name} on this machine: `trainjob list` shows those that do")
    running = [path for level in _LEVELS for path in folder.glob(f"{level}{name}") if is_taken(path)]
    if len(running) == 1:
        return running[0]
    if running:
        shown = ", ".join(map(str, sorted(running)))
        raise NoJob(f"several runs of {name} are under way: {shown}; name the folder of one by --folder")
    raise NoJob(
        f"no `trainjob run` trains {name} into {folder}: start it, or name the folder that it was given by "
        "--folder"
    )


# A replica in a cluster, asked by a program in its pod, as training pods have no API token.


_SILENT = "it gives no reason"


class PodProfileClient:
    """The client for one replica of a job in a cluster; its pod may be replaced meanwhile.

    Args:
        api: the API server that has the job.
        job: as it is now.
        replica: which one.
    """

    def __init__(self, api: ApiClient, job: JobView, replica: Replica) -> None:
        self._api, self._job, self._replica = api, job, replica
        self._program = Path(profile_requests.__file__).read_text(encoding="utf-8")
        self._pod: str | None = None

    async def ask(self, request: Mapping[str, Any]) -> None:
        """Leave a request, replacing any other."""
        await self._run("ask", json.dumps(request))

    async def answer(self) -> Mapping[str, Any]:
        """Return the last answer, empty if there is none."""
        return read_answer(await self._run("answer"))

    async def withdraw(self, number: str) -> None:
        """Withdraw the request of this id."""
        await self._run("withdraw", number)

    async def why_over(self) -> str | None:
        """Return a sentence on why no more answers will come; None while they may come."""
        try:
            job = read_job(await self._api.get(TRAINJOBS, self._job.namespace, self._job.name))
        except ClusterError as error:
            return f"{self._job.name} was deleted" if is_missing(error) else None
        if job.uid != self._job.uid:
            return f"{self._job.name} was deleted, and another job of its name is there"
        return describe_end(job)

    async def _run(self, *words: str) -> str:
        # `-I` ignores PYTHONPATH, which is meant for the training.
        command = ["python3", "-I", "-S", "-c", self._program, words[0], self._replica.name, *words[1:]]
        try:
            pod = self._pod = self._pod or await self._find_pod()
            done = await execute(self._api.access, self._job.namespace, pod, TRAINER_CONTAINER, command)
        except ClusterError as error:
            self._pod = None  # it may have been replaced
            if is_missing(error):
                raise ReplicaUnavailable(f"pod {pod} is gone") from error
            if error.failure.code in (401, 403):
                raise explain(error) from error
            raise ReplicaUnavailable(describe_problem(error)) from error
        if done.code is None:
            raise ClusterProblem(f"no python3 can be run in pod {pod}: {quoted(done.complaint)}")
        if done.code:
            raise ClusterProblem(f"pod {pod} can't be asked: {last_line(done.complaint) or _SILENT}")
        return done.output

    async def _find_pod(self) -> str:
        pods = own_pods(await pods_of(self._api, self._job.namespace, self._job.name), self._job.uid)
        found = newest_pods(pods, Wanted(self._replica.role, self._replica.index))
        if not found:
            raise ReplicaUnavailable("it has no pod now")
        pod = found[0]
        if pod.state is not PodState.RUNNING:
            raise ReplicaUnavailable(
                f"its pod has ended (exit code {pod.exit_code})" if pod.ended else why_no_log(pod)
            )
        return pod.name


def describe_end(job: JobView) -> str | None:
    """Return how the job ended, in a sentence; None if it hasn't."""
    return f"{job.name} is over: {job.state}" if job.is_over else None


# One request from start to end, with progress messages.


NO_ANSWER_SECONDS = 60.0
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_BETWEEN_LINES = 30.0
"""Between two lines about the same state."""
_LOOKS_BETWEEN_QUESTIONS = 5
"""Looks between two checks whether the job is over."""


class ProfileRequest:
    """Leaves a request and waits for its result.

    Args:
        client: for the replica.
        who: the replica, in messages.
        say: prints the progress, one line each.
    """

    def __init__(self, client: ProfileClient, who: str, say: Callable[[str], None]) -> None:
        self._client, self._who, self._say = client, who, say
        self._reported = self._about = ""
        self._said_at = self._began = 0.0
        self._answered = False

    async def run(self, request: Mapping[str, Any], limit: float | None = None) -> Mapping[str, Any]:
        """Return the last answer, which names the profile's folder.

        Args:
            request: the steps, and an id.
            limit: seconds; None for no limit.

        Raises:
            ClusterProblem: there will be no profile; the message says why.
            TimeIsOver: the time is over.
        """
        self._said_at = self._began = _now()
        try:
            await self._client.ask(request)
        except ReplicaUnavailable as error:
            raise ClusterProblem(f"{self._who} can't be asked: {error}") from error
        try:
            async with asyncio.timeout(limit):
                return await self._wait(request["id"])
        except TimeoutError:
            last = self._reported or self._who
            raise TimeIsOver(f"{last}: given up by --timeout; the job continues") from None
        finally:
            with suppress(ReplicaUnavailable, ClusterProblem):
                await self._client.withdraw(request["id"])

    async def _wait(self, number: str) -> Mapping[str, Any]:
        looks = 0
        while True:
            over = await self._client.why_over() if looks % _LOOKS_BETWEEN_QUESTIONS == 0 else None
            looks += 1
            answer = await self._look(number)
            if answer.get("state") == "written":
                return answer
            if over is not None:
                raise ClusterProblem(over)
            self._check_answered()
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)

    async def _look(self, number: str) -> Mapping[str, Any]:
        try:
            answer = await self._client.answer()
        except ReplicaUnavailable as error:
            self._report(f"{self._who}: {error}; trying again", str(error))
            return {}
        if not answer:
            return {}
        if answer.get("id") != number:
            if not self._answered:  # still the answer to an earlier request
                return {}
            raise ClusterProblem(f"{self._who} has received another request meanwhile")
        self._answered = True
        if answer.get("state") == "refused":
            raise ClusterProblem(f"{self._who}: {answer.get('message')}")
        self._report(describe(self._who, answer), str(answer.get("state")))
        return answer

    def _check_answered(self) -> None:
        if not self._answered and _now() - self._began >= NO_ANSWER_SECONDS:
            raise ClusterProblem(
                f"{self._who} has not answered for {NO_ANSWER_SECONDS:.0f} s: there is no such replica, or "
                "it is at no step yet, or in a very long one, or its script has a loop of its own without "
                "run.steps()"
            )

    def _report(self, line: str, about: str) -> None:
        if not line:
            return
        self._reported = printable(line)
        if about != self._about or _now() - self._said_at >= _SECONDS_BETWEEN_LINES:
            self._about, self._said_at = about, _now()
            self._say(self._reported)


def _now() -> float:
    return asyncio.get_running_loop().time()


def describe(who: str, answer: Mapping[str, Any]) -> str:
    """Return the progress in one line, empty at the end."""
    if answer.get("state") == "waiting":
        return f"{who}: waiting for the step; {answer.get('step')} are done"
    if answer.get("state") == "profiling":
        return f"{who}: recording from step {answer.get('first')} on"
    return ""


# Which replica of a job is asked, and how.


def choose(spec: Mapping[str, Any], worker: int | None) -> Replica:
    """Return the replica to profile.

    Args:
        spec: the job's spec.
        worker: the index from the command line, or None.

    Raises:
        ClusterProblem: there is no such replica, or it can't be profiled.
    """
    if spec.get("ps") is not None:
        raise ClusterProblem(
            "with parameter servers the chief assigns the workers' steps: they aren't profiled"
        )
    if worker is None and spec.get("chief") is not None:
        return Replica("chief", 0)
    count = (spec.get("worker") or {}).get("replicas", 1)
    if (worker or 0) >= count:
        raise ClusterProblem(f"there is no worker {worker or 0}: the job has {count}, from 0")
    return Replica("worker", worker or 0)


def client_for(handle: JobHandle, job: JobView, worker: int | None) -> tuple[ProfileClient, Replica]:
    """Return the client for a replica of a job, wherever that runs, and the replica.

    Args:
        handle: of the job.
        job: as it is now.
        worker: the index of the replica; None for the one that leads.

    Raises:
        ClusterProblem: the job is over, has no such replica, or it can't be profiled.
    """
    over = describe_end(job)
    if over is not None:
        raise ClusterProblem(f"{over}; only a job that trains can be profiled")
    replica = choose(job.spec, worker)
    if job.folder:
        return LocalProfileClient(Path(job.folder), replica.name), replica
    assert isinstance(handle, ClusterJob)  # noqa: S101 - it has no folder
    return PodProfileClient(handle.api, job, replica), replica
