"""The controller's side of the agents in the pods: their bundle, the protocol, and their reports.

`docs/contract.md` describes the protocol; the trainer implements the other side.
"""

from trainjob.cluster.agents.bundle import (
    build_bundle,
    lay_out,
    preview_source,
)
from trainjob.cluster.agents.record import AgentRecord, Report
from trainjob.cluster.agents.wire import AgentError, AgentRefused, AgentUnreachable, sync

__all__ = [
    "AgentError",
    "AgentRecord",
    "AgentRefused",
    "AgentUnreachable",
    "Report",
    "build_bundle",
    "lay_out",
    "preview_source",
    "sync",
]
