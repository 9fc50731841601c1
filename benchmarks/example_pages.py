"""Whether scripts like those of Keras's example pages end in a job as they end in one process.

    python benchmarks/example_pages.py [PAGE ...]

Each script of `pages/` is run by one process, without its strategy, and unchanged as a TrainJob of two
workers and an evaluator by `trainjob run`; one with random layers is run a second time with those switched
off. Progress goes to stderr, one line of JSON to stdout; docs/benchmarks.md explains it.
"""

from __future__ import annotations

import sys

# This folder comes first on the path, and operator.py in it has the name of a standard library's module.
sys.path.append(sys.path.pop(0))

import argparse
import csv
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from trainjob.api import API_VERSION, KIND

TRAINJOB = Path(sys.executable).parent / "trainjob"
FOLDER = Path(__file__).resolve().parent / "pages"
SETTINGS = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
STRATEGY = "tf.distribute.MultiWorkerMirroredStrategy()"
JOB = "page"
CLAIM = "training"
GUARD_SECONDS = 500
"""For one run; only a hang reaches it."""


@dataclass(frozen=True)
class Page:
    """A script.

    Attributes:
        without: arguments that switch its random layers off; none if it has none.
        best_by: the figure whose least value says which epoch's weights it ends with; the last one's without.
    """

    without: tuple[str, ...] = ()
    best_by: str = ""


PAGES = {
    "simple_convnet": Page(without=("--dropout", "0")),
    "variational_autoencoder": Page(without=("--noise", "0")),
    "text_transformer": Page(without=("--dropout", "0")),
    "weather_forecast": Page(best_by="val_loss"),
    "structured_data": Page(without=("--dropout", "0")),
}


@dataclass(frozen=True)
class Outcome:
    """What a run has left.

    Attributes:
        seconds: of the whole run, imports included.
        history: one mapping for each epoch, as CSVLogger writes it.
        weights: by file and name, without the optimizer's.
        evaluation: the evaluator's last figures.
    """

    seconds: float
    history: Sequence[Mapping[str, float]]
    weights: Mapping[str, np.ndarray]
    evaluation: Mapping[str, float]


def run_alone(script: Path, arguments: Sequence[str], folder: Path) -> Outcome:
    """Run it as one process that has nothing of ours.

    Without a strategy: under one Keras reads a batch before it trains, so that a `shuffle()` is a step ahead.
    """
    plain = folder / script.name
    plain.write_text(script.read_text().replace(STRATEGY, "tf.distribute.get_strategy()"))
    command = [sys.executable, str(plain), str(folder / "output"), *arguments]
    return read_outcome(folder / "output", run(command, folder / "log"))


def run_as_job(script: Path, arguments: Sequence[str], folder: Path) -> Outcome:
    """Run it by two workers and an evaluator."""
    container = {
        "name": "trainer",
        "image": "example.com/none:1",
        "command": ["python", str(script), "$(TRAINJOB_OUTPUT_DIR)", *arguments],
    }
    job = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": JOB},
        "spec": {
            "worker": {"replicas": 2},
            "evaluator": {"replicas": 1},
            "output": {"claim": {"claimName": CLAIM}},
            "template": {"spec": {"containers": [container]}},
        },
    }
    file = folder / "job.json"
    file.write_text(json.dumps(job))
    command = [str(TRAINJOB), "run", str(file), "--folder", str(folder), "--plain"]
    seconds = run(command, folder / "log")
    return read_outcome(folder / CLAIM / JOB, seconds)


def run(command: Sequence[str], log: Path) -> float:
    """Run a command to its end; return the seconds that it took."""
    begin = time.perf_counter()
    with log.open("wb") as output:
        ended = subprocess.run(
            command,
            env={**os.environ, **SETTINGS},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=GUARD_SECONDS,
            check=False,
        )
    if ended.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-60:])
        raise SystemExit(f"{command} ended with exit code {ended.returncode}\n{tail}")
    return round(time.perf_counter() - begin, 1)


def read_outcome(output: Path, seconds: float) -> Outcome:
    """Return what is in the folder that the script has written to."""
    with (output / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    weights: dict[str, np.ndarray] = {}
    for path in sorted(output.glob("*.weights.h5")):
        with h5py.File(path) as file:
            file.visititems(lambda name, item, path=path: take_weights(weights, f"{path.name}/{name}", item))
    results = output / "evaluator" / "evaluations.jsonl"
    scored = results.read_text().splitlines() if results.exists() else []
    return Outcome(
        seconds,
        [{name: float(value) for name, value in row.items() if value != "NA"} for row in rows],
        weights,
        json.loads(scored[-1])["metrics"] if scored else {},
    )


def take_weights(weights: dict[str, np.ndarray], name: str, item: Any) -> None:
    """Add a variable of a layer."""
    if isinstance(item, h5py.Dataset) and "/optimizer/" not in name and "seed_generator" not in name:
        weights[name] = item[()]


def compare(alone: Outcome, job: Outcome, best_by: str) -> dict[str, Any]:
    """Return the largest relative differences, and the seconds of both.

    Of a figure it is relative to the one process's; of a weight, to the largest of its variable.
    """
    figures = [
        (row[name], other[name])
        for row, other in zip(alone.history, job.history, strict=True)
        for name in sorted({*row, *other} - {"epoch"})
    ]
    if sorted(alone.weights) != sorted(job.weights):
        raise SystemExit(f"other weights: {sorted(alone.weights)} and {sorted(job.weights)}")
    found = {
        "epochs": len(alone.history),
        "history": max(relative(one, other) for one, other in figures),
        "weights": max(relative(value, job.weights[name]) for name, value in alone.weights.items()),
        "alone_seconds": alone.seconds,
        "job_seconds": job.seconds,
    }
    if job.evaluation:
        expected = evaluated(alone.history, best_by)
        found["evaluator"] = max(relative(expected[name], it) for name, it in job.evaluation.items())
    return found


def evaluated(history: Sequence[Mapping[str, float]], best_by: str) -> dict[str, float]:
    """Return the validation of the weights that the script ends with."""
    row = min(history, key=lambda one: one[best_by]) if best_by else history[-1]
    return {name.removeprefix("val_"): value for name, value in row.items() if name.startswith("val_")}


def relative(one: Any, other: Any) -> float:
    """Return the largest difference of two arrays or numbers, by the first one's largest value."""
    scale = float(np.max(np.abs(one))) or 1.0
    return float(f"{np.max(np.abs(np.subtract(one, other))) / scale:.1e}")


def measure(name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run a page both ways and compare."""
    script = FOLDER / f"{name}.py"
    with tempfile.TemporaryDirectory(prefix="trainjob-pages-") as folder:
        alone, job = Path(folder) / "alone", Path(folder) / "job"
        for one in (alone, job):
            one.mkdir()
        found = compare(
            run_alone(script, arguments, alone), run_as_job(script, arguments, job), PAGES[name].best_by
        )
    print(f"benchmark: {' '.join([name, *arguments])}: {found}", file=sys.stderr, flush=True)
    return found


def run_all(pages: Sequence[str]) -> dict[str, Any]:
    """Measure them; return what goes to stdout."""
    found = {}
    for name in pages:
        found[name] = {"as_written": measure(name, ())}
        if PAGES[name].without:
            found[name]["without_random_layers"] = measure(name, PAGES[name].without)
    return {"benchmark": "example_pages", "workers": 2, "cores": os.cpu_count(), "pages": found}


def read_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", choices=[*PAGES, []], metavar="PAGE")
    return parser.parse_args()


if __name__ == "__main__":
    print(json.dumps(run_all(read_options().pages or list(PAGES))))
