"""What checkpoints hold, for comparisons between runs."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from trainjob_trainer.checkpoint.store import CheckpointStore


def final_variables(output: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Every variable of the final checkpoint, by group and name."""
    store = CheckpointStore(output / "checkpoints")
    final = store.final()
    assert final is not None, f"no final marker in {output}"
    groups = store.read(store.checked(final.step))
    return {f"{group}/{array.name}": array.value for group, arrays in groups.items() for array in arrays}


def newest_step(output: Path) -> int:
    """Of an output folder's newest checkpoint; there must be one."""
    found = CheckpointStore(output / "checkpoints").latest()
    assert found is not None, f"no checkpoint in {output}"
    return found.step


def largest_difference(one: Path, other: Path, groups: Collection[str] = ()) -> float:
    """Between the final checkpoints of two output folders, over all variables, or those of these groups."""

    def compared(output: Path) -> dict[str, np.ndarray[Any, Any]]:
        found = final_variables(output)
        return {name: value for name, value in found.items() if not groups or name.split("/")[0] in groups}

    ours, theirs = compared(one), compared(other)
    assert ours.keys() == theirs.keys() != set()
    return max(
        float(np.max(np.abs(ours[name].astype("float64") - theirs[name].astype("float64")), initial=0.0))
        for name in ours
    )
