import random
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainjob.cluster.local.machine import PortBook, ReplicaPorts
from trainjob_trainer.contract.processes import can_listen


def test_a_hostname_keeps_its_ports() -> None:
    book = PortBook()
    book.give(["a", "b"])
    first = dict(book.ports)
    book.give(["b", "c", "a"])
    assert {name: book.ports[name] for name in "ab"} == first
    assert len({port for ports in book.ports.values() for port in (ports.tensorflow, ports.agent)}) == 6


def test_ports_from_a_base_follow_each_other() -> None:
    book = PortBook(4000, free=lambda port: port > 10_000)
    book.give(["a", "b"])
    assert [(name, ports.tensorflow) for name, ports in book.ports.items()] == [("a", 4000), ("b", 4001)]


@given(seed=st.integers(), base=st.integers(1024, 65000), count=st.integers(1, 40))
def test_no_agent_takes_a_port_that_follows_the_base(seed: int, base: int, count: int) -> None:
    book = PortBook(base, chance=random.Random(seed), free=lambda _: True)  # noqa: S311 - no secret
    book.give([f"host-{i}" for i in range(count)])
    agents = {ports.agent for ports in book.ports.values()}
    assert len(agents) == count
    assert not agents & set(range(base, base + count + 1000))


def test_ports_in_use_are_not_given() -> None:
    asked: list[int] = []

    def second_is_free(port: int) -> bool:
        asked.append(port)
        return len(asked) > 1

    book = PortBook(free=second_is_free)
    book.give(["a"])
    assert book.ports["a"] == ReplicaPorts(tensorflow=asked[1], agent=asked[2])


def test_no_free_port_at_all() -> None:
    with pytest.raises(OSError, match="no free port"):
        PortBook(free=lambda _: False).give(["a"])


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])  # noqa: S104
def test_a_listening_program_is_noticed(address: str) -> None:
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]
        assert not can_listen(port)
    assert can_listen(port)


def test_a_port_whose_connections_linger_can_listen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # the server's side ends first, and lingers
            client.recv(1)
    assert can_listen(port)
