"""How long a training step takes: the library, `model.fit` and what people use otherwise, in one run.

    python benchmarks/step_time.py [--workers N] [--model MODEL] [--rounds N] [CONTESTANT ...]

The contestants take turns, so that what else the machine does hits all alike. Each turn is a training of its
own by new processes on loopback. Progress goes to stderr, one line of JSON to stdout; docs/benchmarks.md
explains it.
"""

from __future__ import annotations

import sys

# This folder comes first on the path, and operator.py in it has the name of a standard library's module.
sys.path.append(sys.path.pop(0))

import argparse
import importlib.util
import json
import os
import statistics
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from workers import told_by_the_first

SCRIPT = Path(__file__).parent / "jobs" / "steps.py"
SHORT_EPOCH = 28
MODELS = ("small", "own_step", "embedding", "large", "huge")


@dataclass(frozen=True)
class Contestant:
    """Somebody who trains.

    Attributes:
        way: what `jobs/steps.py` is asked for.
        epoch_steps: steps an epoch; 0 for data without end.
        checkpoint_every: steps; 0 for no checkpoint but the last.
        needs: a package beyond the project's own.
    """

    way: str
    epoch_steps: int = 0
    checkpoint_every: int = 0
    needs: str = ""


CONTESTANTS = {
    "hand": Contestant("hand"),
    "hand_20": Contestant("hand_20"),
    "hand_epochs": Contestant("hand_20", epoch_steps=SHORT_EPOCH),
    "library": Contestant("library"),
    "library_checkpoints": Contestant("library", checkpoint_every=100),
    "library_epochs": Contestant("library", epoch_steps=SHORT_EPOCH),
    "fit": Contestant("fit"),
    "fit_epochs": Contestant("fit", epoch_steps=SHORT_EPOCH),
    "fit_each_batch": Contestant("fit_each_batch"),
    "tf_keras": Contestant("tf_keras", needs="tf_keras"),
    "tf_keras_20": Contestant("tf_keras_20", needs="tf_keras"),
    "tf_keras_epochs": Contestant("tf_keras_20", epoch_steps=SHORT_EPOCH, needs="tf_keras"),
}
BEST = "hand_20"


def measure(contestant: Contestant, model: str, workers: int) -> dict[str, float]:
    """Return the milliseconds of a step of one training, and of comparing the weights where it did often."""
    arguments = [contestant.way, model, str(contestant.epoch_steps), str(contestant.checkpoint_every)]
    with_us = contestant.way == "library" or contestant.way.startswith("fit")
    return told_by_the_first([str(SCRIPT), *arguments], workers, "step_ms", with_us=with_us)


def run_all(options: argparse.Namespace) -> dict[str, Any]:
    """Let all take their turns; return what goes to stdout."""
    present = {name: CONTESTANTS[name] for name in options.contestants or CONTESTANTS}
    absent = [name for name, one in present.items() if one.needs and not importlib.util.find_spec(one.needs)]
    for name in absent:
        print(f"benchmark: {name} is left out: {present.pop(name).needs} is not installed", file=sys.stderr)
    took: dict[str, list[float]] = {name: [] for name in present}
    compared: dict[str, list[float]] = {}
    for number in range(options.rounds):
        for name, contestant in present.items():
            found = measure(contestant, options.model, options.workers)
            took[name].append(found["step_ms"])
            if "compare_ms" in found:
                compared.setdefault(name, []).append(found["compare_ms"])
            print(
                f"benchmark: {number + 1} of {options.rounds}: {name}: {took[name][-1]} ms",
                file=sys.stderr,
                flush=True,
            )
    middle = {name: round(statistics.median(times), 2) for name, times in took.items()}
    comparing = {name: round(statistics.median(times), 2) for name, times in compared.items()}
    best = middle.get(BEST)
    return {
        "benchmark": "step_time",
        "model": options.model,
        "workers": options.workers,
        "cores": os.cpu_count(),
        "step_ms": middle,
        "spread_ms": {name: [min(times), max(times)] for name, times in took.items()},
        **({"compare_ms": comparing} if comparing else {}),
        # So many steps between two checkpoints, and comparing takes a hundredth of the time.
        **(
            {"compare_steps": {n: ceil(100 * ms / middle[n]) for n, ms in comparing.items()}}
            if comparing
            else {}
        ),
        **({"by_best": {name: round(time / best, 2) for name, time in middle.items()}} if best else {}),
    }


def read_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("contestants", nargs="*", choices=[*CONTESTANTS, []], metavar="CONTESTANT")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument(
        "--model", choices=("small", "own_step", "embedding", "large", "huge"), default="small"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    return parser.parse_args()


if __name__ == "__main__":
    print(json.dumps(run_all(read_options())))
