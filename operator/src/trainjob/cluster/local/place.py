"""What the translation of a pod must know about this machine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Place:
    """One machine, one caller, one run; the pure half of the local cluster sees nothing else of them.

    Attributes:
        folder: where claims and other volumes become folders.
        job_folder: the folder of the job's file, in which its commands are started.
        programs: the folder of the running interpreter, searched first, so that `python` is this one.
        bootstrap: the folder that prepares an unmodified script, or None when the trainer is not installed.
        environ: the caller's environment.
        volumes: folders that the caller named for volumes, by volume name.
        gpus: the GPUs of this machine.
        gpus_of: which of them each hostname gets.
        is_folder: whether a path is a folder here.
        node: the name of this machine.
        bundles: where agents lie, each in a folder of its Secret's name.
    """

    folder: Path
    job_folder: Path
    programs: Path
    bootstrap: Path | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    volumes: Mapping[str, Path] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    gpus_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    is_folder: Callable[[Path], bool] = Path.is_dir
    node: str = "localhost"
    bundles: Path = Path("bundles")
