from __future__ import annotations

import threading

from trainjob.controller.election import Election
from trainjob.controller.operator import CHECK_SECONDS, SLACK_SECONDS, guarded


def test_a_deadline_that_passes_unnoticed_ends_the_process() -> None:
    left = threading.Event()
    with guarded(lambda: 100.0, lambda: 100.1 + SLACK_SECONDS, lambda *_: left.set()):
        assert left.wait(30)


def test_a_deadline_that_is_put_off_does_not() -> None:
    left, looks = threading.Event(), threading.Semaphore(0)

    def clock() -> float:
        looks.release()
        return 100.0

    with guarded(lambda: 100.0, clock, lambda *_: left.set()):
        assert looks.acquire(timeout=30)
        assert looks.acquire(timeout=30)
    assert not left.is_set()


def test_a_standby_has_no_deadline() -> None:
    left, looks = threading.Event(), threading.Semaphore(0)

    def until() -> None:
        looks.release()

    with guarded(until, lambda: 1e9, lambda *_: left.set()):
        assert looks.acquire(timeout=30)
        assert looks.acquire(timeout=30)
    assert not left.is_set()


def test_the_thread_ends_with_the_context() -> None:
    with guarded(lambda: None, lambda: 0.0):
        assert "lease guard" in {thread.name for thread in threading.enumerate()}
    for thread in threading.enumerate():
        if thread.name == "lease guard":
            thread.join(30)
            assert not thread.is_alive()


def test_the_slack_is_within_the_others_wait() -> None:
    election = Election("trainjob")
    assert election.renew_deadline + SLACK_SECONDS + CHECK_SECONDS < election.lease_seconds
