"""Pods as processes of this machine: what `trainjob run` needs instead of a cluster.

`LocalCluster` keeps the protocol of every cluster for one TrainJob. `survey` looks at the machine,
`build_launch` translates a pod, and `shim.py` stands over each process so that nothing of it is left behind.
"""

from trainjob.cluster.local.cluster import LocalCluster
from trainjob.cluster.local.launch import Launch, build_launch
from trainjob.cluster.local.machine import LocalOptions, survey
from trainjob.cluster.local.output_folder import is_taken
from trainjob.cluster.local.place import Place
from trainjob.cluster.local.refusal import CannotRunHere
from trainjob.cluster.local.replica_log import replica_log_path

__all__ = [
    "CannotRunHere",
    "Launch",
    "LocalCluster",
    "LocalOptions",
    "Place",
    "build_launch",
    "is_taken",
    "replica_log_path",
    "survey",
]
