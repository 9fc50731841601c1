"""How long a training step takes: the library, `model.fit` and what people use otherwise, in one run.

    python benchmarks/step_time.py [--workers N] [--model small|large] [--rounds N] [CONTESTANT ...]

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
import socket
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parent / "jobs" / "steps.py"
GUARD_SECONDS = 600
SHORT_EPOCH = 28


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


def measure(contestant: Contestant, model: str, workers: int) -> float:
    """Return the milliseconds of a step of one training."""
    with tempfile.TemporaryDirectory(prefix="trainjob-steps-") as folder:
        addresses = free_addresses(workers)
        command = [
            sys.executable,
            str(SCRIPT),
            contestant.way,
            model,
            str(contestant.epoch_steps),
            str(contestant.checkpoint_every),
        ]
        log = (Path(folder) / "log").open("w+b")
        processes = [
            subprocess.Popen(
                command,
                env=environment(contestant, addresses, index, Path(folder)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
            for index in range(workers)
        ]
        try:
            told = processes[0].communicate(timeout=GUARD_SECONDS)[0]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        lines = [line for line in told.decode().splitlines() if line.startswith('{"step_ms"')]
        if not lines:
            log.seek(0)
            raise SystemExit(f"{contestant.way} told nothing\n{log.read()[-4000:].decode(errors='replace')}")
        return float(json.loads(lines[-1])["step_ms"])


def free_addresses(count: int) -> list[str]:
    """Return so many of loopback that nobody listens on."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    for listener in listeners:
        listener.close()
    return addresses


def environment(contestant: Contestant, addresses: Sequence[str], index: int, folder: Path) -> dict[str, str]:
    """Return what a container of the worker would have; what is not ours gets TF_CONFIG alone."""
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    env = {
        **os.environ,
        "TF_CONFIG": json.dumps(config),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    if contestant.way == "library" or contestant.way.startswith("fit"):
        bootstrap = importlib.util.find_spec("trainjob_trainer")
        if bootstrap is None or bootstrap.origin is None:
            raise SystemExit("trainjob_trainer is not installed here")
        env |= {
            "PYTHONPATH": str(Path(bootstrap.origin).parent / "bootstrap"),
            "TRAINJOB_NAME": "steps",
            "TRAINJOB_OUTPUT_DIR": str(folder / "output"),
            "TRAINJOB_PROGRESS_FILE": str(folder / f"progress-{index}.json"),
        }
    return env


def run_all(options: argparse.Namespace) -> dict[str, Any]:
    """Let all take their turns; return what goes to stdout."""
    present = {name: CONTESTANTS[name] for name in options.contestants or CONTESTANTS}
    absent = [name for name, one in present.items() if one.needs and not importlib.util.find_spec(one.needs)]
    for name in absent:
        print(f"benchmark: {name} is left out: {present.pop(name).needs} is not installed", file=sys.stderr)
    took: dict[str, list[float]] = {name: [] for name in present}
    for number in range(options.rounds):
        for name, contestant in present.items():
            took[name].append(measure(contestant, options.model, options.workers))
            print(
                f"benchmark: {number + 1} of {options.rounds}: {name}: {took[name][-1]} ms",
                file=sys.stderr,
                flush=True,
            )
    middle = {name: round(statistics.median(times), 2) for name, times in took.items()}
    best = middle.get(BEST)
    return {
        "benchmark": "step_time",
        "model": options.model,
        "workers": options.workers,
        "cores": os.cpu_count(),
        "step_ms": middle,
        "spread_ms": {name: [min(times), max(times)] for name, times in took.items()},
        **({"by_best": {name: round(time / best, 2) for name, time in middle.items()}} if best else {}),
    }


def read_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("contestants", nargs="*", choices=[*CONTESTANTS, []], metavar="CONTESTANT")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--model", choices=("small", "large"), default="small")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    return parser.parse_args()


if __name__ == "__main__":
    print(json.dumps(run_all(read_options())))
