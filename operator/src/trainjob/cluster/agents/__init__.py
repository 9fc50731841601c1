"""The controller's side of the agents in the pods: their bundle, the protocol, and their reports.

`docs/contract.md` describes the protocol; the trainer implements the other side.
"""

from trainjob.cluster.agents.bundle import (
    BundleMissing,
    build_bundle,
    find_package,
    lay_out,
    preview_source,
)
from trainjob.cluster.agents.record import AgentRecord, Report
from trainjob.cluster.agents.wire import AgentError, AgentRefused, AgentUnreachable, largest_report, sync

__all__ = [
    "AgentError",
    "AgentRecord",
    "AgentRefused",
    "AgentUnreachable",
    "BundleMissing",
    "Report",
    "build_bundle",
    "find_package",
    "largest_report",
    "lay_out",
    "preview_source",
    "sync",
]
