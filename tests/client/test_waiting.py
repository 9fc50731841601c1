from __future__ import annotations

import pytest

from support.cli.stored_jobs import stored_job
from trainjob.client.jobs import Reason, Waiting
from trainjob.cluster.kube.informer import Change, Gone, Listed, Seen

PENDING, RUNNING = Seen(stored_job("Pending")), Seen(stored_job("Running"))
COMPLETE, FAILED = Seen(stored_job("Complete")), Seen(stored_job("Failed"))
OTHER = Seen(stored_job("Running", uid="another"))


@pytest.mark.parametrize(
    ("changes", "reason", "state"),
    [
        ([PENDING, Listed(), RUNNING], None, "Running"),
        ([PENDING, Listed(), COMPLETE], Reason.OVER, "Complete"),
        ([FAILED], Reason.OVER, "Failed"),
        ([Listed()], Reason.MISSING, None),
        ([RUNNING, Listed(), Gone(RUNNING.manifest)], Reason.DELETED, "Running"),
        # It ended, and was deleted, while the watch was broken off: its last state is in the event.
        ([RUNNING, Listed(), Gone(COMPLETE.manifest)], Reason.OVER, "Complete"),
        ([RUNNING, Listed(), OTHER], Reason.REPLACED, "Running"),
        ([RUNNING, Listed(), Gone(OTHER.manifest)], None, "Running"),
        ([RUNNING, Listed(), Listed()], None, "Running"),
    ],
)
def test_when_the_waiting_is_over(changes: list[Change], reason: Reason | None, state: str | None) -> None:
    waiting = Waiting()
    *before, last = [waiting.take(change) for change in changes]
    assert before == [None] * len(before)
    assert last == reason
    assert (waiting.job.state if waiting.job else None) == state


@pytest.mark.parametrize(
    "damage", [None, [], {"state": 3}, {"conditions": "none"}, {"restarts": {"counted": -1}}]
)
def test_a_damaged_status_is_none(damage: object) -> None:
    waiting = Waiting()
    assert waiting.take(Seen({**stored_job(), "status": damage})) is None
    assert waiting.job is not None
    assert waiting.job.state == "Pending"
