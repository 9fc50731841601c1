"""Whether one, two and four workers end with the same weights, and what makes them differ.

    python benchmarks/same_weights.py [MODEL ...]

Each model is trained by `train_and_evaluate` on the same data, with the same global batch and the same steps.
Progress goes to stderr, one line of JSON to stdout; docs/train-and-evaluate.md has its result.
"""

from __future__ import annotations

import sys

# This folder comes first on the path, and operator.py in it has the name of a standard library's module.
sys.path.append(sys.path.pop(0))

import argparse
import json
from pathlib import Path
from typing import Any

from workers import told_by_the_first

SCRIPT = Path(__file__).parent / "jobs" / "weights.py"
WORKERS = (1, 2, 4)
MODELS = ("plain", "norm_synchronized", "norm", "dropout")


def weights(model: str, workers: int) -> list[list[float]]:
    """Return each final variable as a flat list."""
    told: list[list[float]] = told_by_the_first([str(SCRIPT), model], workers, "weights")["weights"]
    return told


def largest_difference(one: list[list[float]], other: list[list[float]]) -> float:
    """Return that of any two numbers at the same place."""
    pairs = zip(one, other, strict=True)
    return max(abs(a - b) for first, second in pairs for a, b in zip(first, second, strict=True))


def run_all(models: list[str]) -> dict[str, Any]:
    """Train all of them; return what goes to stdout."""
    found: dict[str, dict[str, float]] = {}
    for model in models:
        alone = weights(model, WORKERS[0])
        found[model] = {
            str(workers): float(f"{largest_difference(alone, weights(model, workers)):.1e}")
            for workers in WORKERS[1:]
        }
        print(f"benchmark: {model}: {found[model]}", file=sys.stderr, flush=True)
    return {"benchmark": "same_weights", "largest_difference_from_one_worker": found}


def read_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], metavar="MODEL")
    return parser.parse_args()


if __name__ == "__main__":
    print(json.dumps(run_all(read_options().models or list(MODELS))))
