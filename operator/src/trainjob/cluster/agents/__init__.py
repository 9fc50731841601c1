"""The agents inside the pods, as the controller meets them: what they are given, and how they are asked.

The protocol is written down in `docs/contract.md`; the other side of it is the trainer's.
"""

from trainjob.cluster.agents.bundle import (
    BundleMissing,
    build_bundle,
    find_package,
    lay_out,
    preview_source,
)
from trainjob.cluster.agents.protocol import AgentError, AgentRefused, AgentUnreachable, largest_report, sync
from trainjob.cluster.agents.record import GangRecord, Report

__all__ = [
    "AgentError",
    "AgentRefused",
    "AgentUnreachable",
    "BundleMissing",
    "GangRecord",
    "Report",
    "build_bundle",
    "find_package",
    "largest_report",
    "lay_out",
    "preview_source",
    "sync",
]
