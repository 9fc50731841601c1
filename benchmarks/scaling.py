"""How much more two workers do than one, each with a processor of its own and as many examples a step.

    python benchmarks/scaling.py [--rounds N] [CONTESTANT ...]

Weak scaling of a CNN that computes much more than it sends. Progress goes to stderr, one line of JSON to
stdout; docs/benchmarks.md explains it.
"""

from __future__ import annotations

import sys

# This folder comes first on the path, and operator.py in it has the name of a standard library's module.
sys.path.append(sys.path.pop(0))

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

from workers import told_by_the_first

SCRIPT = Path(__file__).parent / "jobs" / "steps.py"
EXAMPLES_A_WORKER = 64
WORKERS = (1, 2)
CONTESTANTS = ("hand", "library", "fit")


def measure(contestant: str, workers: int) -> float:
    """Return examples a second of one training."""
    batch = EXAMPLES_A_WORKER * workers
    command = [str(SCRIPT), contestant, "large", "0", "0", str(batch)]
    told = told_by_the_first(command, workers, "step_ms", with_us=contestant != "hand", one_core_each=True)
    return batch / float(told["step_ms"]) * 1000


def run_all(options: argparse.Namespace) -> dict[str, Any]:
    """Let all take their turns; return what goes to stdout."""
    speeds: dict[tuple[str, int], list[float]] = {}
    for number in range(options.rounds):
        for contestant in options.contestants or CONTESTANTS:
            for workers in WORKERS:
                speed = measure(contestant, workers)
                speeds.setdefault((contestant, workers), []).append(speed)
                turn = f"{number + 1} of {options.rounds}: {contestant}, {workers} workers"
                print(f"benchmark: {turn}: {speed:.1f} examples/s", file=sys.stderr, flush=True)
    middle = {key: statistics.median(found) for key, found in speeds.items()}
    names = dict.fromkeys(name for name, _ in speeds)
    return {
        "benchmark": "scaling",
        "cores": os.cpu_count(),
        "examples_per_second": {
            f"{name}_{workers}": round(middle[name, workers], 1) for name, workers in middle
        },
        "two_by_one": {name: round(middle[name, 2] / middle[name, 1], 2) for name in names},
    }


def read_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("contestants", nargs="*", choices=[*CONTESTANTS, []], metavar="CONTESTANT")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    return parser.parse_args()


if __name__ == "__main__":
    print(json.dumps(run_all(read_options())))
