"""Pods as processes of this machine: `trainjob run` uses them instead of a cluster.

`LocalCluster` implements the cluster protocol for one TrainJob. `survey` inspects the machine, `build_launch`
translates a pod, and `shim.py` supervises each process so that no descendant is left behind.
"""

from trainjob.cluster.local.cluster import LocalCluster
from trainjob.cluster.local.launch import Launch, build_launch
from trainjob.cluster.local.machine import CannotRunHere, LocalOptions, Machine, survey
from trainjob.cluster.local.output import (
    add_folder,
    bring_back,
    folders_of,
    has_content,
    has_saved,
    is_taken,
    remove_folder,
    set_aside,
)
from trainjob.cluster.local.process import replica_log_path
from trainjob.cluster.local.sandbox import PrivateFolder, remove_stale

__all__ = [
    "CannotRunHere",
    "Launch",
    "LocalCluster",
    "LocalOptions",
    "Machine",
    "PrivateFolder",
    "add_folder",
    "bring_back",
    "build_launch",
    "folders_of",
    "has_content",
    "has_saved",
    "is_taken",
    "remove_folder",
    "remove_stale",
    "replica_log_path",
    "set_aside",
    "survey",
]
