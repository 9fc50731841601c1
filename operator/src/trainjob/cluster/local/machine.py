"""Looks at this machine, once, for the translation of pods."""

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainjob.cluster.agents import BundleMissing, find_package
from trainjob.cluster.local.gpus import find_gpus
from trainjob.cluster.local.place import Place


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """What the caller of `trainjob run` may choose.

    Attributes:
        folder: where claims and other volumes become folders.
        job_folder: the folder of the job's file, in which its commands are started.
        volumes: folders for volumes that only a cluster has, by volume name.
        base_port: the first replica's port for TensorFlow, the next one's is one higher; None for any that
            are free.
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
    try:
        return find_package() / "bootstrap"
    except BundleMissing:
        return None
