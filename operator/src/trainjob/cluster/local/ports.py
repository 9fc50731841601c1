"""Two ports of this machine for each hostname of a job, kept for the whole run."""

import random
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

# Below the range that systems take the ports of outgoing connections from: a replica's port must still be
# free when it starts a second time, while its peers are busy connecting.
_LOWEST, _HIGHEST = 15000, 32000

# More than a job has replicas: what follows a base port is left to them.
_LARGEST_JOB = 5000


@dataclass(frozen=True)
class ReplicaPorts:
    """Where one replica is reached.

    Attributes:
        tensorflow: by its peers' TensorFlow.
        agent: by the other agents and the controller.
    """

    tensorflow: int
    agent: int


def is_free(port: int) -> bool:
    """Tell whether a server could listen on `port`; connections that linger after a restart don't count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError:
            return False
    return True


class PortBook:
    """Gives every hostname its ports, the same ones each time.

    Args:
        base_port: the first hostname's port for TensorFlow, the next one's is one higher; None for any that
            are free, as the agents' always are.
        chance: where to look for free ones.
        free: whether a port is free.
    """

    def __init__(
        self,
        base_port: int | None = None,
        chance: random.Random | None = None,
        free: Callable[[int], bool] = is_free,
    ) -> None:
        self._base_port = base_port
        self._chance = chance or random.Random()  # noqa: S311 - nothing secret in a port
        self._free = free
        self._ports: dict[str, ReplicaPorts] = {}
        self._taken: set[int] = set()

    @property
    def ports(self) -> Mapping[str, ReplicaPorts]:
        """Return the ports given out so far, by hostname."""
        return MappingProxyType(self._ports)

    def give(self, hostnames: Iterable[str]) -> None:
        """Choose ports for each hostname that has none yet.

        Raises:
            OSError: no free port was found.
        """
        for hostname in hostnames:
            if hostname not in self._ports:
                self._ports[hostname] = ReplicaPorts(tensorflow=self._next(), agent=self._any_free())

    def _next(self) -> int:
        if self._base_port is not None:
            return self._base_port + len(self._ports)
        return self._any_free()

    def _any_free(self) -> int:
        for _ in range(1000):
            port = self._chance.randrange(_LOWEST, _HIGHEST)
            if port not in self._taken and not self._is_reserved(port) and self._free(port):
                self._taken.add(port)
                return port
        raise OSError(f"found no free port between {_LOWEST} and {_HIGHEST}")

    def _is_reserved(self, port: int) -> bool:
        return self._base_port is not None and 0 <= port - self._base_port < _LARGEST_JOB


def agent_port_in_use_message(port: int) -> str:
    """Return the same for a port that nobody can choose."""
    return (
        f"port {port} of this machine, chosen for an agent, is in use by another program by now "
        f"(`ss -ltnp sport = :{port}` names it): start again, and others are chosen"
    )


def port_in_use_message(port: int, base_port: int | None) -> str:
    """Return one sentence for the author of the job: what is taken and what to do."""
    way_out = (
        "choose others with --base-port"
        if base_port is None
        else f"choose another --base-port than {base_port}"
    )
    return (
        f"port {port} of this machine is in use by another program: end it "
        f"(`ss -ltnp sport = :{port}` names it), or {way_out}"
    )
