"""The nodes of a cluster beside the first one, each with namespaces and a containerd of its own.

They can be lost, cut off and brought back, which is what they are for.
"""

import json
import shutil
import signal
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from testbed import cgroups, containerd, inside, network, node_parts, store
from testbed.component import Component
from testbed.control_plane import ControlPlane
from testbed.enclosure import Enclosure
from testbed.network import NodeNetwork
from testbed.waiting import until


class Cut(Enum):
    """What a node is cut off from, in both directions: firewall rules of the first node, for the node's wire.

    The API server and the cluster's DNS are on the first node; all that goes on to pods is forwarded.
    """

    ALL = (("INPUT", "-i"), ("FORWARD", "-i"), ("FORWARD", "-o"), ("OUTPUT", "-o"))
    API_SERVER = (("INPUT", "-p tcp --dport 6443 -i"),)
    PEERS = (("FORWARD", "-i"), ("FORWARD", "-o"))


@dataclass(frozen=True)
class JoinedNode:
    """A node beside the first one.

    Attributes:
        network: its addresses.
        first: the first node's enclosure.
        parts: what runs on it, containerd first.
    """

    name: str
    network: NodeNetwork
    first: Enclosure
    enclosure: Enclosure
    parts: tuple[Component, ...]
    die_with_us: bool

    @property
    def health(self) -> str:
        """The URL at which its kube-proxy says that it works."""
        return f"http://{self.network.address}:{node_parts.KUBE_PROXY_HEALTH}/healthz"

    def boot(self) -> None:
        """Starts it, also once it was lost: then with what was on its disk."""
        folder = self.enclosure.folder
        (folder / inside.STARTER).unlink(missing_ok=True)
        shutil.rmtree(folder / "covered" / "run", ignore_errors=True)
        Enclosure.create(folder, die_with_us=self.die_with_us)
        network.join(self.network, self.first, self.enclosure)
        self.enclosure.start(self.parts[0])
        containerd.Client(self.enclosure).wait()
        for part in self.parts[1:]:
            self.enclosure.start(part)

    def restart_kubelet(self, **changes: Any) -> None:
        """Starts the kubelet again, with these fields of its configuration changed; pods stay."""
        (part,) = [part for part in self.parts if part.name == "kubelet"]
        config = self.enclosure.folder / node_parts.KUBELET_CONFIG
        changed = config.with_stem(f"{config.stem}-changed")
        changed.write_text(json.dumps({**json.loads(config.read_text()), **changes}, indent=2))
        self.enclosure.signal(part.name, signal.SIGTERM)
        until(lambda: part.name not in self.enclosure.living(), what="the kubelet's end", seconds=30)
        words = (word.replace(str(config), str(changed)) for word in part.argv)
        self.enclosure.start(replace(part, argv=tuple(words)))

    def die(self) -> None:
        """Ends kubelet, containerd and pods at once; nobody is told."""
        self.enclosure.destroy()

    def cut_off(self, cut: Cut) -> None:
        """Drops the packets, until `reconnect`."""
        self._firewall("-I", cut)

    def reconnect(self, cut: Cut) -> None:
        """Lets the packets through again."""
        self._firewall("-D", cut)

    def _firewall(self, change: str, cut: Cut) -> None:
        for chain, which in cut.value:
            rule = (*which.split(), network.wire(self.network), "-j", "DROP")
            self.first.run("iptables", "--wait", change, chain, *rule)


def prepare(number: int, plane: ControlPlane, first: Enclosure, net: network.Network, *,
            die_with_us: bool) -> JoinedNode:  # fmt: skip
    """Writes the files of a node; `boot` starts it."""
    name = f"{node_parts.NODE}-{number + 1}"
    folder = plane.folder / "nodes" / name
    folder.mkdir(parents=True)
    node = node_parts.Node(name, folder, net.of(number), cgroups.create_for(name))
    node_parts.write_cni(node)
    store.lend(folder / "containerd")
    parts = (
        containerd.component(folder, folder / "containerd"),
        node_parts.kubelet(plane, node),
        node_parts.kube_proxy(plane, node),
    )
    return JoinedNode(name, node.network, first, Enclosure(folder), parts, die_with_us)
