"""Whoever is not the first worker waits until that one listens, and at the end until that one is through."""

import socket

import pytest

from trainjob_trainer.agent.stall import LEAVING_SECONDS
from trainjob_trainer.distribution.first_worker import (
    MOST_SECONDS_TO_OUTLIVE,
    PATIENCE_SECONDS,
    end_with_first_worker,
    wait_for_first_worker,
)
from trainjob_trainer.task import Task


class Clock:
    """Time that passes by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.at_sleep = lambda: None

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.at_sleep()


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def wait(task: Task, clock: Clock) -> bool:
    return wait_for_first_worker(task, clock=clock, sleep=clock.sleep)


@pytest.mark.parametrize("role", ["chief", "worker"])
def test_it_waits_until_the_first_one_listens(role: str) -> None:
    port, clock = closed_port(), Clock()
    addresses = {"chief": ("127.0.0.1:1",), "worker": (f"127.0.0.1:{port}", "127.0.0.1:2")}
    if role == "chief":
        addresses = {"chief": (f"127.0.0.1:{port}",), "worker": ("127.0.0.1:1", "127.0.0.1:2")}
    else:
        del addresses["chief"]
    servers = []

    def open_later() -> None:
        if clock.now > 1 and not servers:
            servers.append(socket.create_server(("127.0.0.1", port)))

    clock.at_sleep = open_later
    assert wait(Task("worker", 1, addresses), clock)
    assert 1 < clock.now < 1.1
    servers[0].close()


def test_it_leaves_the_waiting_to_tensorflow_in_the_end() -> None:
    clock = Clock()
    addresses = (f"127.0.0.1:{closed_port()}", "127.0.0.1:2")
    assert not wait(Task("worker", 1, {"worker": addresses}), clock)
    assert clock.now == pytest.approx(PATIENCE_SECONDS, abs=0.1)


@pytest.mark.parametrize(
    "task",
    [
        Task("worker", 0, {}),
        Task("worker", 0, {"worker": ("127.0.0.1:1",)}),
        Task("worker", 0, {"worker": ("127.0.0.1:1", "127.0.0.1:2")}),
        Task("chief", 0, {"chief": ("127.0.0.1:1",), "worker": ("127.0.0.1:2",)}),
        Task("evaluator", 0, {"worker": ("127.0.0.1:1", "127.0.0.1:2")}),
    ],
)
def test_who_waits_for_nobody(task: Task) -> None:
    clock = Clock()
    assert wait(task, clock)
    assert clock.now == 0


class DeadlineExceededError(Exception):
    """As TensorFlow names it."""


class UnavailableError(Exception):
    """As TensorFlow names it."""


class Service:
    """TensorFlow's context, with the part of it by which workers exchange words."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.told: list[str] = []

    def set_config_key_value(self, key: str, value: str) -> None:
        del value
        self.told.append(key)
        self._answer()

    def get_config_key_value(self, key: str, timeout_in_ms: int) -> None:
        assert timeout_in_ms > 0
        self._answer()
        self.told.append(key)

    def _answer(self) -> None:
        error = self.answers.pop(0)
        if error is not None:
            raise error


def member(index: int, workers: int = 2) -> Task:
    return Task("worker", index, {"worker": ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")[:workers]})


LATE, LOST = DeadlineExceededError(), UnavailableError()


@pytest.mark.parametrize(
    ("index", "answers", "present", "left"),
    [
        (0, [None], [], 0),
        (0, [LOST], [], 0),
        (1, [None], [True], 0),
        (1, [LATE, LATE, None], [True, True, True], 0),
        (1, [LATE, LOST, None], [True, True], 1),
        (1, [LATE, None], [True, False], 1),
        (1, [None], [False], 1),
    ],
)
def test_a_worker_ends_once_the_first_one_is_through_or_gone(
    index: int, answers: list[Exception | None], present: list[bool], left: int
) -> None:
    service, looks = Service(*answers), iter(present)
    end_with_first_worker(member(index), service, is_gone=lambda _: not next(looks), clock=lambda: 0.0)
    assert len(service.answers) == left
    assert list(looks) == []


def test_a_worker_outlives_a_first_one_that_hangs_for_a_time_only() -> None:
    times = iter([0.0, 44.0, 46.0])
    assert MOST_SECONDS_TO_OUTLIVE < LEAVING_SECONDS
    service = Service(LATE, None)
    end_with_first_worker(member(1), service, is_gone=lambda _: False, clock=lambda: next(times))
    assert service.told == []
    assert len(service.answers) == 1


@pytest.mark.parametrize(
    "task",
    [
        member(0, workers=1),
        Task("evaluator", 0, {"worker": ("127.0.0.1:1", "127.0.0.1:2"), "evaluator": ("127.0.0.1:3",)}),
        Task("chief", 0, {"chief": ("127.0.0.1:1",), "ps": ("127.0.0.1:2",), "worker": ("127.0.0.1:3",)}),
    ],
)
def test_who_trains_with_nobody_ends_at_once(task: Task) -> None:
    service = Service()
    end_with_first_worker(task, service)
    assert service.told == []
