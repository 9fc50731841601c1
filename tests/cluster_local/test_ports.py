import socket

import pytest

from trainjob.cluster.local.ports import PortBook, is_free, port_in_use_message


def test_a_hostname_keeps_its_port() -> None:
    book = PortBook()
    book.give(["a", "b"])
    first = dict(book.ports)
    book.give(["b", "c", "a"])
    assert {name: book.ports[name] for name in "ab"} == first
    assert len(set(book.ports.values())) == 3


def test_ports_from_a_base_follow_each_other() -> None:
    book = PortBook(4000, free=lambda _: False)
    book.give(["a", "b"])
    assert dict(book.ports) == {"a": 4000, "b": 4001}


def test_ports_in_use_are_not_given() -> None:
    asked: list[int] = []

    def second_is_free(port: int) -> bool:
        asked.append(port)
        return len(asked) > 1

    book = PortBook(free=second_is_free)
    book.give(["a"])
    assert book.ports["a"] == asked[1]


def test_no_free_port_at_all() -> None:
    with pytest.raises(OSError, match="no free port"):
        PortBook(free=lambda _: False).give(["a"])


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])  # noqa: S104
def test_a_listening_program_is_noticed(address: str) -> None:
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]
        assert not is_free(port)
    assert is_free(port)


def test_a_port_whose_connections_linger_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # the server's side ends first, and lingers
            client.recv(1)
    assert is_free(port)


def test_the_message_says_what_to_do() -> None:
    assert "--base-port" in port_in_use_message(7001, None)
    assert "another --base-port than 7000" in port_in_use_message(7001, 7000)
    assert "port 7001 of this machine is in use" in port_in_use_message(7001, 7000)
