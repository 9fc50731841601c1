"""The end of a training: it has finished when the writer's process has exited with 0, and not before.

Only what has started the process sees its exit code: the agent, or `supervise` in a pod without one. It
writes `final.json`, by which later starts and the evaluator know that there is nothing left to train.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainjob_trainer.atomic_file import TEMPORARY, write_atomically
from trainjob_trainer.contract.files import FINAL
from trainjob_trainer.errors import Fenced

_CHECKPOINT = re.compile(r"step-(\d{8,})(?:\.[1-9]\d*)?")
_LARGEST = 1 << 20
_CLAIM = re.compile(r"\.claim-(\d+)\.(\d+)-([0-9a-f]{8})")


SENT, FENCED = "sent", "fenced"
"""What `mirror.py` as a program prints at its end."""


def mark_finished(
    env: Mapping[str, str],
    generation: str,
    step: object = None,
    *,
    if_claimed: bool = False,
    files: Any = None,
    first: Callable[[], None] = lambda: None,
) -> None:
    """Write `final.json` for the writer's process of this generation, which has exited with 0.

    The file is renamed out of the process's claim (ADR 10), so it never appears once a successor has taken
    over. A script that has claimed nothing has trained nothing that could be taken over.

    Args:
        env: of the process: where its checkpoints are, and its job.
        generation: `<incarnation>.<attempt>`; empty if the process had none.
        step: the last one that it reported, if any.
        if_claimed: only if it has claimed the output: it may be one of several programs of the container.
        files: the operations on the folder of checkpoints, as `checkpoint.files.Files`. Without them, an
            output in a bucket is left to a program (`mirror.py`), which sends the rest of the files first and
            writes the marker for the writer alone: this one has no client for buckets.
        first: called before anything is written, once no newer start is known to write there.

    Raises Fenced, or OSError if the file can't be written.
    """
    if env.get("TRAINJOB_OUTPUT_URI") and files is None:
        _have_mirror_finish(env, generation, step)
        return
    files = files or _LocalFiles()
    output = env.get("TRAINJOB_OUTPUT_DIR")
    checkpoints = env.get("TRAINJOB_CHECKPOINT_DIR") or (output and f"{output}/checkpoints")
    if not checkpoints:
        return
    folder, uid = Path(checkpoints), env.get("TRAINJOB_UID", "")
    files.make_folder(folder)
    names = files.names(folder)
    job = f"{zlib.crc32(uid.encode()):08x}"
    claims = [match for match in map(_CLAIM.fullmatch, names) if match and match[3] == job]
    newest = max(((int(claim[1]), int(claim[2])) for claim in claims), default=None)
    own = tuple(map(int, generation.split("."))) if generation else newest
    if newest is not None and own is not None and newest > own:
        raise Fenced(f"a newer start of this job writes {folder}")
    claim = folder / f".claim-{generation}-{job}"
    if if_claimed and claim.name not in names:
        return
    first()
    try:
        facts = json.loads(files.read(folder / "ended.json", _LARGEST))
    except FileNotFoundError:
        saved = [int(match[1]) for match in map(_CHECKPOINT.fullmatch, names) if match]
        facts = {"step": max(saved, default=0), "endedAt": step if isinstance(step, int) else 0}
    spec = {"spec": env["TRAINJOB_SPEC"]} if env.get("TRAINJOB_SPEC") else {}
    text = json.dumps({**facts, **spec, "jobUid": uid, "time": time.time()})
    place = (claim if claim.name in names else folder) / f"{TEMPORARY}{FINAL}"
    files.write(place, text.encode())
    files.rename(place, folder / FINAL)


class _LocalFiles:
    """What is needed of `checkpoint.files.Files`, which imports NumPy and TensorFlow."""

    def make_folder(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def names(self, path: Path) -> list[str]:
        return [entry.name for entry in path.iterdir()]

    def read(self, path: Path, limit: int) -> bytes:
        with path.open("rb") as file:
            return file.read(limit)

    def write(self, path: Path, data: bytes) -> None:
        write_atomically(path, data.decode())

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)


def mirror_command(function: str) -> list[str]:
    """Return a program that calls a function of `mirror.py`, which needs more than the standard library."""
    package = Path(__file__).parents[1]
    code = f"import sys; sys.path.insert(0, sys.argv[1]); from {package.name}.mirror import {function}"
    return [sys.executable, "-c", f"{code}; {function}(sys.argv[2:])", str(package.parent)]


def _have_mirror_finish(env: Mapping[str, str], generation: str, step: object) -> None:
    words = [generation, *([str(step)] if isinstance(step, int) else [])]
    # Its word counts, not its exit code: the agent waits for all children of the container, and `subprocess`
    # takes one that another has waited for as one that has exited with 0.
    done = subprocess.run(
        [*mirror_command("finish"), *words],
        # It isn't the script's own, and an image may have another version of the library on PYTHONPATH.
        env={name: value for name, value in env.items() if name not in ("TRAINJOB_PID", "PYTHONPATH")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    outcome, said = (text.decode(errors="replace").strip() for text in (done.stdout, done.stderr))
    if outcome == FENCED:
        raise Fenced(said)
    if outcome != SENT:
        raise OSError(said.splitlines()[-1] if said else "the program that sends the last files was killed")


# In a pod without an agent.


_PR_SET_PDEATHSIG = 1
_SECONDS_BETWEEN_TRIES = 1.0


def supervise() -> None:
    """Run the script in a child process, and mark training as finished if that has exited with 0.

    It returns in the child alone. Signals go to the child, and its exit code becomes that of this process,
    128+n after a death by signal n.
    """
    child = os.fork()
    if not child:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(child, number))
    _, status = os.waitpid(child, 0)
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
    generation = os.environ["TRAINJOB_GENERATION"]
    while code == 0:
        try:
            mark_finished(os.environ, generation, if_claimed=True)
            break
        except (Fenced, PermissionError, ValueError) as error:
            print(f"trainjob: the output doesn't say that training has finished: {error}", file=sys.stderr)
            break
        except OSError as error:
            print(f"trainjob: waiting for the output's volume: {error}", file=sys.stderr, flush=True)
            time.sleep(_SECONDS_BETWEEN_TRIES)
    sys.stderr.flush()
    os._exit(code)
