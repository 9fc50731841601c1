"""Shared storage that a template mounts in the container that trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainjob.api.paths import objects_at
from trainjob.convert.templates import trainer_of


@dataclass(frozen=True)
class SharedMount:
    """A volume that several pods can write to, as a template mounts it.

    Attributes:
        source: what `spec.output` says for it: `(("claim", (("claimName", "training"),)))`.
        mount_path: where it is mounted, without a slash at the end.
    """

    source: tuple[str, tuple[tuple[str, str], ...]]
    mount_path: str

    @property
    def title(self) -> str:
        """The volume as it may stand in a sentence."""
        kind, fields = self.source
        return f"{'claim' if kind == 'claim' else 'NFS folder'} {':'.join(value for _, value in fields)}"

    def as_output(self) -> dict[str, Any]:
        """Return the fields of `spec.output`."""
        kind, fields = self.source
        return {kind: dict(fields), "mountPath": self.mount_path}


def shared_mounts(template: Mapping[str, Any]) -> Iterator[tuple[int, SharedMount]]:
    """Yield index and content of each mount that is whole, writable and shared."""
    volumes = {str(volume.get("name")): volume for _, volume in objects_at(template, "spec", "volumes")}
    for index, mount in objects_at(trainer_of(template), "volumeMounts"):
        source = _source(volumes.get(str(mount.get("name")), {}))
        path = mount.get("mountPath")
        plain = {key for key, value in mount.items() if value} == {"name", "mountPath"}
        if source and plain and isinstance(path, str) and is_output_path(path):
            yield index, SharedMount(source, path.rstrip("/"))


def mount_paths(template: Mapping[str, Any]) -> tuple[str, ...]:
    """Return where the container that trains has something mounted, without slashes at the end."""
    mounts = objects_at(trainer_of(template), "volumeMounts")
    return tuple(str(mount.get("mountPath")).rstrip("/") for _, mount in mounts)


def remove_mount(template: dict[str, Any], wanted: SharedMount) -> None:
    """Take the mount away, and the volume unless something else mounts it."""
    container = trainer_of(template)
    found = [index for index, mount in shared_mounts(template) if mount == wanted]
    if container is None or not found:
        return
    names = {str(container["volumeMounts"][index]["name"]) for index in found}
    _keep(container, "volumeMounts", [m for i, m in enumerate(container["volumeMounts"]) if i not in found])
    pod = template["spec"]
    used = {
        str(mount.get("name"))
        for kind in ("containers", "initContainers")
        for _, other in objects_at(pod, kind)
        for _, mount in objects_at(other, "volumeMounts")
    }
    unused = names - used
    _keep(
        pod,
        "volumes",
        [v for v in pod["volumes"] if not isinstance(v, dict) or str(v.get("name")) not in unused],
    )


def is_output_path(path: str) -> bool:
    """Tell whether `spec.output.mountPath` may have this value."""
    return path.startswith("/") and bool(path.strip("/")) and ":" not in path and ".." not in path.split("/")


def _keep(holder: dict[str, Any], field: str, items: list[Any]) -> None:
    if items:
        holder[field] = items
    else:
        del holder[field]


def _source(volume: Mapping[str, Any]) -> tuple[str, tuple[tuple[str, str], ...]] | None:
    given = {key: value for key, value in volume.items() if key != "name" and value is not None}
    for kind, field, keys in (
        ("claim", "persistentVolumeClaim", ("claimName",)),
        ("nfs", "nfs", ("server", "path")),
    ):
        source = given.get(field)
        if given.keys() != {field} or not isinstance(source, Mapping):
            continue
        if {key for key, value in source.items() if value} == set(keys):
            fields = tuple((key, source[key]) for key in keys)
            if all(isinstance(value, str) for _, value in fields):
                return kind, fields
    return None
