"""The volumes of a pod as folders of this machine."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainjob.api import BUNDLE_VOLUME, OUTPUT_VOLUME
from trainjob.cluster.local.expansion import expand
from trainjob.cluster.local.place import Place
from trainjob.cluster.local.refusal import CannotRunHere

_NEEDS_CLUSTER = ("configMap", "secret", "projected", "downwardAPI")
_SHARED_BY_NAME = ("nfs", "csi", "ephemeral")


@dataclass(frozen=True)
class VolumeFolder:
    """Where one volume is kept here.

    Attributes:
        note: what its owner should know about it, or None.
        ours: whether it is for us to create; what the user pointed at must be there.
    """

    folder: Path
    note: str | None = None
    ours: bool = True


def resolve_volumes(spec: Mapping[str, Any], place: Place, private: Path) -> dict[str, VolumeFolder]:
    """Return the folder of every volume of a pod, by volume name.

    Args:
        spec: the pod's spec.
        place: this machine.
        private: the pod's own folder, which goes when it goes.

    Raises:
        CannotRunHere: some volumes have no counterpart here, and the caller named no folder for them.
    """
    found: dict[str, VolumeFolder] = {}
    refused: list[str] = []
    for volume in spec.get("volumes") or ():
        try:
            found[volume["name"]] = _resolve(volume, place, private)
        except CannotRunHere as cannot:
            refused += cannot.lines
    if refused:
        raise CannotRunHere(refused)
    return found


def mounted_folders(
    container: Mapping[str, Any], volumes: Mapping[str, VolumeFolder], variables: Mapping[str, str]
) -> dict[str, VolumeFolder]:
    """Return what each mount path of a container is here; `variables` serve its `subPathExpr`s.

    Mounts within mounts need no care: each path maps to its own volume's folder, and the longest path wins.

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


def _resolve(volume: Mapping[str, Any], place: Place, private: Path) -> VolumeFolder:
    name = volume["name"]
    kind = next((key for key in volume if key != "name" and volume[key] is not None), "emptyDir")
    source = volume.get(kind) or {}
    if name in place.volumes:
        return VolumeFolder(place.volumes[name], ours=False)
    if name == BUNDLE_VOLUME and kind == "secret":
        return _bundle(source["secretName"], place)
    if kind == "persistentVolumeClaim":
        return _kept(place.folder / source["claimName"], f"claim {source['claimName']}")
    if kind in _SHARED_BY_NAME:
        return _kept(place.folder / ("output" if name == OUTPUT_VOLUME else name), f"volume {name} ({kind})")
    if kind == "emptyDir":
        return VolumeFolder(private / "volumes" / name)
    if kind == "hostPath":
        return VolumeFolder(Path(source["path"]), ours=False)
    if kind in _NEEDS_CLUSTER and source.get("optional"):
        return VolumeFolder(private / "volumes" / name, f"volume {name} ({kind}) is empty here")
    raise CannotRunHere(
        [f"volume {name} ({kind}) is kept by a cluster: name a folder with --volume {name}=FOLDER"]
    )


def _bundle(secret: str, place: Place) -> VolumeFolder:
    if place.bootstrap is None:
        raise CannotRunHere(
            [
                "the package trainjob-trainer is not installed, which restarts training in place: "
                "install it, or set spec.restartStrategy: Recreate"
            ]
        )
    return VolumeFolder(place.bundles / secret, ours=False)


def _kept(folder: Path, what: str) -> VolumeFolder:
    return VolumeFolder(folder, f"{what} is the folder {folder} here")
