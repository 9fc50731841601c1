"""Threads by the container's limit of processors, cgroup v1 and v2."""

from pathlib import Path

import pytest

from trainjob_trainer.agent.cgroup import processor_limit, thread_variables

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n"
V1_MOUNT = "36 31 0:32 /kubepods/pod1 /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")


def container_v2(root: Path, limit: str) -> Path:
    write(root / "proc/self/cgroup", "0::/\n")
    write(root / "proc/self/mountinfo", V2_MOUNT)
    write(root / "sys/fs/cgroup/cpu.max", limit)
    return root


def container_v1(root: Path, quota: str, period: str = "100000\n") -> Path:
    write(root / "proc/self/cgroup", "4:memory:/kubepods/pod1\n3:cpu,cpuacct:/kubepods/pod1\n")
    write(root / "proc/self/mountinfo", V1_MOUNT)
    folder = root / "sys/fs/cgroup/cpu,cpuacct"
    write(folder / "cpu.cfs_quota_us", quota)
    write(folder / "cpu.cfs_period_us", period)
    return root


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("200000 100000\n", 2.0),
        ("50000 100000\n", 0.5),
        ("max 100000\n", None),
        ("max\n", None),
        ("nonsense\n", None),
        ("0 100000\n", None),
        ("100000 0\n", None),
        ("", None),
    ],
)
def test_the_limit_in_v2(tmp_path: Path, text: str, limit: float | None) -> None:
    assert processor_limit(container_v2(tmp_path, text)) == limit


@pytest.mark.parametrize(
    ("quota", "period", "limit"),
    [("250000\n", "100000\n", 2.5), ("-1\n", "100000\n", None), ("x\n", "100000\n", None), ("1\n", "", None)],
)
def test_the_limit_in_v1(tmp_path: Path, quota: str, period: str, limit: float | None) -> None:
    assert processor_limit(container_v1(tmp_path, quota, period)) == limit


def test_an_unknown_limit_is_none(tmp_path: Path) -> None:
    assert processor_limit(tmp_path) is None
    assert thread_variables({}, root=tmp_path, processors=64) == {}


@pytest.mark.parametrize(
    ("text", "processors", "threads"),
    [
        ("200000 100000", 64, ["2", "2", "2"]),
        ("350000 100000", 64, ["4", "4", "4"]),
        ("50000 100000", 64, ["1", "2", "1"]),
        ("200000 100000", 2, []),
        ("800000 100000", 4, []),
        ("max 100000", 64, []),
    ],
)
def test_as_many_threads_as_processors(
    tmp_path: Path, text: str, processors: int, threads: list[str]
) -> None:
    variables = thread_variables({}, root=container_v2(tmp_path, text), processors=processors)
    assert list(variables.values()) == threads


def test_what_the_user_has_set_stays(tmp_path: Path) -> None:
    root = container_v2(tmp_path, "200000 100000")
    env = {"TF_NUM_INTRAOP_THREADS": "7", "OMP_NUM_THREADS": "3"}
    assert thread_variables(env, root=root, processors=64) == {"TF_NUM_INTEROP_THREADS": "2"}
