"""NetworkPolicies that are enforced: kube-router's controller for them, on each node of a cluster."""

from testbed import node_parts
from testbed.claims import NodeCluster
from testbed.component import Component
from testbed.debian import need_tools
from testbed.enclosure import Enclosure
from testbed.programs import program

# By it, packets between two pods of one bridge pass the firewall, too.
BRIDGED = "echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables"


def enforce(cluster: NodeCluster) -> None:
    """Starts it on every node of a cluster with joined nodes; its rules are there seconds later."""
    assert cluster.folder is not None
    need_tools("ipset")
    controller = program("kube-router")
    services = cluster.joined[0].network.network.services
    nodes = {node_parts.NODE: Enclosure(cluster.folder)}
    nodes |= {node.name: node.enclosure for node in cluster.joined}
    for name, enclosure in nodes.items():
        enclosure.run("sh", "-c", BRIDGED)
        words = (f"--kubeconfig={cluster.kubeconfig}", f"--hostname-override={name}", "--run-firewall=true",
                 "--run-router=false", "--run-service-proxy=false", "--enable-cni=false",
                 f"--service-cluster-ip-range={services}")  # fmt: skip
        enclosure.start(Component("kube-router", (str(controller), *words)))
