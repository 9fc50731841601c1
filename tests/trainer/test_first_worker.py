"""Whoever is not the first worker waits until that one listens; a pause is taken for nobody's death."""

import socket

import pytest

from trainjob_trainer.distribution.first_worker import (
    PATIENCE_SECONDS,
    bear_pauses,
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


@pytest.mark.parametrize(("has_agent", "longer_than"), [(False, 30), (True, 3600)])
def test_the_coordination_service_bears_pauses(has_agent: bool, longer_than: int) -> None:
    class Service:
        def configure_coordination_service(self, kind: str, *, heartbeat_timeout_in_ms: int = 0) -> None:
            self.configured = kind, heartbeat_timeout_in_ms

    service = Service()
    bear_pauses(has_agent=has_agent, service=service)
    service.configure_coordination_service("standalone")
    kind, milliseconds = service.configured
    assert kind == "standalone"
    assert milliseconds > 1000 * longer_than
