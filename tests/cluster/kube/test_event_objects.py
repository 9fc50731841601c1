from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from trainjob.cluster.kube.events import build_event, series_of, write_time

JOB: dict[str, Any] = {
    "apiVersion": "trainjob.dev/v1alpha1",
    "kind": "TrainJob",
    "metadata": {"name": "digits", "namespace": "lab", "uid": "u1", "resourceVersion": "7"},
}
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_an_event_is_about_its_job() -> None:
    series = series_of(JOB, type_="Warning", reason="Restarting", message="worker 0 failed")
    event = build_event(
        series, suffix="ab", involved=JOB, count=2, first=NOON, last=NOON + timedelta(seconds=3)
    )
    assert event["metadata"] == {"name": "digits.ab", "namespace": "lab"}
    assert event["involvedObject"] == {
        "apiVersion": "trainjob.dev/v1alpha1",
        "kind": "TrainJob",
        "namespace": "lab",
        "name": "digits",
        "uid": "u1",
        "resourceVersion": "7",
    }
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "Restarting", "worker 0 failed")
    assert (event["firstTimestamp"], event["lastTimestamp"], event["count"]) == (
        "2026-01-01T12:00:00Z",
        "2026-01-01T12:00:03Z",
        2,
    )


def test_names_of_events_fit() -> None:
    job = {**JOB, "metadata": {**JOB["metadata"], "name": "x" * 253}}
    series = series_of(job, type_="Normal", reason="Created", message="m")
    event = build_event(series, suffix="0123", involved=job, count=1, first=NOON, last=NOON)
    assert len(event["metadata"]["name"]) == 253
    assert event["metadata"]["name"].endswith(".0123")


def test_another_job_of_the_name_has_its_own_series() -> None:
    other = {**JOB, "metadata": {**JOB["metadata"], "uid": "u2"}}
    one, two = (series_of(j, type_="Normal", reason="Created", message="m") for j in (JOB, other))
    assert one != two


def test_times_are_written_in_utc() -> None:
    assert write_time(NOON.astimezone(timezone(timedelta(hours=2)))) == "2026-01-01T12:00:00Z"


def test_no_event_drives_the_terminal_that_shows_it() -> None:
    job = {"metadata": {"namespace": "default", "name": "digits", "uid": "1"}}
    series = series_of(job, type_="Normal", reason="Restarted", message="a\x1b[31mb\x1b]0;c\x07\u202ed")
    assert series.message == "abd"
