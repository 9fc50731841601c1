"""A real Kubernetes for the tests: on any Linux machine, without Docker.

Two tiers. `ControlPlane` is etcd, API server and controller-manager as plain processes on 127.0.0.1: no root,
seconds to start, as many at once as wanted. `NodeCluster` adds scheduler, kubelet, kube-proxy, containerd and
CoreDNS: pods run. It needs root, because it lives in namespaces of its own, and exists once on a machine.

Both give a `Cluster`: the kubeconfig's path and what a test does with a cluster.
"""

from testbed.cluster import Cluster, KubectlError
from testbed.errors import TestbedError, Unfit

__all__ = ["Cluster", "KubectlError", "TestbedError", "Unfit"]
