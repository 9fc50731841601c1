"""The resources of this machine for a job's pods: ports, GPUs, folders for volumes, and the output."""

import platform
import random
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from trainjob.api import BUNDLE_VOLUME, OUTPUT_VOLUME
from trainjob.cluster.agents.bundle import PACKAGE
from trainjob_trainer.contract.processes import can_listen

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")
_DEVICE = re.compile(r"nvidia(\d+)")

# Below the range of ports for outgoing connections: a replica's port must still be free when it starts a
# second time, while its peers connect.
_LOWEST, _HIGHEST = 15000, 32000

# More than a job has replicas: so many ports from a base port on are reserved for them.
_LARGEST_JOB = 5000

Network = Literal["own", "host"]

_NEEDS_CLUSTER = ("configMap", "secret", "projected", "downwardAPI")
_SHARED_BY_NAME = ("nfs", "csi", "ephemeral")


class CannotRunHere(Exception):
    """The job requests something that a single machine does not have.

    Attributes:
        lines: one sentence each: what is requested, and what to do about it.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("; ".join(self.lines))


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Expand `$(NAME)`; `$$` stands for one `$`, and a reference to an unknown name stays as it is.

    The rules are those of the Kubernetes API for `env[].value`: an unclosed reference or a lone `$` is text.
    """

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        return "$" if name is None else variables.get(name, match.group())

    return _REFERENCE.sub(value, text)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One machine, one caller and one run: the only facts about them that the translation of pods uses.

    Attributes:
        folder: the parent folder of claims and other volumes.
        job_folder: the folder of the job's file, in which its commands are started.
        programs: the folder of the running interpreter, first on `PATH` so that `python` is this one.
        bootstrap: the folder that prepares an unmodified script.
        environ: the caller's environment.
        volumes: the caller's folders for volumes, by volume name.
        gpus: the GPUs of this machine.
        gpus_of: the GPUs of each hostname.
        is_folder: returns whether a path is a folder here.
        node: the name of this machine.
        bundles: the parent folder of agents, each in a folder with its Secret's name.
        instead: the folder of this run, by the job's folder, if it has one with a number.
        network: as in `LocalOptions`.
    """

    folder: Path
    job_folder: Path
    programs: Path
    bootstrap: Path = PACKAGE / "bootstrap"
    environ: Mapping[str, str] = field(default_factory=dict)
    volumes: Mapping[str, Path] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    gpus_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    is_folder: Callable[[Path], bool] = Path.is_dir
    node: str = "localhost"
    bundles: Path = Path("bundles")
    instead: Mapping[str, Path] = field(default_factory=dict)
    network: Network | None = None


def find_gpus(environ: Mapping[str, str], devices: Path = Path("/dev")) -> tuple[str, ...]:
    """Return the GPUs that the caller may use, as `CUDA_VISIBLE_DEVICES` names them."""
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        named = [part.strip() for part in chosen.split(",") if part.strip()]
        # CUDA itself stops at the first unknown name; -1 means none.
        return tuple(named[: named.index("-1")] if "-1" in named else named)
    try:
        numbers = sorted(int(m.group(1)) for d in devices.iterdir() if (m := _DEVICE.fullmatch(d.name)))
    except OSError:
        return ()
    return tuple(str(number) for number in numbers)


def share_gpus(
    wanted: Mapping[str, int],
    present: tuple[str, ...],
    held: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> dict[str, tuple[str, ...]]:
    """Return the GPUs that each hostname requests, or none at all if there are too few.

    Workers with and without a GPU can't train together, and two can't share one for their collectives.

    Args:
        wanted: how many each hostname requests.
        present: the GPUs of this machine.
        held: those that hostnames have already, and keep if they are among `wanted`.
    """
    if sum(wanted.values()) > len(present):
        return {}
    shares = {hostname: held[hostname] for hostname in wanted if hostname in held}
    free = [gpu for gpu in present if not any(gpu in share for share in shares.values())]
    for hostname, count in wanted.items():
        if hostname not in shares:
            shares[hostname], free = tuple(free[:count]), free[count:]
    return {hostname: shares[hostname] for hostname in wanted}


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """The options of `trainjob run`.

    Attributes:
        folder: the parent folder of claims and other volumes.
        job_folder: the folder of the job's file, in which its commands are started.
        volumes: folders for volumes that only a cluster has, by volume name.
        base_port: the first replica's port for TensorFlow, each next one is one higher; None for any free
            ports.
        network: `own` for a network in which several training replicas reach each other alone, `host` for
            this machine's; None: their own, unless the script is likely to need another or it can't be had.
    """

    folder: Path = Path("runs")
    job_folder: Path = Path()
    volumes: Mapping[str, Path] = field(default_factory=dict)
    base_port: int | None = None
    network: Network | None = None


def survey(options: LocalOptions, environ: Mapping[str, str]) -> Machine:
    """Return the facts about this machine for the translation of pods."""
    return Machine(
        folder=options.folder.absolute(),
        job_folder=options.job_folder.absolute(),
        # Not resolved: in a virtual environment the interpreter is a link, and the link's folder counts.
        programs=Path(sys.executable).absolute().parent,
        environ=dict(environ),
        volumes={name: folder.absolute() for name, folder in options.volumes.items()},
        gpus=find_gpus(environ),
        node=platform.node() or "localhost",
        network=options.network,
    )


@dataclass(frozen=True)
class ReplicaPorts:
    """The ports of one replica.

    Attributes:
        tensorflow: for its peers' TensorFlow.
        agent: for the other agents and the controller.
    """

    tensorflow: int
    agent: int


class PortBook:
    """Assigns every hostname its ports, which never change.

    Args:
        base_port: the first hostname's port for TensorFlow, each next one is one higher; None for any free
            ports. Agents always get any free ports.
        chance: the random source of ports to try.
        free: returns whether a port is free.

    Attributes:
        ports: assigned so far, by hostname.
    """

    def __init__(
        self,
        base_port: int | None = None,
        chance: random.Random | None = None,
        free: Callable[[int], bool] = can_listen,
    ) -> None:
        self._base_port = base_port
        self._chance = chance or random.Random()  # noqa: S311 - nothing secret in a port
        self._free = free
        self.ports: dict[str, ReplicaPorts] = {}
        self._taken: set[int] = set()

    def give(self, hostnames: Iterable[str]) -> None:
        """Assign ports to each hostname that has none yet.

        Raises:
            OSError: no free port was found.
        """
        for hostname in hostnames:
            if hostname not in self.ports:
                base = self._base_port
                tensorflow = self._any_free() if base is None else base + len(self.ports)
                self.ports[hostname] = ReplicaPorts(tensorflow, agent=self._any_free())

    def _any_free(self) -> int:
        base = self._base_port
        for _ in range(1000):
            port = self._chance.randrange(_LOWEST, _HIGHEST)
            is_reserved = base is not None and 0 <= port - base < _LARGEST_JOB
            if port not in self._taken and not is_reserved and self._free(port):
                self._taken.add(port)
                return port
        raise OSError(f"found no free port between {_LOWEST} and {_HIGHEST}")


@dataclass(frozen=True)
class VolumeFolder:
    """The folder of one volume on this machine.

    Attributes:
        note: a message about it for the user, or None.
        ours: whether the run creates it; a folder that the user named must exist.
    """

    folder: Path
    note: str | None = None
    ours: bool = True


def resolve_volumes(
    spec: Mapping[str, Any], machine: Machine, private: Path, refused: list[str]
) -> dict[str, VolumeFolder]:
    """Return the folder of every volume of a pod, by volume name.

    Args:
        spec: the pod's spec.
        machine: this machine.
        private: the pod's own folder, which is removed with the pod.
        refused: gets a line for each volume that has no counterpart here, and for which no folder was named.
    """
    folders: dict[str, VolumeFolder] = {}
    for volume in spec.get("volumes") or ():
        name = volume["name"]
        kind = next((key for key in volume if key != "name" and volume[key] is not None), "emptyDir")
        source = volume.get(kind) or {}
        if name in machine.volumes:
            folders[name] = VolumeFolder(machine.volumes[name], ours=False)
        elif name == BUNDLE_VOLUME and kind == "secret":
            folders[name] = VolumeFolder(machine.bundles / source["secretName"], ours=False)
        elif kind == "persistentVolumeClaim":
            folder = machine.folder / source["claimName"]
            folders[name] = VolumeFolder(folder, f"claim {source['claimName']} is the folder {folder} here")
        elif kind in _SHARED_BY_NAME:
            folder = machine.folder / ("output" if name == OUTPUT_VOLUME else name)
            folders[name] = VolumeFolder(folder, f"volume {name} ({kind}) is the folder {folder} here")
        elif kind == "emptyDir":
            folders[name] = VolumeFolder(private / "volumes" / name)
        elif kind == "hostPath":
            folders[name] = VolumeFolder(Path(source["path"]), ours=False)
        elif kind in _NEEDS_CLUSTER and source.get("optional"):
            folders[name] = VolumeFolder(private / "volumes" / name, f"volume {name} ({kind}) is empty here")
        else:
            refused.append(
                f"volume {name} ({kind}) exists only in a cluster: give a folder for it with --volume "
                f"{name}=FOLDER"
            )
    return folders


def mounted_folders(
    container: Mapping[str, Any], volumes: Mapping[str, VolumeFolder], variables: Mapping[str, str]
) -> dict[str, VolumeFolder]:
    """Return the folder of each mount path of a container; `variables` expand its `subPathExpr`s.

    Nested mounts need no special case: each path maps to its own volume's folder, and the longest path wins.

    Raises:
        CannotRunHere: a mount names a volume that the pod does not have.
    """
    found: dict[str, VolumeFolder] = {}
    for mount in container.get("volumeMounts") or ():
        name = mount["name"]
        if name not in volumes:
            raise CannotRunHere([f"volumeMounts: there is no volume {name!r}: add it under volumes"])
        inner = mount.get("subPath") or expand(mount.get("subPathExpr") or "", variables)
        found[mount["mountPath"]] = replace(volumes[name], folder=volumes[name].folder / inner)
    return found
