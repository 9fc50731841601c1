"""How much more two workers do than one, each with a processor of its own and as many examples a step.

    python benchmarks/scaling.py [--rounds N] [CONTESTANT ...]

Weak scaling of a CNN that computes much more than it sends. What the machine itself allows is shown by two
trainings at once that know nothing of each other. Progress goes to stderr, one line of JSON to stdout;
docs/benchmarks.md explains it.
"""

from __future__ import annotations

import sys

# This folder comes first on the path, and operator.py in it has the name of a standard library's module.
sys.path.append(sys.path.pop(0))

import argparse
import json
import os
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from workers import told_by_the_first

SCRIPT = Path(__file__).parent / "jobs" / "steps.py"
EXAMPLES_A_WORKER = 64
CONTESTANTS = ("hand", "library", "fit")
WAYS = ("one", "two", "apart")


def measure(contestant: str, way: str) -> float:
    """Return examples a second: of one worker, of two of one training, or of two trainings of one worker."""
    if way == "apart":
        with ThreadPoolExecutor(2) as threads:
            return sum(threads.map(lambda core: train(contestant, [core]), (0, 1)))
    return train(contestant, [0] if way == "one" else [0, 1])


def train(contestant: str, cores: list[int]) -> float:
    """Return examples a second of one training, whose workers have a processor each."""
    batch = EXAMPLES_A_WORKER * len(cores)
    command = [str(SCRIPT), contestant, "large", "0", "0", str(batch)]
    told = told_by_the_first(command, len(cores), "step_ms", with_us=contestant != "hand", cores=cores)
    return batch / float(told["step_ms"]) * 1000


def run_all(options: argparse.Namespace) -> dict[str, Any]:
    """Let all take their turns; return what goes to stdout."""
    speeds: dict[tuple[str, str], list[float]] = {}
    for number in range(options.rounds):
        for contestant in options.contestants or CONTESTANTS:
            for way in WAYS:
                speed = measure(contestant, way)
                speeds.setdefault((contestant, way), []).append(speed)
                turn = f"{number + 1} of {options.rounds}: {contestant}, {way}"
                print(f"benchmark: {turn}: {speed:.1f} examples/s", file=sys.stderr, flush=True)
    middle = {key: statistics.median(found) for key, found in speeds.items()}
    names = list(dict.fromkeys(name for name, _ in speeds))
    return {
        "benchmark": "scaling",
        "cores": os.cpu_count(),
        "examples_per_second": {f"{name}_{way}": round(speed, 1) for (name, way), speed in middle.items()},
        "two_by_one": {name: round(middle[name, "two"] / middle[name, "one"], 2) for name in names},
        "two_by_apart": {name: round(middle[name, "two"] / middle[name, "apart"], 2) for name in names},
    }


def read_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("contestants", nargs="*", choices=[*CONTESTANTS, []], metavar="CONTESTANT")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    return parser.parse_args()


if __name__ == "__main__":
    print(json.dumps(run_all(read_options())))
