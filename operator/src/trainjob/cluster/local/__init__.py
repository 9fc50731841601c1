"""Pods as processes of this machine: what `trainjob run` needs instead of a cluster.

`LocalCluster` keeps the protocol of every cluster for one TrainJob. `survey` looks at the machine,
`build_launch` translates a pod, and `shim.py` stands over each process so that nothing of it is left behind.
"""

from trainjob.cluster.local.cluster import LocalCluster
from trainjob.cluster.local.launch import Launch, build_launch
from trainjob.cluster.local.machine import CannotRunHere, LocalOptions, Machine, is_taken, survey
from trainjob.cluster.local.process import replica_log_path

__all__ = [
    "CannotRunHere",
    "Launch",
    "LocalCluster",
    "LocalOptions",
    "Machine",
    "build_launch",
    "is_taken",
    "replica_log_path",
    "survey",
]
