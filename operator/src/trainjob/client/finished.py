"""Whether a job is finished already, without starting anything: what was and what is asked for."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trainjob.client.presenter import describe_age, main_metric
from trainjob.client.run_record import Run
from trainjob.client.view import JobView
from trainjob.cluster.local import LocalOptions

# What is asked for: the spec, the caller's settings, and the text files of the job's folder. The trainer
# decides how many steps are left; so anything that may change its decision counts.


_READ_BY_SCRIPTS = frozenset([".py", ".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".ipynb"])
_SETTINGS = "TRAIN_"
"""Begins the names of the caller's variables that are settings (`docs/train-and-evaluate.md`)."""

_MOST_FILES = 2000
_MOST_BYTES = 1 << 26


def digest_request(
    job: Mapping[str, Any], options: LocalOptions, file: Path | None, environ: Mapping[str, str]
) -> str:
    """Return a digest of what is asked for; an empty text if it isn't known for certain.

    Args:
        job: the manifest.
        options: of the run.
        file: the job's own file, whose text doesn't count.
        environ: the caller's environment.
    """
    digest = hashlib.sha256()
    from_caller = [str(part.get("name")) for part in _parts(job["spec"]) if "valueFrom" in part]
    names = {"PYTHONPATH", *from_caller, *(name for name in environ if name.startswith(_SETTINGS))}
    asked = {
        "version": version("trainjob"),
        "spec": job["spec"],
        "volumes": {name: str(path.absolute()) for name, path in options.volumes.items()},
        "environ": {name: environ.get(name) for name in sorted(names)},
    }
    digest.update(json.dumps(asked, sort_keys=True, default=str).encode())
    count = size = 0
    for path in _files(_sources(job, options, environ), options.folder.absolute()):
        count += 1
        if count > _MOST_FILES:
            return ""
        if path.suffix not in _READ_BY_SCRIPTS or (file is not None and path == file.absolute()):
            continue
        try:
            content = path.read_bytes()
        except OSError:
            return ""
        size += len(content)
        if size > _MOST_BYTES:
            return ""
        digest.update(f"\0{path}\0{len(content)}\0".encode(errors="surrogateescape") + content)
    return digest.hexdigest()


def _sources(job: Mapping[str, Any], options: LocalOptions, environ: Mapping[str, str]) -> list[Path]:
    """Return the folders of the job's code: its own one, and those of scripts and modules elsewhere."""
    own = options.job_folder.absolute()
    words = [
        word for part in _parts(job["spec"]) for name in ("command", "args") for word in part.get(name) or ()
    ]
    scripts = [own / str(word) for word in words if str(word).endswith(".py")]
    paths = [str(part.get("value")) for part in _parts(job["spec"]) if part.get("name") == "PYTHONPATH"]
    modules = ":".join([*paths, environ.get("PYTHONPATH", "")]).split(":")
    found = [*(script.parent for script in scripts), *(own / module for module in modules if module)]
    resolved = dict.fromkeys(path.resolve() for path in found if path.is_dir())
    return [own, *(path for path in resolved if not path.is_relative_to(own.resolve()))]


def _parts(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every object in a part of a manifest."""
    if isinstance(value, Mapping):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _parts(each)


def _files(sources: Iterable[Path], outputs: Path) -> Iterator[Path]:
    """Yield the files below these folders, without hidden ones, those of runs, and virtual environments."""
    for source in sources:
        for inner, folders, files in os.walk(source):
            here = Path(inner)
            folders[:] = sorted(
                name
                for name in folders
                if not name.startswith(".")
                and name != "__pycache__"
                and here / name not in (outputs, source / "runs")
                and not (here / name / "pyvenv.cfg").exists()
            )
            yield from (here / name for name in sorted(files) if not name.startswith("."))


# The answer.


_MARKER = Path("checkpoints", "final.json")  # docs/contract.md
_LARGEST_MARKER = 1 << 20


def describe_finished(run: Run, request: str, now: datetime) -> str | None:
    """Return the sentence about a job that has nothing left to do; None if that isn't certain.

    Args:
        run: the latest run in the job's folder.
        request: what is asked for now.
        now: the current time.
    """
    if run.record.end != "complete" or not request or run.record.request != request:
        return None
    marker = _read_marker(run.folder)
    if marker is None or marker.get("jobUid") != run.record.view.uid:
        return None
    view, ended = run.record.view, run.record.ended
    facts = [f"step {marker.get('endedAt') or marker['step']}"]
    score = view.last_evaluation
    if score is not None and (metric := main_metric(score.metrics)):
        facts.append(metric)
    facts += [describe_age(now - ended)] if ended is not None else []
    return f"{view.name} is finished ({', '.join(facts)}); train on: {_more(view)}; start over: --fresh"


def _read_marker(folder: Path) -> Mapping[str, Any] | None:
    path = folder / _MARKER
    try:
        if path.stat().st_size > _LARGEST_MARKER:
            return None
        marker = json.loads(path.read_bytes())
        step = int(marker["step"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    has_checkpoint = next(path.parent.glob(f"step-{step:08}*"), None) is not None
    return marker if has_checkpoint and isinstance(marker, dict) else None


def _more(view: JobView) -> str:
    epochs = max((replica.report.total_epochs or 0 for replica in view.replicas), default=0)
    return f"ask for more, such as -- --epochs {2 * epochs}" if epochs else "ask for more steps"
