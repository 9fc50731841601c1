"""Ports of this machine for what listens on 127.0.0.1."""

import contextlib
import random
import socket


def free_ports(count: int) -> list[int]:
    """Ports that are free, all different, below those that the system takes for outgoing connections."""
    chance, ports = random.SystemRandom(), set[int]()
    while len(ports) < count:
        port = chance.randrange(15_000, 32_000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            ports.add(port)
    return list(ports)
