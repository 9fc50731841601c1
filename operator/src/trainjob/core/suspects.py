"""Nodes on which a worker's weights have come apart from the others'; the same one twice is suspect.

By far the most likely cause is a faulty memory or device. Who it was, the workers say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainjob.core.failure import Failure
from trainjob.core.gang import read_seat
from trainjob.core.names import Replica
from trainjob.core.observed import Observed

REASON = "WeightsDiverged"

MOST = 16
"""Nodes that the status keeps, the latest ones."""

_WHOSE = re.compile(r"((?:(?:chief|worker)-\d+'s(?:, | and )?)+)(?:\d+ more workers')? ?weights")
_NAME = re.compile(r"(?:chief|worker)-\d+")


def named_replicas(text: str) -> list[Replica]:
    """Return whose weights they are, as docs/contract.md has the sentence: one, or several of whom one is."""
    whose = _WHOSE.search(text)
    seats = (read_seat(name) for name in _NAME.findall(whose[1])) if whose else ()
    return [seat for seat in seats if seat is not None]


def named_nodes(observed: Observed, failure: Failure) -> dict[Replica, str]:
    """Return where those run whose weights have come apart, as far as that is known."""
    if failure.reason != REASON:
        return {}
    nodes = {pod.replica: pod.node for pod in observed.training_pods}
    named = named_replicas(failure.cause.text) or [failure.replica]
    return {replica: nodes[replica] for replica in named if nodes.get(replica)}


def nodes_to_keep(observed: Observed, failure: Failure) -> tuple[str, ...]:
    """Return what the status is to remember after this failure."""
    known = observed.status.restarts.diverged_nodes
    return tuple(dict.fromkeys((*known, *named_nodes(observed, failure).values())))[-MOST:]


def describe_suspects(observed: Observed, failure: Failure) -> str:
    """Return what follows the failure's sentence: where the others are that it names, and who is suspect."""
    nodes = named_nodes(observed, failure)
    clauses = [f"{who.title} is on node {node}" for who, node in nodes.items() if who != failure.replica]
    return "".join(f"; {clause}" for clause in [*clauses, *_suspicion(nodes, observed)])


def _suspicion(nodes: Mapping[Replica, str], observed: Observed) -> list[str]:
    known = observed.status.restarts.diverged_nodes
    again = [node for node in dict.fromkeys(nodes.values()) if node in known]
    if not again:
        return []
    if len(again) == 1:
        return [f"node {again[0]} has had this before: it is suspect, cordon it"]
    return [f"nodes {', '.join(again[:-1])} and {again[-1]} have had this before: one of them is suspect"]
