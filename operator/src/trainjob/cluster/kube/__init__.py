"""Jobs on a Kubernetes API server: caches fed by watches, writes with preconditions."""

from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.cluster import Health, KubeCluster
from trainjob.cluster.kube.config import Access, InvalidAccess, from_kubeconfig, in_cluster
from trainjob.cluster.kube.informer import Timeouts
from trainjob.cluster.kube.transport import Call, Resource

__all__ = [
    "Access",
    "ApiClient",
    "Call",
    "Health",
    "InvalidAccess",
    "KubeCluster",
    "Resource",
    "Timeouts",
    "from_kubeconfig",
    "in_cluster",
]
