"""The node's addresses, and the one wire to it: a pair of virtual interfaces, one end here, one inside.

The enclosure has no route to anywhere else, so no packet from it can leave the machine. Here the Services'
and the pods' ranges are routed into the wire, so a packet to one of them doesn't leave either.
"""

import ipaddress
import json
from dataclasses import dataclass
from pathlib import Path

from testbed.commands import run
from testbed.enclosure import Enclosure
from testbed.errors import TestbedError, Unfit
from testbed.places import mark

THERE = "tj-node"
CANDIDATES = range(96, 256, 8)


@dataclass(frozen=True)
class Network:
    """10.B/16 for Services, 10.(B+1)/16 for pods, 10.(B+2).0/30 for the wire."""

    base: int

    @property
    def services(self) -> str:
        return f"10.{self.base}.0.0/16"

    @property
    def kubernetes_service(self) -> str:
        return f"10.{self.base}.0.1"

    @property
    def dns(self) -> str:
        return f"10.{self.base}.0.10"

    @property
    def pods(self) -> str:
        return f"10.{self.base + 1}.0.0/16"

    @property
    def gateway(self) -> str:
        return f"10.{self.base + 1}.0.1"

    @property
    def here(self) -> str:
        return f"10.{self.base + 2}.0.1"

    @property
    def node(self) -> str:
        return f"10.{self.base + 2}.0.2"

    def overlaps(self, other: str) -> bool:
        """Whether this machine's route to `other` would be covered."""
        taken = ipaddress.IPv4Network(other, strict=False)
        own = (self.services, self.pods, f"{self.here}/30")
        return any(ipaddress.IPv4Network(each, strict=False).overlaps(taken) for each in own)


def choose() -> Network:
    """Ranges that this machine doesn't route anywhere yet.

    Raises:
        Unfit: All of 10.96/11 is taken.
    """
    routes = [route["dst"] for route in json.loads(run(["ip", "-json", "-4", "route", "show"]) or "[]")]
    taken = [route for route in routes if route != "default"]
    for base in CANDIDATES:
        network = Network(base)
        if not any(network.overlaps(route) for route in taken):
            return network
    raise Unfit(f"no free network for the test cluster beside this machine's routes: {', '.join(taken)}")


def interface() -> str:
    """The name of the wire's end here; an interface's name has at most 15 characters."""
    return f"tj-{mark()}"


def connect(network: Network, enclosure: Enclosure) -> None:
    """Lays the wire. Inside, the whole Service range is local: a packet to a lost Service goes nowhere."""
    first = enclosure.first
    if first is None:
        raise TestbedError("the enclosure has no first process")
    run(["ip", "link", "add", interface(), "type", "veth", "peer", "name", THERE, "netns", str(first.pid)])
    run(["ip", "address", "add", f"{network.here}/30", "dev", interface()])
    run(["ip", "link", "set", interface(), "up"])
    for line in (
        "link set lo up",
        f"address add {network.dns}/16 dev lo",
        f"address add {network.node}/30 dev {THERE}",
        f"link set {THERE} up",
    ):
        enclosure.run("ip", *line.split())
    enclosure.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
    for reached in (network.services, network.pods):
        run(["ip", "route", "add", reached, "via", network.node])


def disconnect() -> None:
    """Takes this end of the wire away; it goes by itself with the enclosure, but not at the same instant."""
    end = Path("/sys/class/net", interface())
    if not end.exists():
        return
    try:
        run(["ip", "link", "delete", end.name])
    except TestbedError:
        if end.exists():
            raise
