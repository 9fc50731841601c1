"""A job that is killed again and again ends with the weights of one that nobody disturbs.

    python benchmarks/chaos.py --kills 200 [--seed N] [--kinds worker0,both,...] [--warm] [--disk-faults 0.01]
    PYTHONPATH=testbed python benchmarks/chaos.py --kills 200 --bucket 0.01

Two jobs of two workers train the same on this machine through `trainjob run`: one undisturbed; from the other
something is killed at seeded random moments, while it starts, trains or saves, and a share of all system
calls on its files may fail (`faulty_disk.c`): checkpoints, event files, logs, results, records. With
`--bucket` both train into a bucket, and a share of all requests of the one may fail (`faulty_bucket.py`).
Then every variable of the two final checkpoints is compared: weights, optimizer, random state, metrics of the
last epoch; and the files that were sent to a bucket with those of the pods. Progress goes to stderr, one line
of JSON to stdout; the exit code is 1 if variables differ by more than 1e-6, or files at all, or if a fault of
the storage counts as a restart or is said to be at a line of the script.
"""

from __future__ import annotations

import sys

# This folder comes first on the path, and operator.py in it has the name of a standard library's module.
sys.path.append(sys.path.pop(0))

import argparse
import collections
import contextlib
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from local_run import LocalRun, kill
from training_run import SCRIPT, WORKERS, Toy

if TYPE_CHECKING:
    from faulty_bucket import FaultyBucket

KINDS = ("worker0", "worker1", "both", "agent", "stop", "term")
STALL_SECONDS = 5
STEPS_A_KILL = 80
CHECKPOINT_EVERY = 20
SECONDS_AN_EXAMPLE = 0.001
LARGEST_DIFFERENCE = 1e-6
URI = "s3://results/chaos"
_WHILE_STARTING = 0.2
_SECONDS_OF_A_START = 5.0
_SECONDS_OF_TRAINING = 2.0
_STOPPED_SECONDS = 3.0


class Chaos:
    """What befalls a run."""

    def __init__(self, run: LocalRun, options: argparse.Namespace) -> None:
        self._run = run
        self._kinds = options.kinds
        self._random = random.Random(options.seed)  # noqa: S311 - it chooses moments
        self._starting = False
        self._before: dict[str, float] = {}
        self._reached = 0
        self.done: collections.Counter[str] = collections.Counter()

    def strike(self) -> None:
        """Wait for the next moment, and kill something."""
        self._wait()
        kind, replica = self._random.choice(self._kinds), self._random.choice(WORKERS)
        pids = self._run.until("somebody to kill", lambda: self._targets(kind, replica))
        number = {"stop": signal.SIGSTOP, "term": signal.SIGTERM}.get(kind, signal.SIGKILL)
        steps = [self._run.stamp(one).get("step") for one in WORKERS]
        self._reached = max(self._reached, *(step or 0 for step in steps))
        before = self._run.processes_of(WORKERS)
        for pid in pids:
            kill(pid, number)
        self.done[kind] += 1
        print(f"chaos: {sum(self.done.values())}: {kind} at {steps}", file=sys.stderr, flush=True)
        if kind == "stop" and not all(isinstance(step, int) for step in steps):
            time.sleep(_STOPPED_SECONDS)  # before the first step it has ten minutes
            kill(pids[0], signal.SIGCONT)
        else:
            self._before = before

    def _targets(self, kind: str, replica: str) -> list[int]:
        """The processes to kill; none while a replica has none, as between two starts."""
        pids = {
            "worker0": [self._run.pid(WORKERS[0])],
            "worker1": [self._run.pid(WORKERS[1])],
            "both": [self._run.pid(one) for one in WORKERS],
            "agent": [self._run.agent(replica)],
            "stop": [self._run.pid(replica)],
            "term": [self._run.agent(replica)],
        }[kind]
        return [pid for pid in pids if pid]

    def _wait(self) -> None:
        """Sometimes for a moment of the start, if the one before was none: a start must succeed some time.

        Else until training has come further: a replica that is killed at one step again and again has run out
        of memory, as far as its agent can tell, and the job is given up.
        """
        self._starting = not self._starting and bool(self.done) and self._random.random() < _WHILE_STARTING
        if self._starting:
            time.sleep(self._random.uniform(0.0, _SECONDS_OF_A_START))
            return
        self._run.until_stepping(WORKERS, self._before)
        self._run.until("a further step", lambda: self._run.stamp(WORKERS[0]).get("step", 0) > self._reached)
        time.sleep(self._random.uniform(0.0, _SECONDS_OF_TRAINING))


def train(folder: Path, steps: int, options: argparse.Namespace, *, kills: int) -> dict[str, Any]:
    """Run the job to its end, and return what has happened to it."""
    spec = {"maxRestarts": 10 + 10 * kills, "stallTimeoutSeconds": STALL_SECONDS, "warmStandby": options.warm}
    faults = options.disk_faults if kills else 0.0
    has_faults = bool(kills and (options.disk_faults or options.bucket))
    toy = Toy(
        steps,
        CHECKPOINT_EVERY,
        SECONDS_AN_EXAMPLE,
        evaluator=has_faults,
        disk_faults=faults,
        disk_seed=options.seed,
        uri="" if options.bucket is None else URI,
        spec=spec,
    )
    began = time.monotonic()
    with LocalRun(toy, folder) as run:
        chaos = Chaos(run, options)
        for _ in range(kills):
            chaos.strike()
        limit = 120.0 + steps * 0.2 + (300.0 if has_faults else 0.0)  # storage is waited for
        if code := run.wait(limit):
            raise SystemExit(f"the job failed ({code})\n{run.tail()}")
    seconds = round(time.monotonic() - began, 1)
    if has_faults:
        check_blame(run, kills)
    hit = collections.Counter(line.split()[1] for line in _lines(run.faults))
    return {"kills": dict(chaos.done), "faults": dict(hit), "seconds": seconds, "run": run}


def check_blame(run: LocalRun, kills: int) -> None:
    """Refuse a fault of the storage that counts as a restart, or is said to be at a line of the script."""
    blamed = [line for line in _lines(run.log) if f"{SCRIPT.name}:" in line]
    record = json.loads((run.output / ".trainjob.json").read_text())
    restarts = record["view"]["status"]["restarts"]
    if blamed or restarts.get("counted", 0) + restarts.get("reset", 0) > kills:
        raise SystemExit(
            f"a fault of the storage is blamed on something else: {blamed}, {restarts}\n{run.tail()}"
        )


def _lines(file: Path) -> list[str]:
    return file.read_text(errors="replace").splitlines() if file.exists() else []


def differences(one: LocalRun, other: LocalRun) -> tuple[int, float]:
    """Return the final step, and the largest difference of any variable in two final checkpoints."""
    import numpy as np  # noqa: PLC0415 - TensorFlow is not for the process that measures

    finals = [final_of(run) for run in (one, other)]
    if len({step for step, _ in finals}) > 1 or finals[0][1].keys() != finals[1][1].keys():
        raise SystemExit(f"the final checkpoints hold different things: {finals}")
    pairs = [[values[name].astype("float64") for _, values in finals] for name in finals[0][1]]
    return finals[0][0], max(float(np.max(np.abs(np.subtract(*pair)), initial=0)) for pair in pairs)


def final_of(run: LocalRun) -> tuple[int, dict[str, Any]]:
    """Return the step and all variables of the final checkpoint; `fit` is the record of the call, as JSON."""
    from trainjob_trainer.checkpoint.bucket import BucketFiles, ObjectStore  # noqa: PLC0415 - as above
    from trainjob_trainer.checkpoint.files import Files  # noqa: PLC0415
    from trainjob_trainer.checkpoint.store import CheckpointStore  # noqa: PLC0415

    folder = run.output / "checkpoints"
    files = BucketFiles(folder, ObjectStore(f"{run.uri}/checkpoints")) if run.uri else Files()
    store = CheckpointStore(folder, files=files)
    if (final := store.final()) is None:
        raise SystemExit(f"{folder} has no final checkpoint")
    found = store.read(store.checked(final.step))
    return final.step, {f"{k}/{one.name}": one.value for k, of in found.items() if k != "fit" for one in of}


def differing_files(run: LocalRun) -> list[str]:
    """Return which files of the writer and the evaluator aren't in the bucket as they are in their pods."""
    from trainjob_trainer.checkpoint.bucket import ObjectStore  # noqa: PLC0415 - as above

    store = ObjectStore(run.uri)
    keys = [key for key in store.versions("") if not key.startswith("checkpoints/")]
    there = {key: found[0] for key in keys if (found := store.get(key))}
    paths = {
        path.relative_to(run.output).as_posix(): path for path in run.output.rglob("*") if path.is_file()
    }
    mine = {key: path for key, path in paths.items() if "/." not in f"/{key}" and "replicas/" not in key}
    here = {key: path.read_bytes() for key, path in mine.items()}
    return sorted(key for key in there.keys() | here.keys() if there.get(key) != here.get(key))


@contextlib.contextmanager
def faulty_bucket(folder: Path, seed: int) -> Iterator[FaultyBucket]:
    """Start the server of a bucket; this process and those that it starts use it from now on."""
    from faulty_bucket import FaultyBucket  # noqa: PLC0415 - only a bucket needs the testbed
    from testbed.bucket_server import BucketServer  # noqa: PLC0415 - as above

    server = BucketServer(folder)
    server.start()
    try:
        with FaultyBucket(server.port, seed) as faulty:
            os.environ.update(server.env | {"AWS_ENDPOINT_URL": faulty.url})
            yield faulty
    finally:
        server.kill()


def run_all(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return what has been found."""
    steps = options.steps or STEPS_A_KILL * (options.kills + 1)
    with contextlib.ExitStack() as stack:
        faulty = None
        if options.bucket is not None:
            faulty = stack.enter_context(faulty_bucket(folder, options.seed))
        whole = train(folder / "whole", steps, options, kills=0)
        with faulty.failing(options.bucket) if faulty else contextlib.nullcontext():
            cut = train(folder / "cut", steps, options, kills=options.kills)
        step, largest = differences(whole["run"], cut["run"])
        files = [name for each in (whole, cut) for name in differing_files(each["run"])] if faulty else []
    return {
        "benchmark": "chaos",
        "seed": options.seed,
        "warm": options.warm,
        "disk_faults": options.disk_faults,
        "bucket": options.bucket,
        "cores": os.cpu_count(),
        "kills": cut["kills"],
        "requests": faulty.requests if faulty else 0,
        "faults": cut["faults"] | (faulty.faults if faulty else {}),
        "steps": step,
        "largest_difference": largest,
        "differing_files": files,
        "undisturbed_seconds": whole["seconds"],
        "disturbed_seconds": cut["seconds"],
    }


def read_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument(
        "--steps", type=int, metavar="N", help=f"of training; {STEPS_A_KILL} a kill by default"
    )
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS), metavar="A,B")
    parser.add_argument("--warm", action="store_true", help="with spec.warmStandby")
    parser.add_argument(
        "--disk-faults", type=float, default=0.0, metavar="SHARE", help="of file operations that fail"
    )
    parser.add_argument(
        "--bucket", type=float, metavar="SHARE", help="train into a bucket; of requests that fail"
    )
    options = parser.parse_args()
    if unknown := set(options.kinds) - set(KINDS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; kinds are {', '.join(KINDS)}")
    return options


if __name__ == "__main__":
    chosen = read_options()
    with tempfile.TemporaryDirectory(prefix="trainjob-chaos-") as name:
        found = run_all(chosen, Path(name))
    print(json.dumps(found))
    sys.exit(found["largest_difference"] > LARGEST_DIFFERENCE or bool(found["differing_files"]))
