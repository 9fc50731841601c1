"""Real processes that run a script the way a job does: the bootstrap folder on PYTHONPATH, and TF_CONFIG."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.ports import free_ports

import trainjob_trainer
from support.trainer.forking import QUIET, Forked, can_fork, fork
from trainjob_trainer.agent.ending import mark_finished

BOOTSTRAP = Path(trainjob_trainer.__file__).parent / "bootstrap"
SCRIPTS = Path(__file__).parents[2] / "trainer_plain" / "scripts"
SECONDS = 400


@dataclass(frozen=True)
class Ended:
    """One replica's process after its end, with its last report.

    The log is stdout and stderr together; no other process writes into its working folder.
    """

    code: int
    log: str
    folder: Path
    progress: Mapping[str, Any]


def run_job(
    script: Path,
    root: Path,
    *,
    workers: int = 2,
    evaluator: bool = False,
    uid: str = "uid-1",
    env: Mapping[str, str] | None = None,
) -> dict[str, Ended]:
    """Run a script as a job below `root` until every process has ended.

    Once a worker has failed, an evaluator is ended too: nobody would write what it waits for.
    """
    names = [f"worker-{index}" for index in range(workers)] + ["evaluator-0"] * evaluator
    addresses = [f"127.0.0.1:{port}" for port in free_ports(len(names))]
    cluster = {"worker": addresses[:workers], **({"evaluator": addresses[workers:]} if evaluator else {})}
    running = {name: _start(script, root, name, cluster, uid, env or {}) for name in names}
    try:
        codes = {name: running[name].wait(SECONDS) for name in names if name.startswith("worker")}
        if codes["worker-0"] == 0:  # as an agent does
            step = _ended(root, "worker-0", 0).progress.get("step")
            variables = _environment(root, "worker-0", cluster, uid, env or {})
            mark_finished(variables, variables.get("TRAINJOB_GENERATION", ""), step)
        if evaluator and any(codes.values()):
            running["evaluator-0"].terminate()
        codes |= {name: process.wait(SECONDS) for name, process in running.items()}
    except subprocess.TimeoutExpired as error:
        logs = [f"{name}:\n{_ended(root, name, 0).log}" for name in names]
        raise AssertionError("\n".join([f"not ended after {SECONDS} s", *logs])) from error
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return {name: _ended(root, name, code) for name, code in codes.items()}


def run_alone(script: Path, root: Path, env: Mapping[str, str]) -> int:
    """Run a script without a job, by Keras alone, and return its exit code.

    TensorFlow crashes at times, with nothing of ours in the process: then it is run once more.
    """
    env = {**clean_environment(), "TRAINJOB_OUTPUT_DIR": str(root), **env}
    for is_last in (False, True):
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        with (root / "log").open("wb") as log:
            code = fork(script, (), env, root, output=log.fileno()).wait(SECONDS)
        if is_last or code != -signal.SIGSEGV:
            break
    return code


def run_python(
    arguments: Sequence[str], env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run an interpreter in a clean environment, with the bootstrap folder in front."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**clean_environment(), "PYTHONPATH": str(BOOTSTRAP), **(env or {})},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def _start(
    script: Path,
    root: Path,
    name: str,
    cluster: Mapping[str, Sequence[str]],
    uid: str,
    more: Mapping[str, str],
) -> subprocess.Popen[bytes] | Forked:
    folder = root / "cwd" / name
    folder.mkdir(parents=True, exist_ok=True)
    env = _environment(root, name, cluster, uid, more)
    with (root / f"{name}.log").open("wb") as log:
        if can_fork((sys.executable,), more):
            return fork(script, (), env, folder, output=log.fileno(), path=env["PYTHONPATH"])
        return subprocess.Popen(
            [sys.executable, str(script)], cwd=folder, stdout=log, stderr=subprocess.STDOUT, env=env
        )


def _environment(
    root: Path, name: str, cluster: Mapping[str, Sequence[str]], uid: str, more: Mapping[str, str]
) -> dict[str, str]:
    role, index = name.split("-")
    output = root / "evaluator" if role == "evaluator" else root
    return {
        **clean_environment(),
        "PYTHONPATH": str(BOOTSTRAP),
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": int(index)}}),
        "TRAINJOB_NAME": "plain",
        "TRAINJOB_UID": uid,
        "TRAINJOB_OUTPUT_DIR": str(output),
        "TRAINJOB_CHECKPOINT_DIR": str(root / "checkpoints"),
        "TRAINJOB_PROGRESS_FILE": str(root / f"{name}.progress.json"),
        **more,
    }


def _ended(root: Path, name: str, code: int) -> Ended:
    progress = root / f"{name}.progress.json"
    return Ended(
        code,
        (root / f"{name}.log").read_text(encoding="utf-8", errors="replace"),
        root / "cwd" / name,
        json.loads(progress.read_text(encoding="utf-8")) if progress.exists() else {},
    )


def clean_environment() -> dict[str, str]:
    ours = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRAINJOB_", "PYTEST_"))
    }
    ours.pop("TF_CONFIG", None)
    return {**ours, **QUIET}
