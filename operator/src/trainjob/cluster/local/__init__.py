"""Pods as processes of this machine: `trainjob run` uses them instead of a cluster.

`LocalCluster` implements the cluster protocol for one TrainJob. `survey` inspects the machine, `launch.py`
translates a pod, and `shim.py` supervises each process so that no descendant is left behind.
"""

from trainjob.cluster.local.cluster import LocalCluster
from trainjob.cluster.local.machine import CannotRunHere, LocalOptions, Network, survey
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
from trainjob.cluster.local.sandbox import PrivateFolder, remove_stale

__all__ = [
    "CannotRunHere",
    "LocalCluster",
    "LocalOptions",
    "Network",
    "PrivateFolder",
    "add_folder",
    "bring_back",
    "folders_of",
    "has_content",
    "has_saved",
    "is_taken",
    "remove_folder",
    "remove_stale",
    "set_aside",
    "survey",
]
