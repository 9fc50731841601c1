from __future__ import annotations

from pathlib import Path

import pytest

from trainjob_trainer.checkpoint.fence import Mount, find_mount, listing_delay, mount_delay

MOUNTS = r"""
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
40 22 0:35 / /training rw,relatime shared:20 - nfs4 10.0.0.9:/export rw,vers=4.2,acdirmin=30,acdirmax=45
41 22 0:36 / /training/inner rw master:1 propagate_from:2 - tmpfs tmpfs rw,size=1024k
42 22 0:37 / /with\040space rw - cifs //server/share rw,vers=3.1.1,actimeo=1
43 40 0:38 / /training/twice rw - nfs a:/b rw
44 40 0:39 / /training/twice rw - ceph mon:/ rw
broken
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/training", "nfs4"),
        ("/training/job/checkpoints", "nfs4"),
        ("/training/inner/job", "tmpfs"),
        ("/trainings", "ext4"),
        ("/with space/job", "cifs"),
        ("/training/twice/job", "ceph"),  # what is mounted later covers what was there
    ],
)
def test_a_path_lies_on_the_deepest_mount_above(folder: str, kind: str) -> None:
    mount = find_mount(MOUNTS, Path(folder))

    assert mount is not None
    assert mount.kind == kind


def test_without_a_line_nothing_is_known() -> None:
    assert find_mount("", Path("/training")) is None


@pytest.mark.parametrize(
    ("kind", "options", "seconds"),
    [
        ("ext4", "rw", 0.0),
        ("overlay", "rw", 0.0),
        ("ceph", "rw", 0.0),
        ("nfs", "rw,acdirmax=45", 1.0),
        ("nfs4", "rw", 1.0),
        ("nfs4", "rw,nocto", 60.0),
        ("nfs4", "rw,nocto,acdirmax=45", 45.0),
        ("nfs", "rw,nocto,actimeo=5", 5.0),
        ("nfs", "rw,nocto,noac", 0.0),
        ("cifs", "rw,actimeo=1", 1.0),
        ("smb3", "rw,acregmax=1,acdirmax=30", 30.0),
        ("fuse.gcsfuse", "rw", 5.0),
        ("fuse.mountpoint-s3", "rw", 1.0),
        ("fuse", "rw", 1.0),
        ("virtiofs", "rw", 1.0),
    ],
)
def test_how_long_a_listing_may_be_old(kind: str, options: str, seconds: float) -> None:
    pairs = (option.partition("=") for option in options.split(","))

    assert mount_delay(Mount(kind, {name: value for name, _, value in pairs})) == seconds


def test_this_machines_own_mounts_can_be_read(tmp_path: Path) -> None:
    assert listing_delay(tmp_path) >= 0.0
