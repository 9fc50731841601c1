"""How long a listing of a folder may show an earlier state of it, by the file system that it lies on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_MOUNTINFO = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")
_DIRECTORY_CACHE_SECONDS = 60.0
"""The default of `acdirmax`: nfs(5)."""
_TICK_SECONDS = 1.0
"""A change within one tick of the server's clock may not be told from the one before: NFS goes by times."""


@dataclass(frozen=True)
class Mount:
    """One line of /proc/self/mountinfo.

    Attributes:
        kind: the file system's type, such as `nfs4`.
        options: of the mount and the file system; those without a value are empty.
    """

    kind: str
    options: Mapping[str, str]


def listing_delay(folder: Path) -> float:
    """Seconds after which a folder that is opened anew shows all that was changed there before."""
    try:
        text = _MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return 0.0
    mount = find_mount(text, folder)
    return mount_delay(mount) if mount is not None else 0.0


def find_mount(mountinfo: str, folder: Path) -> Mount | None:
    """The mount that a path lies on; the format is that of proc_pid_mountinfo(5).

    Args:
        mountinfo: the text of /proc/self/mountinfo.
        folder: an absolute path without links.
    """
    found: tuple[int, Mount] | None = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        place, rest = before.split(), after.split()
        if len(place) < 6 or len(rest) < 3:
            continue
        point = PurePosixPath(_OCTAL.sub(lambda match: chr(int(match[1], 8)), place[4]))
        depth = len(point.parts)
        if folder.is_relative_to(point) and (found is None or depth >= found[0]):
            pairs = (option.partition("=") for option in f"{place[5]},{rest[2]}".split(","))
            found = depth, Mount(rest[0], {name: value for name, _, value in pairs})
    return found[1] if found is not None else None


def mount_delay(mount: Mount) -> float:
    """Seconds after which a folder that is opened anew is current.

    On NFS opening is enough, unless `nocto` says otherwise: then the attributes have to expire. SMB's expire
    after `actimeo`, GCS FUSE's negative entries after 5 s, other FUSE drivers' after 1 s by default. A local
    disk needs none; nor does CephFS, whose clients share one coherent cache.
    """
    options = mount.options
    if mount.kind in ("nfs", "nfs4"):
        if "nocto" not in options:
            return _TICK_SECONDS
        return _seconds(options, ("acdirmax", "actimeo"), _DIRECTORY_CACHE_SECONDS)
    if mount.kind in ("cifs", "smb3", "smbfs"):
        return _seconds(options, ("acdirmax", "actimeo"), _TICK_SECONDS)
    if mount.kind == "fuse.gcsfuse":
        return 5.0
    if mount.kind.startswith("fuse.") or mount.kind in ("fuse", "9p", "virtiofs"):
        return _TICK_SECONDS
    return 0.0


def _seconds(options: Mapping[str, str], names: tuple[str, ...], default: float) -> float:
    if "noac" in options:
        return 0.0
    for name in names:
        if options.get(name, "").isdigit():
            return float(options[name])
    return default
