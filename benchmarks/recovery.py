"""How soon training goes on after a failure, here or on a cluster: ten times in a row in one job.

    python benchmarks/recovery.py [--kind KIND] [--warm] [--rounds N] [--seed N]
    python benchmarks/recovery.py --kubeconfig FILE [--start-controller] [--node-folder FOLDER] ...

One job of two workers trains a toy model; in each round, at a random moment, something of it is killed. Its
time ends when every worker has taken a new step. Beside it stands the bare import of TensorFlow and Keras in
the same place, before and after. Progress goes to stderr, one line of JSON to stdout; docs/benchmarks.md
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster_run import a_cluster_run
from local_run import LocalRun
from training_run import EVALUATOR, WORKERS, Toy, TrainingRun

KINDS = {
    "worker": "a training process, either one, is sent SIGKILL",
    "worker0": "worker 0's training process, which writes the checkpoints, is sent SIGKILL",
    "both": "both training processes are sent SIGKILL at once",
    "stop": "a training process is sent SIGSTOP: only the watchdog can tell",
    "agent": "an agent is sent SIGKILL, and with it goes its container",
    "pod": "a pod is deleted, as a drained node's are; needs a cluster",
    "evaluator": "the evaluator's process is sent SIGKILL, which training must not notice",
}
STALL_SECONDS = 5
ENDLESS = 100_000_000
CHECKPOINT_EVERY = 50
SECONDS_AN_EXAMPLE = 0.001
_SETTLED_CPU_SECONDS = 0.02


class Rounds:
    """One run, and what is done to it."""

    def __init__(self, run: TrainingRun, options: argparse.Namespace) -> None:
        self._run = run
        self._kind = options.kind
        self._warm = options.warm
        self._random = random.Random(options.seed)  # noqa: S311 - it chooses moments

    def begin(self) -> None:
        """Have everybody at work."""
        self._run.until_stepping(WORKERS, {})
        if self._kind == "evaluator":
            self._run.until("a first result", lambda: self._run.results() or None)
        self._settle()

    def measure(self) -> dict[str, Any]:
        """Return what one failure has cost."""
        time.sleep(self._random.uniform(0.0, 2.0))
        if self._kind == "evaluator":
            return self._measure_evaluator()
        before = self._run.processes_of(WORKERS)
        begin = self._strike()
        stamps = self._run.until_stepping(WORKERS, before)
        told = {
            "seconds": round(max(stamp["first_step"] for stamp in stamps) - begin, 2),
            "until_started": round(max(stamp["began"] for stamp in stamps) - begin, 2),
            "until_imported": round(max(stamp["imported"] for stamp in stamps) - begin, 2),
            "steps_lost": max(0, *(stamp["reached"] - stamp["resumed"] for stamp in stamps)),
        }
        self._settle()
        return told

    def _strike(self) -> float:
        """Do it, and return when."""
        replica = self._random.choice(WORKERS)
        if self._kind == "agent":
            return self._run.kill_agent(replica)
        if self._kind == "pod":
            return self._run.delete_pod(replica)
        replicas = {"worker0": WORKERS[:1], "both": WORKERS}.get(self._kind, (replica,))
        return self._run.send(replicas, signal.SIGSTOP if self._kind == "stop" else signal.SIGKILL)

    def _measure_evaluator(self) -> dict[str, Any]:
        attempts = [self._run.stamp(replica)["attempt"] for replica in WORKERS]
        begin = self._run.send([EVALUATOR], signal.SIGKILL)
        results = self._run.results()  # of the one that is gone
        self._run.until("a new result", lambda: self._run.results() > results or None)
        same = attempts == [self._run.stamp(replica)["attempt"] for replica in WORKERS]
        return {"seconds": round(self._run.clock() - begin, 2), "training_went_on": same, "steps_lost": 0}

    def _settle(self) -> None:
        """Wait for a new checkpoint and, with --warm, for standbys that have imported everything."""
        target = (
            max(int(self._run.stamp(replica).get("step", 0)) for replica in WORKERS) + CHECKPOINT_EVERY + 5
        )
        self._run.until(
            "progress",
            lambda: all(int(self._run.stamp(s).get("step", 0)) >= target for s in WORKERS) or None,
        )
        if self._warm:
            self._run.until("two standbys that wait", self._standbys_wait)

    def _standbys_wait(self) -> bool | None:
        before = self._run.standbys()
        if len(before) < len(WORKERS):
            return None
        time.sleep(1.0)
        after = self._run.standbys()
        used = sum(after.values()) - sum(before.values())
        at_rest = before.keys() == after.keys() and used <= _SETTLED_CPU_SECONDS
        return (at_rest and sum(before.values()) > 1.0) or None


@contextmanager
def a_run(toy: Toy, options: argparse.Namespace) -> Iterator[TrainingRun]:
    """Return a run that hasn't begun, here or on the cluster."""
    if options.kubeconfig:
        with a_cluster_run(toy, options) as on_the_cluster:
            yield on_the_cluster
        return
    with tempfile.TemporaryDirectory(prefix="trainjob-recovery-") as folder:
        yield LocalRun(toy, Path(folder))


def build_toy(options: argparse.Namespace) -> Toy:
    """Return the training that suits the kind of failure."""
    spec: dict[str, Any] = {"maxRestarts": 10 * options.rounds}
    if options.warm:
        spec["warmStandby"] = True
    if options.kind == "stop":
        spec["stallTimeoutSeconds"] = STALL_SECONDS
    has_evaluator = options.kind == "evaluator"
    return Toy(
        ENDLESS, CHECKPOINT_EVERY, SECONDS_AN_EXAMPLE, is_full=False, evaluator=has_evaluator, spec=spec
    )


def run_all(options: argparse.Namespace) -> dict[str, Any]:
    """Return what is measured."""
    at_once = 1 if options.kind == "evaluator" else len(WORKERS)
    measured = []
    with a_run(build_toy(options), options) as run:
        run.import_seconds(at_once)  # the first one fills the disk's cache
        imports = [run.import_seconds(at_once)]
        with run:
            rounds = Rounds(run, options)
            rounds.begin()
            for number in range(options.rounds):
                measured.append(rounds.measure())
                print(
                    f"benchmark: {number + 1} of {options.rounds}: {measured[-1]}",
                    file=sys.stderr,
                    flush=True,
                )
        imports.append(run.import_seconds(at_once))
    seconds = [one["seconds"] for one in measured]
    return {
        "benchmark": "recovery",
        "place": "cluster" if options.kubeconfig else "local",
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
    cluster = parser.add_argument_group("on a cluster", "It needs the CRD, a controller and the image.")
    cluster.add_argument("--kubeconfig", type=Path, metavar="FILE", help="run there, not on this machine")
    cluster.add_argument("--context", metavar="NAME")
    cluster.add_argument("--kubectl", default="kubectl", metavar="PROGRAM")
    cluster.add_argument("--image", help="of the trainer; by default the release's")
    cluster.add_argument(
        "--start-controller", action="store_true", help="run one here, for the namespace alone"
    )
    cluster.add_argument(
        "--node-folder",
        type=Path,
        metavar="FOLDER",
        help="of the only node, empty: the volume, where no StorageClass makes one that can be shared",
    )
    options = parser.parse_args()
    if options.kind == "pod" and not options.kubeconfig:
        parser.error("there are no pods on this machine: --kind pod needs --kubeconfig")
    return options


if __name__ == "__main__":
    print(json.dumps(run_all(read_options())))
