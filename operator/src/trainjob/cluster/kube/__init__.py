"""Jobs on a Kubernetes API server: caches fed by watches, writes with preconditions."""

from trainjob.cluster.kube.access import Access, InvalidAccess, in_cluster
from trainjob.cluster.kube.calls import Call
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.cluster import Health, KubeCluster
from trainjob.cluster.kube.kubeconfig import from_kubeconfig
from trainjob.cluster.kube.pace import Pace
from trainjob.cluster.kube.resources import Resource

__all__ = [
    "Access",
    "ApiClient",
    "Call",
    "Health",
    "InvalidAccess",
    "KubeCluster",
    "Pace",
    "Resource",
    "from_kubeconfig",
    "in_cluster",
]
