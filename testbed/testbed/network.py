"""The nodes' addresses, and one wire to each: a pair of virtual interfaces.

The first node's wire ends here. It has no route to anywhere else, so no packet from it can leave the machine.
Here the Services' and the pods' ranges are routed into the wire, so a packet to one of them doesn't leave
either. The wires of the other nodes end at the first one, which forwards what they send to each other.
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
    """10.B/16 for Services, 10.(B+1)/16 for pods, 10.(B+2)/16 for the wires."""

    base: int

    def of(self, number: int) -> "NodeNetwork":
        """The addresses of a node: 0 is the first one."""
        return NodeNetwork(self, number)

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
    def wires(self) -> str:
        return f"10.{self.base + 2}.0.0/16"

    @property
    def node(self) -> str:
        return self.of(0).address

    def overlaps(self, other: str) -> bool:
        """Whether this machine's route to `other` would be covered."""
        taken = ipaddress.IPv4Network(other, strict=False)
        own = (self.services, self.pods, self.wires)
        return any(ipaddress.IPv4Network(each).overlaps(taken) for each in own)


@dataclass(frozen=True)
class NodeNetwork:
    """The addresses of one node, and of its pods: the first node has half of the pods' range."""

    network: Network
    number: int

    @property
    def address(self) -> str:
        return f"10.{self.network.base + 2}.{self.number}.2"

    @property
    def other_end(self) -> str:
        """Where its wire ends: on the machine, or at the first node."""
        return f"10.{self.network.base + 2}.{self.number}.1"

    @property
    def pods(self) -> str:
        return f"{self._pods}.0/{24 if self.number else 17}"

    @property
    def gateway(self) -> str:
        return f"{self._pods}.1"

    @property
    def _pods(self) -> str:
        return f"10.{self.network.base + 1}.{128 + self.number if self.number else 0}"


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
    peer = ("type", "veth", "peer", "name", THERE, "netns", _namespace(enclosure))
    run(["ip", "link", "add", interface(), *peer])
    run(["ip", "address", "add", f"{network.of(0).other_end}/30", "dev", interface()])
    run(["ip", "link", "set", interface(), "up"])
    for line in (
        "link set lo up",
        f"address add {network.dns}/16 dev lo",
        f"address add {network.node}/30 dev {THERE}",
        f"link set {THERE} up",
    ):
        enclosure.run("ip", *line.split())
    enclosure.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
    for reached in (network.services, network.pods, network.wires):
        run(["ip", "route", "add", reached, "via", network.node])


def wire(node: NodeNetwork) -> str:
    """The name of the end of another node's wire at the first one."""
    return f"tj-node-{node.number}"


def join(node: NodeNetwork, first: Enclosure, enclosure: Enclosure) -> None:
    """Lays the wire between another node and the first one."""
    there = ("type", "veth", "peer", "name", THERE, "netns", _namespace(enclosure))
    run(["ip", "link", "add", wire(node), "netns", _namespace(first), *there])
    for line in (
        f"address add {node.other_end}/30 dev {wire(node)}",
        f"link set {wire(node)} up",
        f"route add {node.pods} via {node.address}",
    ):
        first.run("ip", *line.split())
    ranges = (node.network.services, node.network.pods, node.network.wires)
    for line in (
        "link set lo up",
        f"address add {node.address}/30 dev {THERE}",
        f"link set {THERE} up",
        *(f"route add {each} via {node.other_end}" for each in ranges),
    ):
        enclosure.run("ip", *line.split())
    enclosure.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")


def _namespace(enclosure: Enclosure) -> str:
    """What `ip` knows an enclosure's network by: the number of its first process."""
    if enclosure.first is None:
        raise TestbedError("the enclosure has no first process")
    return str(enclosure.first.pid)


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
