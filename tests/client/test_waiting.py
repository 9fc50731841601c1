from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from support.cli.stored_jobs import stored_job
from trainjob.client import jobs
from trainjob.client.problems import NoJob
from trainjob.client.view import read_job
from trainjob.cluster.kube.informer import Change, Gone, Listed, Seen

PENDING, RUNNING = Seen(stored_job("Pending")), Seen(stored_job("Running"))
COMPLETE, FAILED = Seen(stored_job("Complete")), Seen(stored_job("Failed"))
OTHER = Seen(stored_job("Running", uid="another"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([PENDING, Listed(), COMPLETE], ["Pending", "Complete"]),
        ([FAILED], ["Failed"]),
        ([Listed()], ["there is none"]),
        ([RUNNING, Listed(), Listed(), Gone(RUNNING.manifest)], ["Running", "was deleted"]),
        # It ended, and was deleted, while the watch was broken off: its last state is in the event.
        ([RUNNING, Listed(), Gone(COMPLETE.manifest)], ["Running", "Complete"]),
        ([RUNNING, Listed(), OTHER], ["Running", "another job of that name"]),
        ([RUNNING, Listed(), Gone(OTHER.manifest), COMPLETE], ["Running", "Complete"]),
    ],
)
async def test_when_the_waiting_is_over(
    changes: list[Change], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def follow(*_: Any) -> AsyncGenerator[Change]:
        for change in changes:
            yield change
        raise AssertionError("it waits on")

    async def missing_job(*_: Any) -> NoJob:
        return NoJob("there is none")

    monkeypatch.setattr(jobs, "follow", follow)
    monkeypatch.setattr(jobs, "missing_job", missing_job)
    seen = list[str]()
    try:
        async for job in jobs.follow_job(None, "default", "digits", print):  # type: ignore[arg-type]
            seen.append(job.state)
    except NoJob as error:
        seen.append(str(error))
    assert all(text in each for text, each in zip(expected, seen, strict=True)), seen


@pytest.mark.parametrize(
    "damage", [None, [], {"state": 3}, {"conditions": "none"}, {"restarts": {"counted": -1}}]
)
def test_a_damaged_status_is_none(damage: object) -> None:
    assert read_job({**stored_job(), "status": damage}).state == "Pending"
