from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support_cli_jobs import stored_job
from support_cli_requests import Answer, Asked, Break
from support_cli_server import CliServer

from trainjob.cli.cluster.errors import Refused, Unreachable
from trainjob.cli.cluster.following import (
    Change,
    Gone,
    Listed,
    RetryTimes,
    Seen,
    TimeOver,
    Troubled,
    backoff,
    follow,
)
from trainjob.cli.cluster.options import ClusterOptions
from trainjob.cli.cluster.resources import TRAINJOBS
from trainjob.cli.cluster.server import Server


class Clock:
    """Time that passes only when somebody pauses."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def pace(self, deadline: float | None = None) -> RetryTimes:
        return RetryTimes(lambda: self.now, self.pause, deadline)


@contextmanager
def asking(path: Path) -> Iterator[tuple[CliServer, Server]]:
    with CliServer().serve() as api:
        kubeconfig = api.write_kubeconfig(path / "kubeconfig")
        with ClusterOptions(kubeconfig=str(kubeconfig)).connected() as cluster:
            yield api, cluster.server


def changes(server: Server, pace: RetryTimes | None = None) -> Iterator[Change]:
    return follow(server, TRAINJOBS, "default", {}, pace or Clock().pace())


def told(change: Change) -> tuple[str, str]:
    """The kind of a change, and the state of the job that it is about."""
    manifest = change.manifest if isinstance(change, Seen | Gone) else {}
    return type(change).__name__, manifest.get("status", {}).get("state", "")


def fail(api: CliServer, verb: str, *problems: Exception) -> None:
    """Have the next requests with this verb fail, one after the other."""
    left = list(problems)

    def rule(asked: Asked) -> None:
        if asked.verb == verb and left:
            raise left.pop(0)

    api.rules.append(rule)


def test_what_is_there_and_what_changes(tmp_path: Path) -> None:
    with asking(tmp_path) as (api, server):
        api.put(stored_job("Pending"))
        found = changes(server)
        assert [told(next(found)) for _ in range(2)] == [("Seen", "Pending"), ("Listed", "")]
        api.put(stored_job("Running"))
        assert told(next(found)) == ("Seen", "Running")
        api.delete("trainjobs", "digits")
        assert told(next(found)) == ("Gone", "Running")


def test_a_watch_that_breaks_off_goes_on_where_it_was(tmp_path: Path) -> None:
    with asking(tmp_path) as (api, server):
        found = changes(server)
        assert told(next(found)) == ("Listed", "")
        fail(api, "watch", Break())
        api.put(stored_job("Pending"))
        assert told(next(found)) == ("Seen", "Pending")
        api.cut_watches()
        api.put(stored_job("Running"))
        assert told(next(found)) == ("Seen", "Running")
        assert api.count("list") == 1


def test_a_deletion_that_nobody_told(tmp_path: Path) -> None:
    with asking(tmp_path) as (api, server):
        api.put(stored_job("Running"))
        api.put(stored_job("Pending", name="other"))
        found = changes(server)
        assert [told(next(found))[0] for _ in range(3)] == ["Seen", "Seen", "Listed"]
        api.delete("trainjobs", "digits")
        api.forget_history()
        assert [told(next(found)) for _ in range(2)] == [("Gone", "Running"), ("Listed", "")]
        assert api.count("list") == 2


def test_an_expired_version_as_the_answer_to_a_watch(tmp_path: Path) -> None:
    with asking(tmp_path) as (api, server):
        fail(api, "watch", Answer(410, "Expired", "too old"))
        found = changes(server)
        assert [told(next(found))[0] for _ in range(2)] == ["Listed", "Listed"]


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_a_server_that_restarts(verb: str, tmp_path: Path) -> None:
    clock = Clock()
    with asking(tmp_path) as (api, server):
        fail(api, verb, Break(), Break(), Answer(503, "ServiceUnavailable", "starting"), Break())
        found = changes(server, clock.pace())
        seen = [next(found)]
        api.put(stored_job("Running"))
        while not isinstance(seen[-1], Seen):
            seen.append(next(found))
        problems = [change.problem for change in seen if isinstance(change, Troubled)]
        assert {type(problem) for problem in problems} == {Refused, Unreachable}
        assert len(clock.pauses) >= 3
        assert clock.pauses == [backoff(n + 1) for n in range(len(clock.pauses))]


def test_it_waits_as_long_as_it_is_asked_to(tmp_path: Path) -> None:
    clock = Clock()
    with asking(tmp_path) as (api, server):
        answer = Answer(429, "TooManyRequests", "slow down")
        answer.headers = {"Retry-After": "7"}
        fail(api, "list", answer)
        found = changes(server, clock.pace())
        assert [told(next(found))[0] for _ in range(2)] == ["Troubled", "Listed"]
        assert clock.pauses == [7.0]


def test_what_is_refused_for_good_is_raised(tmp_path: Path) -> None:
    with asking(tmp_path) as (api, server):
        fail(api, "watch", Answer(403, "Forbidden", "no"))
        found = changes(server)
        assert told(next(found))[0] == "Listed"
        with pytest.raises(Refused, match="no"):
            next(found)


def test_a_deadline_ends_it_whatever_happens(tmp_path: Path) -> None:
    clock = Clock()
    with asking(tmp_path) as (api, server):
        fail(api, "list", *[Break() for _ in range(100)])
        *troubles, last = changes(server, clock.pace(deadline=30.0))
    assert isinstance(last, TimeOver)
    assert {type(change) for change in troubles} == {Troubled}
    assert clock.now == 30.0


def test_a_watch_that_ends_at_once_is_not_asked_without_end(tmp_path: Path) -> None:
    clock = Clock()
    with asking(tmp_path) as (api, server):
        api.ends_watches_at_once = True
        assert [type(c) for c in changes(server, clock.pace(deadline=20.0))] == [Listed, TimeOver]
        assert api.count("watch") < 10


@pytest.mark.parametrize(("failures", "seconds"), [(1, 0.2), (2, 0.4), (3, 0.8), (7, 10.0), (5000, 10.0)])
def test_backoff(failures: int, seconds: float) -> None:
    assert backoff(failures) == pytest.approx(seconds)
