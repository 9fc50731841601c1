"""How long a job's name may be, so that the names of all its pods fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainjob.api.fields import as_whole_number
from trainjob.api.paths import mapping_at
from trainjob.api.spec import TrainJobSpec

LONGEST_LABEL = 63
"""The longest host name, DNS label and label value (RFC 1123, and Kubernetes after it)."""

HASH_DIGITS = 8
"""A pod's name is its host name, a dash, and this many hex digits."""

LARGEST_ROLE = 1000


@dataclass(frozen=True)
class RoleCounts:
    """How many replicas each role of a job has."""

    worker: int
    chief: int = 0
    ps: int = 0
    evaluator: int = 1

    @property
    def training(self) -> int:
        """How many replicas train: all but the evaluator."""
        return self.worker + self.chief + self.ps

    @property
    def is_single(self) -> bool:
        """Whether the whole job is one pod."""
        return self.worker + self.chief + self.ps + self.evaluator == 1

    def longest_suffix(self) -> str:
        """Return the longest thing that a replica's host name adds to the job's name."""
        return max(self._last_suffixes(), key=len, default="")

    def _last_suffixes(self) -> Iterator[str]:
        # The first of equally long ones is named in messages: the evaluator's, since it is easily forgotten.
        for role in ("evaluator", "worker", "chief", "ps"):
            if count := getattr(self, role):
                yield f"-{role}-{count - 1}"


def count_roles(spec: TrainJobSpec) -> RoleCounts:
    """Count the replicas of each role."""
    return RoleCounts(
        worker=spec.worker.replicas,
        chief=spec.chief.replicas if spec.chief else 0,
        ps=spec.ps.replicas if spec.ps else 0,
        evaluator=spec.evaluator.replicas,
    )


def count_raw_roles(raw: Mapping[str, Any]) -> RoleCounts | None:
    """Count the replicas of each role in plain JSON, or return None where a count isn't one."""
    spec = mapping_at(raw, "spec")
    counts: dict[str, int] = {}
    for role, when_absent in (("worker", 1), ("chief", 0), ("ps", 0), ("evaluator", 1)):
        if role not in spec:
            counts[role] = when_absent
            continue
        count = as_whole_number(mapping_at(spec, role).get("replicas", 1))
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= LARGEST_ROLE:
            return None
        counts[role] = count
    return RoleCounts(**counts)


def room_for_name(counts: RoleCounts) -> int:
    """Return how many characters the job's name may have."""
    return LONGEST_LABEL - len(counts.longest_suffix()) - 1 - HASH_DIGITS


def longest_name(spec: TrainJobSpec) -> int:
    """Return how many characters `metadata.name` may have with this spec.

    The longest name made from it is a pod's: `<name>-<role>-<index>-<8 hex digits>`.
    """
    return room_for_name(count_roles(spec))
