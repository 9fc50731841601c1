"""Every bad job that there is a table for, and what a real API server says of it."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from testbed import Cluster

from support.kube.verdicts import Verdict, judge_creations
from support.world.changes import change_job, errors_of
from support.world.mutations import mutations
from support.world.wrong_jobs import BROKEN
from trainjob.codegen.crd import RULES

Manifest = dict[str, Any]

OF_CREATION = [rule for rule in RULES if not rule.is_about_changes]


@dataclass(frozen=True)
class Asked:
    name: str
    raw: Manifest
    verdict: Verdict

    @property
    def told(self) -> list[tuple[str, str]]:
        """What `trainjob validate` says, as field and sentence."""
        return [(field, said) for field, many in errors_of(self.raw).items() for said in many]

    @property
    def rules_broken(self) -> list[tuple[str, str]]:
        """What the API server says by rules of ours."""
        return [(field, said) for field, said in self.verdict.causes if _is_ours(said)]


def _is_ours(said: str) -> bool:
    # The rule about a name's length makes its sentence from the job.
    return any(said == rule.message.removeprefix("metadata.name: ") for rule in OF_CREATION) or bool(
        re.fullmatch(r"must have at most \d+ characters, so that the names of its pods fit in 63", said)
    )


@cache
def ask_of_all(cluster: Cluster) -> list[Asked]:
    """Ask of every job that breaks one rule, and of every damaged one; the CRD must be there."""
    broken = [(json.dumps(changes, default=str), change_job(changes)) for changes, _, _ in BROKEN]
    named = [*broken, *mutations()]
    verdicts = asyncio.run(judge_creations(cluster, [raw for _, raw in named]))
    return [Asked(name, raw, verdict) for (name, raw), verdict in zip(named, verdicts, strict=True)]
