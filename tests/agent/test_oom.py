"""The kernel's counter of processes killed for want of memory, as containers see it."""

from pathlib import Path

import pytest

from trainjob_trainer.agent.cgroup import OomCounter

MOUNT = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"

LAYOUTS = {
    "v2, a namespace of its own": (
        "0::/\n",
        "30 23 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n",
        "sys/fs/cgroup/memory.events",
    ),
    "v2, as the host sees it": (
        "0::/kubepods/pod1/abc\n",
        "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/kubepods/pod1/abc/memory.events",
    ),
    "v1, mounted from the container's cgroup": (
        "11:memory:/kubepods/pod1/abc\n10:cpu,cpuacct:/kubepods/pod1/abc\n0::/\n",
        MOUNT + "36 31 0:32 /kubepods/pod1/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
        "sys/fs/cgroup/memory/memory.oom_control",
    ),
    "v1, as the host sees it": (
        "4:memory:/process/1\n",
        MOUNT + "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n",
        "sys/fs/cgroup/memory/process/1/memory.oom_control",
    ),
    "v1 memory beside v2": (
        "9:memory:/a\n1:name=systemd:/a\n0::/a\n",
        "30 23 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "31 23 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
        "sys/fs/cgroup/memory/a/memory.oom_control",
    ),
    "a folder with a space": (
        "0::/\n",
        "30 23 0:26 / /sys/fs/cgroup\\040two rw - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup two/memory.events",
    ),
    "a path of another namespace": (
        "0::/../../pod1/abc\n",
        "30 23 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/memory.events",
    ),
    "no /proc: the usual place, v2": (None, None, "sys/fs/cgroup/memory.events"),
    "no /proc: the usual place, v1": (None, None, "sys/fs/cgroup/memory/memory.oom_control"),
}


@pytest.mark.parametrize(("groups", "mounts", "place"), LAYOUTS.values(), ids=LAYOUTS)
def test_the_containers_own_counter_is_found(
    tmp_path: Path, groups: str | None, mounts: str | None, place: str
) -> None:
    for name, text in (("cgroup", groups), ("mountinfo", mounts)):
        if text is not None:
            write(tmp_path / "proc/self" / name, text)
    write(tmp_path / place, events(2))
    counter = OomCounter(tmp_path)
    assert not counter.changed()
    write(tmp_path / place, events(3))
    assert counter.changed()
    assert counter.changed()
    counter.mark()
    assert not counter.changed()


@pytest.mark.parametrize(
    "text", [None, "", "oom 1\n", "oom_kill many\n", "oom_kill_disable 0\nunder_oom 0\n"]
)
def test_without_a_counter_nothing_is_claimed(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        write(tmp_path / "sys/fs/cgroup/memory.events", text)
    counter = OomCounter(tmp_path)
    write(tmp_path / "sys/fs/cgroup/memory.events", events(5))
    assert not counter.changed()


@pytest.mark.parametrize(
    ("name", "limit", "text", "expected"),
    [
        ("memory.events", "memory.max", "100663296\n", 100663296),
        ("memory.events", "memory.max", "max\n", None),
        ("memory/memory.oom_control", "memory/memory.limit_in_bytes", "100663296\n", 100663296),
        ("memory/memory.oom_control", "memory/elsewhere", "1\n", None),
        ("elsewhere", "memory.max", "1\n", None),
    ],
)
def test_the_containers_limit(tmp_path: Path, name: str, limit: str, text: str, expected: int | None) -> None:
    write(tmp_path / "sys/fs/cgroup" / name, events(1))
    write(tmp_path / "sys/fs/cgroup" / limit, text)
    assert OomCounter(tmp_path).limit() == expected


def test_a_counter_that_disappears_claims_nothing(tmp_path: Path) -> None:
    file = tmp_path / "sys/fs/cgroup/memory.events"
    write(file, events(1))
    counter = OomCounter(tmp_path)
    file.unlink()
    assert not counter.changed()


def events(kills: int) -> str:
    return f"low 0\nhigh 0\nmax 12\noom 9\noom_kill {kills}\noom_group_kill 0\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")
