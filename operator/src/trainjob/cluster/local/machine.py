"""Looks at this machine, once, for the translation of pods."""

import importlib.util
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainjob.cluster.local.gpus import find_gpus
from trainjob.cluster.local.place import Place

_TRAINER_PACKAGE = "trainjob_trainer"


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """What the caller of `trainjob run` may choose.

    Attributes:
        folder: where claims and other volumes become folders.
        job_folder: the folder of the job's file, in which its commands are started.
        volumes: folders for volumes that only a cluster has, by volume name.
        base_port: the first replica's port, the next one's is one higher; None for any that are free.
    """

    folder: Path = Path("runs")
    job_folder: Path = Path()
    volumes: Mapping[str, Path] = field(default_factory=dict)
    base_port: int | None = None


def survey(options: LocalOptions, environ: Mapping[str, str]) -> Place:
    """Return this machine as the translation of pods sees it."""
    return Place(
        folder=options.folder.absolute(),
        job_folder=options.job_folder.absolute(),
        # Not resolved: in a virtual environment the interpreter is a link, and its folder is what counts.
        programs=Path(sys.executable).absolute().parent,
        bootstrap=_find_bootstrap(),
        environ=dict(environ),
        volumes={name: folder.absolute() for name, folder in options.volumes.items()},
        gpus=find_gpus(environ),
        node=platform.node() or "localhost",
    )


def _find_bootstrap() -> Path | None:
    """Return the trainer's start-up folder without importing the trainer: it is another package's code."""
    spec = importlib.util.find_spec(_TRAINER_PACKAGE)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(location) / "bootstrap"
        if folder.is_dir():
            return folder
    return None
