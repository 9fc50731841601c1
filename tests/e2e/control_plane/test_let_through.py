"""Bad jobs that the API server lets through end as Failed, with words: no crash, no loop."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
from testbed import Cluster

from support.kube.judged_jobs import Asked, ask_of_all
from support.kube.kube_cluster import running
from support.kube.real_kube import eventually, open_real
from support.kube.verdicts import judge_creations
from support.world.changes import errors_of
from support.world.jobs import build_job
from trainjob.api import InvalidTrainJob, parse
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.config import Access
from trainjob.cluster.kube.resources import PODS, TRAINJOBS
from trainjob.cluster.kube.transport import Call
from trainjob.controller import Controller
from trainjob.core.manifests import build_objects
from trainjob.core.settings import Isolation, Settings
from trainjob.core.wording import listed, quoted

Manifest = dict[str, Any]

READING = {"get", "list", "watch"}
MOST_OF_A_FIELD = 6
"""With so many wrong values it has been tried enough."""

MOST_PASSES = 40
"""Over one job of five pods that is ended at once: each object is created, told of, deleted and told of."""


pytestmark = pytest.mark.usefixtures("crd")


@pytest.fixture(scope="module")
def asked(control_plane: Cluster) -> list[Asked]:
    return ask_of_all(control_plane)


class Work:
    """A controller at work, and what it takes.

    Attributes:
        calls: every request that it has made.
        passes: how often it has looked at each job.
    """

    def __init__(self, admin: ApiClient, namespace: str) -> None:
        self.admin = admin
        self.namespace = namespace
        self.calls: list[Call] = []
        self.passes: Counter[str] = Counter()

    async def create(self, jobs: Mapping[str, Manifest]) -> None:
        for name, raw in jobs.items():
            place = {"name": name, "namespace": self.namespace}
            await self.admin.create(TRAINJOBS, {**raw, "metadata": place})

    async def statuses(self) -> dict[str, Manifest]:
        items = (await self.admin.list(TRAINJOBS, self.namespace))["items"]
        return {item["metadata"]["name"]: item.get("status", {}) for item in items}

    async def has_seen_all(self) -> None:
        """Return once a job that came last has its pod: what was to be done at once is done."""
        await self.create({"last": build_job(workers=1, evaluator=False)})
        await eventually(
            lambda: self.admin.list(PODS, self.namespace, selector="trainjob.dev/job=last"),
            lambda pods: pods["items"],
        )

    def writes(self) -> Counter[str]:
        return Counter(f"{c.verb} {c.resource}" for c in self.calls if c.verb not in READING)


@asynccontextmanager
async def working(access: Access, admin: ApiClient, namespace: str) -> AsyncIterator[Work]:
    work = Work(admin, namespace)
    async with open_real(access, namespace, on_call=work.calls.append) as kube:
        controller = Controller(
            kube,
            workers=8,
            settings=Settings(isolation=Isolation()),
            on_reconciled=lambda key, _seconds: work.passes.update([key.name]),
        )
        async with running(controller.run()):
            yield work


def _let_through(asked: list[Asked], *, readable: bool) -> dict[str, Manifest]:
    """Return jobs that the API server accepts, by new names; `readable` are those that we accept, too."""
    found, seen = [], Counter[str]()
    for job in asked:
        if job.verdict.accepted and bool(errors_of(job.verdict.answer)) != readable:
            field = job.name.partition("=")[0]
            seen[field] += 1
            if readable or seen[field] <= MOST_OF_A_FIELD:
                found.append(job)
    named = {f"job-{number}": deepcopy(job.verdict.answer) for number, job in enumerate(found)}
    for raw in named.values():
        raw["spec"].pop("managedBy", None)  # somebody else's are let alone
        if raw["spec"]["worker"].get("priorityClassName") == "batch":
            del raw["spec"]["worker"]["priorityClassName"]  # there is none here
    return named


async def test_what_can_not_be_read_fails_with_the_message_of_validate(
    access: Access,
    admin: ApiClient,
    namespace: str,
    asked: list[Asked],
    caplog: pytest.LogCaptureFixture,
) -> None:
    jobs = _let_through(asked, readable=False)
    assert len(jobs) > 15
    async with working(access, admin, namespace) as work:
        await work.create(jobs)
        await eventually(work.statuses, lambda found: all(s.get("state") == "Failed" for s in found.values()))
        await work.has_seen_all()
        statuses, writes, passes = await work.statuses(), work.writes(), work.passes.copy()
    stored = {j["metadata"]["name"]: j for j in (await admin.list(TRAINJOBS, namespace))["items"]}
    assert {name: _failure(statuses[name]) for name in jobs} == {
        name: ("InvalidSpec", _words(stored[name])) for name in jobs
    }
    # One write for each, and at most a second look, at what was written.
    assert writes["update trainjobs/status"] <= len(jobs) + 2  # the last job's, too
    assert writes["create pods"] == 1
    assert all(passes[name] <= 2 for name in jobs), passes
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def _failure(status: Manifest) -> tuple[str, str]:
    (failed,) = [c for c in status["conditions"] if (c["type"], c["status"]) == ("Failed", "True")]
    return failed["reason"], failed["message"]


def _words(stored: Manifest) -> str:
    with pytest.raises(InvalidTrainJob) as refused:
        parse(stored)
    return listed(str(error) for error in refused.value.errors)


async def test_what_pods_may_not_have_fails_the_job_with_the_message_of_the_api_server(
    control_plane: Cluster,
    access: Access,
    admin: ApiClient,
    namespace: str,
    asked: list[Asked],
    caplog: pytest.LogCaptureFixture,
) -> None:
    jobs = _let_through(asked, readable=True)
    complaints = await _complaints(control_plane, namespace, jobs)
    assert len(complaints) > 20
    async with working(access, admin, namespace) as work:
        await work.create({name: jobs[name] for name in complaints})
        await eventually(
            work.statuses,
            lambda found: all(is_told(found.get(name, {})) for name, is_told in complaints.items()),
        )
        await work.has_seen_all()
        passes = work.passes.copy()
    assert all(passes[name] <= MOST_PASSES for name in complaints), passes
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def _complaints(
    cluster: Cluster, namespace: str, jobs: Mapping[str, Manifest]
) -> dict[str, Callable[[Manifest], bool]]:
    """Return how the status has to tell it, of jobs of which the API server refuses an object."""
    rendered = [
        (name, item)
        for name, raw in jobs.items()
        for item in build_objects(
            parse({**raw, "metadata": {"name": name, "namespace": namespace, "uid": "1-2-3"}})
        )
        if item["metadata"]["labels"].get("trainjob.dev/role") != "evaluator"  # the job goes on without
    ]
    verdicts = await judge_creations(cluster, [item for _, item in rendered])
    found: dict[str, set[tuple[str, str]]] = {}
    for (name, _), verdict in zip(rendered, verdicts, strict=True):
        if not verdict.accepted:
            # Pods of one role differ in their names.
            words = re.sub(rf"{name}-\w+-\d+-\w+", name, quoted(verdict.answer["message"], 300))
            found.setdefault(name, set()).add((verdict.answer["reason"], words))
    # What is said of many wrong values alike is heard once.
    once = {
        frozenset((why, words.replace(name, "")) for why, words in said): name for name, said in found.items()
    }
    return {name: partial(_tells, name, found[name]) for name in once.values()}


def _tells(name: str, said: set[tuple[str, str]], status: Manifest) -> bool:
    """Whether the job has ended, or waits where time may mend it, with one of these words."""
    ended = {reason in ("Invalid", "BadRequest") for reason, _ in said}
    kind, value, why = (
        ("Failed", "True", "InvalidTemplate") if ended == {True} else ("Running", "False", "CreationRefused")
    )
    message = re.sub(rf"{name}-\w+-\d+-\w+", name, status.get("message", ""))
    holds = any(
        (c["type"], c["status"], c["reason"]) == (kind, value, why) for c in status.get("conditions", ())
    )
    return holds and any(all(part in message for part in words.split("…")) for _, words in said)
