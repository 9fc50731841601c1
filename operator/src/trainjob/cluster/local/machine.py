"""The resources of this machine for a job's pods: ports, GPUs, folders for volumes, and the output."""

import platform
import random
import re
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trainjob.api import BUNDLE_VOLUME, OUTPUT_VOLUME, STATE_VOLUME
from trainjob.cluster.agents.bundle import PACKAGE

# Requests that this machine can't fulfil, as messages for the user.


class CannotRunHere(Exception):
    """The job requests something that a single machine does not have.

    Attributes:
        lines: one sentence each: what is requested, and what to do about it.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("; ".join(self.lines))


# References to variables, as Kubernetes expands them in `env`, `command` and `args`.


_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Expand `$(NAME)`; `$$` stands for one `$`, and a reference to an unknown name stays as it is.

    The rules are those of the Kubernetes API for `env[].value`: an unclosed reference or a lone `$` is text.
    """

    def _value(match: re.Match[str]) -> str:
        name = match.group(1)
        return "$" if name is None else variables.get(name, match.group())

    return _REFERENCE.sub(_value, text)


# Facts about this machine for the translation of pods.


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


# The GPUs of this machine, and their assignment to pods.


_DEVICE = re.compile(r"nvidia(\d+)")


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


# The survey of this machine.


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """The options of `trainjob run`.

    Attributes:
        folder: the parent folder of claims and other volumes.
        job_folder: the folder of the job's file, in which its commands are started.
        volumes: folders for volumes that only a cluster has, by volume name.
        base_port: the first replica's port for TensorFlow, each next one is one higher; None for any free
            ports.
    """

    folder: Path = Path("runs")
    job_folder: Path = Path()
    volumes: Mapping[str, Path] = field(default_factory=dict)
    base_port: int | None = None


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
    )


# Two ports of this machine for each hostname of a job, fixed for the whole run.


# Below the range of ports for outgoing connections: a replica's port must still be free when it starts a
# second time, while its peers connect.
_LOWEST, _HIGHEST = 15000, 32000

# More than a job has replicas: so many ports from a base port on are reserved for them.
_LARGEST_JOB = 5000


@dataclass(frozen=True)
class ReplicaPorts:
    """The ports of one replica.

    Attributes:
        tensorflow: for its peers' TensorFlow.
        agent: for the other agents and the controller.
    """

    tensorflow: int
    agent: int


def is_free(port: int) -> bool:
    """Return whether a server can listen on `port`; connections that linger after a restart don't count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError:
            return False
    return True


class PortBook:
    """Assigns every hostname its ports, which never change.

    Args:
        base_port: the first hostname's port for TensorFlow, each next one is one higher; None for any free
            ports. Agents always get any free ports.
        chance: the random source of ports to try.
        free: returns whether a port is free.
    """

    def __init__(
        self,
        base_port: int | None = None,
        chance: random.Random | None = None,
        free: Callable[[int], bool] = is_free,
    ) -> None:
        self._base_port = base_port
        self._chance = chance or random.Random()  # noqa: S311 - nothing secret in a port
        self._free = free
        self._ports: dict[str, ReplicaPorts] = {}
        self._taken: set[int] = set()

    @property
    def ports(self) -> Mapping[str, ReplicaPorts]:
        """Return the ports assigned so far, by hostname."""
        return MappingProxyType(self._ports)

    def give(self, hostnames: Iterable[str]) -> None:
        """Assign ports to each hostname that has none yet.

        Raises:
            OSError: no free port was found.
        """
        for hostname in hostnames:
            if hostname not in self._ports:
                self._ports[hostname] = ReplicaPorts(tensorflow=self._next(), agent=self._any_free())

    def _next(self) -> int:
        if self._base_port is not None:
            return self._base_port + len(self._ports)
        return self._any_free()

    def _any_free(self) -> int:
        for _ in range(1000):
            port = self._chance.randrange(_LOWEST, _HIGHEST)
            if port not in self._taken and not self._is_reserved(port) and self._free(port):
                self._taken.add(port)
                return port
        raise OSError(f"found no free port between {_LOWEST} and {_HIGHEST}")

    def _is_reserved(self, port: int) -> bool:
        return self._base_port is not None and 0 <= port - self._base_port < _LARGEST_JOB


def agent_port_in_use_message(port: int) -> str:
    """Return the message for an agent's port in use, which the user can't choose."""
    return (
        f"port {port} of this machine, chosen for an agent, is in use by another program by now "
        f"(`ss -ltnp sport = :{port}` names it): start again, and others are chosen"
    )


def port_in_use_message(port: int, base_port: int | None) -> str:
    """Return the message for a TensorFlow port in use, with what to do about it."""
    way_out = (
        "choose others with --base-port"
        if base_port is None
        else f"choose another --base-port than {base_port}"
    )
    return (
        f"port {port} of this machine is in use by another program: end it "
        f"(`ss -ltnp sport = :{port}` names it), or {way_out}"
    )


# The volumes of a pod as folders of this machine.


_NEEDS_CLUSTER = ("configMap", "secret", "projected", "downwardAPI")
_SHARED_BY_NAME = ("nfs", "csi", "ephemeral")


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


def resolve_volumes(spec: Mapping[str, Any], machine: Machine, private: Path) -> dict[str, VolumeFolder]:
    """Return the folder of every volume of a pod, by volume name.

    Args:
        spec: the pod's spec.
        machine: this machine.
        private: the pod's own folder, which is removed with the pod.

    Raises:
        CannotRunHere: a volume has no counterpart here, and the caller named no folder for it.
    """
    found: dict[str, VolumeFolder] = {}
    refused: list[str] = []
    for volume in spec.get("volumes") or ():
        try:
            found[volume["name"]] = _resolve(volume, machine, private)
        except CannotRunHere as cannot:
            refused += cannot.lines
    if refused:
        raise CannotRunHere(refused)
    return found


def check_volume_names(machine: Machine, specs: Iterable[Mapping[str, Any]]) -> None:
    """Compare the caller's folders for volumes with the volumes of a job's pods.

    Raises:
        CannotRunHere: no pod has a volume of that name.
    """
    names = {volume["name"]: None for spec in specs for volume in spec.get("volumes") or ()}
    known = [name for name in names if name not in (BUNDLE_VOLUME, STATE_VOLUME)]
    unknown = [name for name in machine.volumes if name not in known]
    if unknown:
        raise CannotRunHere(
            f"--volume {name}: no pod of the job has that volume; there are {', '.join(known)}"
            for name in unknown
        )


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


def _resolve(volume: Mapping[str, Any], machine: Machine, private: Path) -> VolumeFolder:
    name = volume["name"]
    kind = next((key for key in volume if key != "name" and volume[key] is not None), "emptyDir")
    source = volume.get(kind) or {}
    if name in machine.volumes:
        return VolumeFolder(machine.volumes[name], ours=False)
    if name == BUNDLE_VOLUME and kind == "secret":
        return VolumeFolder(machine.bundles / source["secretName"], ours=False)
    if kind == "persistentVolumeClaim":
        return _kept(machine.folder / source["claimName"], f"claim {source['claimName']}")
    if kind in _SHARED_BY_NAME:
        return _kept(
            machine.folder / ("output" if name == OUTPUT_VOLUME else name), f"volume {name} ({kind})"
        )
    if kind == "emptyDir":
        return VolumeFolder(private / "volumes" / name)
    if kind == "hostPath":
        return VolumeFolder(Path(source["path"]), ours=False)
    if kind in _NEEDS_CLUSTER and source.get("optional"):
        return VolumeFolder(private / "volumes" / name, f"volume {name} ({kind}) is empty here")
    raise CannotRunHere(
        [f"volume {name} ({kind}) is kept by a cluster: name a folder with --volume {name}=FOLDER"]
    )


def _kept(folder: Path, what: str) -> VolumeFolder:
    return VolumeFolder(folder, f"{what} is the folder {folder} here")
