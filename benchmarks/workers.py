"""Workers of one training as processes on loopback, without any controller."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

GUARD_SECONDS = 600


def told_by_the_first(
    command: Sequence[str],
    workers: int,
    key: str,
    *,
    with_us: bool = True,
    cores: Sequence[int] = (),
    wait_for_all: bool = False,
) -> dict[str, Any]:
    """Run a script as every worker of a cluster, and return what the first one prints as a line of JSON.

    Args:
        command: the script and its arguments.
        workers: how many.
        key: the first key of that line.
        with_us: whether they have what a container of a TrainJob has; else TF_CONFIG alone.
        cores: the only processor that each worker may use, with one thread; without them, all.
        wait_for_all: let the others end by themselves too, and add `ended_at`, on the monotonic clock, when
            the last one has.
    """
    with tempfile.TemporaryDirectory(prefix="trainjob-workers-") as name:
        folder, addresses = Path(name), free_addresses(workers)
        log = (folder / "log").open("w+b")
        processes = [
            subprocess.Popen(
                [*pinned(index, cores), sys.executable, *command],
                env=environment(addresses, index, folder, with_us=with_us, one_thread=bool(cores)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
            for index in range(workers)
        ]
        try:
            told = processes[0].communicate(timeout=GUARD_SECONDS)[0]
            if wait_for_all:
                for process in processes:
                    process.wait(GUARD_SECONDS)
            ended_at = time.monotonic()
        finally:
            for process in processes:
                process.kill()
                process.wait()
        lines = [line for line in told.decode().splitlines() if line.startswith(f'{{"{key}"')]
        if not lines:
            log.seek(0)
            raise SystemExit(f"{command} told nothing\n{log.read()[-4000:].decode(errors='replace')}")
        found: dict[str, Any] = json.loads(lines[-1])
        return {**found, "ended_at": ended_at} if wait_for_all else found


def pinned(index: int, cores: Sequence[int]) -> list[str]:
    """Return the command before the command."""
    return ["taskset", "--cpu-list", str(cores[index])] if cores else []


def free_addresses(count: int) -> list[str]:
    """Return so many of loopback that nobody listens on."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    for listener in listeners:
        listener.close()
    return addresses


def environment(
    addresses: Sequence[str], index: int, folder: Path, *, with_us: bool, one_thread: bool
) -> dict[str, str]:
    """Return what a container of the worker would have; what is not ours gets TF_CONFIG alone."""
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    env = {
        **os.environ,
        "TF_CONFIG": json.dumps(config),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    if one_thread:
        env |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2", "OMP_NUM_THREADS": "1"}
    if with_us:
        package = importlib.util.find_spec("trainjob_trainer")
        if package is None or package.origin is None:
            raise SystemExit("trainjob_trainer is not installed here")
        env |= {
            "PYTHONPATH": str(Path(package.origin).parent / "bootstrap"),
            "TRAINJOB_NAME": "benchmark",
            "TRAINJOB_OUTPUT_DIR": str(folder / "output"),
            "TRAINJOB_PROGRESS_FILE": str(folder / f"progress-{index}.json"),
        }
    return env
