"""How long a worker takes from its process's start to its first step, and from its last step to its end.

    python benchmarks/startup.py [--workers N] [--variables N] [--rounds N]

Progress goes to stderr, one line of JSON to stdout; docs/benchmarks.md explains it.
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

SCRIPT = Path(__file__).parent / "jobs" / "startup.py"
WAYS = ("library", "hand")
KEYS = ("import_seconds", "to_first_step_seconds", "end_seconds")


def run_all(options: argparse.Namespace) -> dict[str, Any]:
    """Let both take their turns; return what goes to stdout."""
    told: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for number in range(options.rounds):
        for way in WAYS:
            command = [str(SCRIPT), way, str(options.variables)]
            one = told_by_the_first(
                command, options.workers, KEYS[0], with_us=way == "library", wait_for_all=True
            )
            told[way].append(one | {"end_seconds": round(one.pop("ended_at") - one.pop("last_step_at"), 2)})
            turn = f"{number + 1} of {options.rounds}: {way}: {told[way][-1]}"
            print(f"benchmark: {turn}", file=sys.stderr, flush=True)
    return {
        "benchmark": "startup",
        "workers": options.workers,
        "variables": options.variables,
        "cores": os.cpu_count(),
        **{
            key: {way: round(statistics.median(one[key] for one in told[way]), 2) for way in WAYS}
            for key in KEYS
        },
        "rounds": told,
    }


def read_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--variables", type=int, default=100, metavar="N")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    return parser.parse_args()


if __name__ == "__main__":
    print(json.dumps(run_all(read_options())))
