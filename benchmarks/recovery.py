"""How soon training goes on after a failure, on this machine: ten times in a row in one job.

    python benchmarks/recovery.py [--kind KIND] [--warm] [--rounds N] [--seed N]

One job of two workers trains a toy model; in each round, at a random moment, something of it is killed. Its
time ends when every worker has taken a new step. Beside it stands the bare import of TensorFlow and Keras on
the same machine, before and after. Progress goes to stderr, one line of JSON to stdout; docs/benchmarks.md
explains it.
"""

from __future__ import annotations

import sys

# This folder comes first on the path, and operator.py in it has the name of a standard library's module.
sys.path.append(sys.path.pop(0))

import argparse
import json
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from local_run import EVALUATOR, WORKERS, LocalRun, Toy, cpu_seconds, import_seconds, kill

KINDS = {
    "worker": "a training process, either one, is sent SIGKILL",
    "worker0": "worker 0's training process, which writes the checkpoints, is sent SIGKILL",
    "both": "both training processes are sent SIGKILL at once",
    "stop": "a training process is sent SIGSTOP: only the watchdog can tell",
    "agent": "an agent is sent SIGKILL, and with it goes its pod",
    "evaluator": "the evaluator's process is sent SIGKILL, which training must not notice",
}
STALL_SECONDS = 5
ENDLESS = 100_000_000
CHECKPOINT_EVERY = 50
SECONDS_AN_EXAMPLE = 0.001
_SETTLED_CPU_SECONDS = 0.02


class Rounds:
    """One run, and what is done to it."""

    def __init__(self, run: LocalRun, options: argparse.Namespace) -> None:
        self._run = run
        self._kind = options.kind
        self._warm = options.warm
        self._random = random.Random(options.seed)  # noqa: S311 - it chooses moments

    def begin(self) -> None:
        """Have everybody at work."""
        self._run.until_stepping(WORKERS, {})
        if self._kind == "evaluator":
            self._run.until("a first result", lambda: self._results() or None)
        self._settle()

    def measure(self) -> dict[str, Any]:
        """Return what one failure has cost."""
        time.sleep(self._random.uniform(0.0, 2.0))
        if self._kind == "evaluator":
            return self._measure_evaluator()
        before = {seat: self._run.pid(seat) for seat in WORKERS}
        begin = time.time()
        self._strike()
        stamps = self._run.until_stepping(WORKERS, before)
        reached = max(int(stamp.get("step", 0)) for stamp in self._seen.values())
        told = {
            "seconds": round(max(stamp["first_step"] for stamp in stamps) - begin, 2),
            "until_started": round(max(stamp["began"] for stamp in stamps) - begin, 2),
            "steps_lost": max(0, reached - stamps[0]["resumed"]),
        }
        self._settle()
        return told

    def _strike(self) -> None:
        seat = self._random.choice(WORKERS)
        victims: Mapping[str, list[int]] = {
            "worker": [self._run.pid(seat)],
            "worker0": [self._run.pid(WORKERS[0])],
            "both": [self._run.pid(one) for one in WORKERS],
            "stop": [self._run.pid(seat)],
            "agent": [self._run.agent(seat)],
        }
        if not all(victims[self._kind]):
            raise SystemExit(f"nobody to kill\n{self._run.tail()}")
        for pid in victims[self._kind]:
            kill(pid, signal.SIGSTOP if self._kind == "stop" else signal.SIGKILL)
        self._seen = {one: self._run.stamp(one) for one in WORKERS}

    def _measure_evaluator(self) -> dict[str, Any]:
        results, begin = self._results(), time.time()
        attempts = [self._run.stamp(seat)["attempt"] for seat in WORKERS]
        kill(self._run.pid(EVALUATOR))
        self._run.until("a new result", lambda: self._results() > results or None)
        same = attempts == [self._run.stamp(seat)["attempt"] for seat in WORKERS]
        return {"seconds": round(time.time() - begin, 2), "training_went_on": same, "steps_lost": 0}

    def _results(self) -> int:
        try:
            return len((self._run.output / "evaluator" / "evaluations.jsonl").read_bytes().splitlines())
        except FileNotFoundError:
            return 0

    def _settle(self) -> None:
        """Wait for a new checkpoint and, with --warm, for standbys that have imported everything."""
        target = max(int(self._run.stamp(seat).get("step", 0)) for seat in WORKERS) + CHECKPOINT_EVERY + 5
        self._run.until(
            "progress",
            lambda: all(int(self._run.stamp(s).get("step", 0)) >= target for s in WORKERS) or None,
        )
        if self._warm:
            self._run.until("two standbys that wait", self._standbys_wait)

    def _standbys_wait(self) -> bool | None:
        standbys = self._run.standbys()
        if len(standbys) < len(WORKERS):
            return None
        before = cpu_seconds(standbys)
        time.sleep(1.0)
        return (before > 1.0 and cpu_seconds(standbys) - before <= _SETTLED_CPU_SECONDS) or None


def run_all(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return what is measured."""
    spec: dict[str, Any] = {"maxRestarts": 10 * options.rounds}
    if options.warm:
        spec["warmStandby"] = True
    if options.kind == "stop":
        spec["stallTimeoutSeconds"] = STALL_SECONDS
    toy = Toy(
        ENDLESS,
        CHECKPOINT_EVERY,
        SECONDS_AN_EXAMPLE,
        is_full=False,
        evaluator=options.kind == "evaluator",
        spec=spec,
    )
    at_once = 1 if options.kind == "evaluator" else len(WORKERS)
    imports = [import_seconds(at_once), import_seconds(at_once)][1:]  # the first one fills the disk's cache
    measured = []
    with LocalRun(toy, folder) as run:
        rounds = Rounds(run, options)
        rounds.begin()
        for number in range(options.rounds):
            measured.append(rounds.measure())
            print(f"benchmark: {number + 1} of {options.rounds}: {measured[-1]}", file=sys.stderr, flush=True)
    imports.append(import_seconds(at_once))
    seconds = [one["seconds"] for one in measured]
    return {
        "benchmark": "recovery",
        "kind": options.kind,
        "warm": options.warm,
        "cores": os.cpu_count(),
        "median_seconds": round(statistics.median(seconds), 2),
        "import_seconds": imports,
        "median_less_import": round(statistics.median(seconds) - statistics.mean(imports), 2),
        "rounds": measured,
        "checkpoint_every": CHECKPOINT_EVERY,
        "steps_lost_at_most": max(one["steps_lost"] for one in measured),
        **({"stall_timeout_seconds": STALL_SECONDS} if options.kind == "stop" else {}),
    }


def read_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="kinds:\n" + "\n".join(f"  {kind:10} {told}" for kind, told in KINDS.items()),
    )
    parser.add_argument("--kind", choices=KINDS, default="worker")
    parser.add_argument("--warm", action="store_true", help="with spec.warmStandby")
    parser.add_argument("--rounds", type=int, default=10, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    return parser.parse_args()


if __name__ == "__main__":
    chosen = read_options()
    with tempfile.TemporaryDirectory(prefix="trainjob-recovery-") as name:
        print(json.dumps(run_all(chosen, Path(name))))
