"""GPUs as NVIDIA's driver would tell of them; there is none here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainjob_trainer.reporting.machine import Machine


class FakeNvml:
    """Three GPUs; the handle of each is its number."""

    uuids = ("GPU-a", "GPU-b", "MIG-c")

    def __init__(self, fails: str = "") -> None:
        self.fails = fails

    def nvmlInit(self) -> None:  # noqa: N802 - NVIDIA's name, as the next ones
        if self.fails == "nvmlInit":
            raise RuntimeError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return range(len(self.uuids))[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        return self.uuids.index(uuid)

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> Any:  # noqa: N802
        if self.fails == "nvmlDeviceGetMemoryInfo":
            raise RuntimeError("Unknown Error")
        return SimpleNamespace(used=(gpu + 1) * 10, total=40)

    def nvmlDeviceGetUtilizationRates(self, gpu: int) -> Any:  # noqa: N802
        if self.uuids[gpu].startswith("MIG-"):
            raise RuntimeError("Not Supported")
        return SimpleNamespace(gpu=(gpu + 1) * 25, memory=0)


def figures(visible: str | None = None, fails: str = "") -> dict[str, float]:
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = Machine(env, lambda: FakeNvml(fails)).figures()
    assert found.pop("host_memory_bytes") > 1e6
    return found


FIRST = {"memory_bytes": 10.0, "memory_share": 0.25, "utilization": 0.25}
SECOND = {"memory_bytes": 20.0, "memory_share": 0.5, "utilization": 0.5}
PART = {"memory_bytes": 30.0, "memory_share": 0.75}


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        (None, [FIRST, SECOND, PART]),
        ("1", [SECOND]),
        ("1, 0", [SECOND, FIRST]),
        ("GPU-b,MIG-c", [SECOND, PART]),
        ("0,-1,1", [FIRST]),
        ("", []),
        ("-1", []),
        ("7", []),
        ("GPU-x", []),
    ],
)
def test_the_gpus_that_the_process_sees(visible: str | None, gpus: list[dict[str, float]]) -> None:
    expected = {f"gpu_{n}/{name}": value for n, gpu in enumerate(gpus) for name, value in gpu.items()}
    assert figures(visible) == expected


def test_what_fails_is_left_out() -> None:
    assert figures("0", fails="nvmlInit") == {}
    assert figures("0", fails="nvmlDeviceGetMemoryInfo") == {"gpu_0/utilization": 0.25}


def test_without_the_package_there_is_nothing_to_tell() -> None:
    def missing() -> Any:
        raise ModuleNotFoundError("No module named 'pynvml'")

    assert set(Machine({}, missing).figures()) == {"host_memory_bytes"}
