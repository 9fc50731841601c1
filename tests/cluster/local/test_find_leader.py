"""Which of a job's agents is the one to be asked."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from trainjob.cluster.local.leading_agent import find_leader


@dataclass
class _Launch:
    has_agent: bool = True


@dataclass
class _Pod:
    name: str
    role: str = "worker"
    index: int = 0
    incarnation: int = 1
    live: bool = True
    is_running: bool = True
    launch: _Launch = field(default_factory=_Launch)

    @property
    def manifest(self) -> dict[str, Any]:
        labels = {"role": self.role, "index": str(self.index), "incarnation": str(self.incarnation)}
        if self.live:
            labels["live"] = "true"
        return {"metadata": {"labels": {f"trainjob.dev/{key}": value for key, value in labels.items()}}}


@pytest.mark.parametrize(
    ("world", "pods", "expected"),
    [
        ({"worker": 2}, [], None),
        ({"worker": 2}, [_Pod("b", index=1), _Pod("e", role="evaluator"), _Pod("a")], "a"),
        ({"worker": 2}, [_Pod("b", index=1)], None),
        ({"chief": 1, "worker": 2}, [_Pod("a"), _Pod("c", role="chief")], "c"),
        ({"chief": 1, "worker": 2}, [_Pod("a")], None),
        ({"worker": 2}, [_Pod("a", is_running=False)], None),
        ({"worker": 2}, [_Pod("a", live=False)], None),
        ({"worker": 2}, [_Pod("a", launch=_Launch(has_agent=False))], None),
        ({"worker": 2}, [_Pod("a2", incarnation=2), _Pod("a10", incarnation=10), _Pod("a")], "a10"),
        # Its successor is on its way: nobody else leads any more.
        ({"worker": 2}, [_Pod("a"), _Pod("a2", incarnation=2, is_running=False)], None),
        ({"worker": 2}, [_Pod("a"), _Pod("a2", incarnation=2, live=False)], "a"),
        ({}, [_Pod("a")], "a"),
    ],
)
def test_the_leader(world: dict[str, int], pods: list[Any], expected: str | None) -> None:
    found = find_leader(pods, world)
    assert (found.name if found else None) == expected
