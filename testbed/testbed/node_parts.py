"""What makes a node of a machine: kubelet, kube-proxy, the pods' network and the cluster's DNS."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed import containerd
from testbed.component import Component
from testbed.control_plane import ControlPlane
from testbed.network import Network, NodeNetwork
from testbed.programs import KUBERNETES, program

NODE = "testbed"
KUBELET_CONFIG = "kubelet.json"
KUBE_PROXY_HEALTH = 10256
DNS_READY = 8181

# What CoreDNS may read; the same as in every cluster.
DNS_ROLE = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "system:coredns"}
rules:
- {apiGroups: [""], resources: [services, pods, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "system:coredns"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:coredns"}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: "system:coredns"}
"""

COREFILE = """\
.:53 {{
    bind {address}
    errors
    ready {node}:{ready}
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig}
        pods insecure
    }}
}}
"""


@dataclass(frozen=True)
class Node:
    """What its parts are configured by.

    Attributes:
        folder: where its files are; the first node's are those of the control plane.
        cgroup: the control group of its pods.
    """

    name: str
    folder: Path
    network: NodeNetwork
    cgroup: str


def write_cni(node: Node) -> None:
    """Pods hang on one bridge. Their packets leave it only for the nodes, their pods and Services."""
    network, folder = node.network, node.folder
    ranges = {"type": "host-local", "ranges": [[{"subnet": network.pods, "gateway": network.gateway}]],
              "routes": [{"dst": "0.0.0.0/0"}]}  # fmt: skip
    bridge = {"type": "bridge", "bridge": "tj-pods", "isGateway": True, "hairpinMode": True, "ipMasq": False,
              "ipam": ranges}  # fmt: skip
    content = {"cniVersion": "1.0.0", "name": "testbed", "plugins": [bridge]}
    (folder / "cni").mkdir()
    (folder / "cni" / "10-testbed.conflist").write_text(json.dumps(content))


def kubelet(plane: ControlPlane, node: Node) -> Component:
    """The kubelet, with its pods in our control group, content with a machine of any size and fullness."""
    folder, name, address = node.folder, node.name, node.network.address
    certificate, key = plane.serving_pair(f"kubelet-server-{name}", (f"DNS:{name}", f"IP:{address}"))
    (folder / "resolv.conf").write_text("")  # pods ask the cluster's DNS alone
    # From 1.35 on a kubelet asks the registry about an image that it has also pulled by another name.
    policy = {"imagePullCredentialsVerificationPolicy": "NeverVerify"}
    preloaded = policy if KUBERNETES == "kubernetes" else {}
    config = _configuration(
        folder / KUBELET_CONFIG, "KubeletConfiguration", "kubelet.config.k8s.io/v1beta1",
        authentication={"x509": {"clientCAFile": str(plane.authority)}, "webhook": {"enabled": True},
                        "anonymous": {"enabled": False}},
        authorization={"mode": "Webhook"},
        tlsCertFile=str(certificate), tlsPrivateKeyFile=str(key),
        address=address, clusterDNS=[node.network.network.dns], clusterDomain="cluster.local",
        resolvConf=str(folder / "resolv.conf"), containerRuntimeEndpoint=f"unix://{containerd.SOCKET}",
        cgroupDriver="cgroupfs", failCgroupV1=False, cgroupRoot=node.cgroup, enforceNodeAllocatable=[],
        failSwapOn=False, oomScoreAdj=0, imageGCHighThresholdPercent=100, imageGCLowThresholdPercent=99,
        evictionHard={"memory.available": "1Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
                      "imagefs.available": "0%", "imagefs.inodesFree": "0%"},
        volumePluginDir="/var/lib/kubelet/volume-plugins", registerWithTaints=[], serializeImagePulls=False,
        syncFrequency="10s", nodeStatusUpdateFrequency="5s", logging={"verbosity": 1}, **preloaded,
    )  # fmt: skip
    user = plane.kubeconfig(f"system:node:{name}", groups=("system:nodes",))
    words = (f"--config={config}", f"--kubeconfig={user}", f"--hostname-override={name}",
             f"--node-ip={address}", "--root-dir=/var/lib/kubelet")  # fmt: skip
    return Component("kubelet", (str(program("kubelet")), *words))


def kube_proxy(plane: ControlPlane, node: Node) -> Component:
    """Services by iptables; kernel settings of the whole machine are left alone."""
    user = plane.kubeconfig("system:kube-proxy", file=node.folder / "kube-proxy.kubeconfig")
    config = _configuration(
        node.folder / "kube-proxy.json", "KubeProxyConfiguration", "kubeproxy.config.k8s.io/v1alpha1",
        mode="iptables", clusterCIDR=node.network.network.pods, hostnameOverride=node.name, oomScoreAdj=0,
        clientConnection={"kubeconfig": str(user)},
        # Two pods hang on one bridge: only a masqueraded answer takes the way back through the node.
        iptables={"masqueradeAll": True, "minSyncPeriod": "100ms"},
        conntrack={"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        healthzBindAddress=f"{node.network.address}:{KUBE_PROXY_HEALTH}",
        metricsBindAddress="127.0.0.1:10249",
    )  # fmt: skip
    return Component("kube-proxy", (str(program("kube-proxy")), f"--config={config}"))


def scheduler(plane: ControlPlane) -> Component:
    """The scheduler, without leader election: there is one."""
    config = plane.kubeconfig("system:kube-scheduler")
    words = (f"--kubeconfig={config}", "--leader-elect=false", "--secure-port=0")
    return Component("kube-scheduler", (str(program("kube-scheduler")), *words))


def coredns(plane: ControlPlane, network: Network) -> Component:
    """The cluster's DNS, at its usual address."""
    file = plane.folder / "Corefile"
    config = plane.kubeconfig("system:coredns")
    file.write_text(
        COREFILE.format(address=network.dns, node=network.node, ready=DNS_READY, kubeconfig=config)
    )
    return Component("coredns", (str(program("coredns")), "-conf", str(file)))


def _configuration(file: Path, kind: str, version: str, **fields: Any) -> Path:
    file.write_text(json.dumps({"apiVersion": version, "kind": kind, **fields}, indent=2))
    return file
