from pathlib import Path

import pytest

from trainjob.cluster.local.machine import find_gpus, share_gpus


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [("0,2", ("0", "2")), ("", ()), ("-1", ()), (" 1 , -1, 0", ("1",)), ("GPU-8932f937", ("GPU-8932f937",))],
)
def test_the_callers_choice_counts(chosen: str, expected: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    assert find_gpus({"CUDA_VISIBLE_DEVICES": chosen}, tmp_path) == expected


def test_devices_are_counted(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert find_gpus({}, tmp_path) == ("0", "2", "10")
    assert find_gpus({}, tmp_path / "none") == ()


def test_gpus_are_shared_out_in_order() -> None:
    assert share_gpus({"a": 1, "b": 2, "e": 0}, ("0", "1", "2", "3")) == {
        "a": ("0",),
        "b": ("1", "2"),
        "e": (),
    }


def test_too_few_gpus_are_given_to_no_replica() -> None:
    assert share_gpus({"a": 1, "b": 1}, ("0",)) == {}


def test_hostnames_keep_what_they_have() -> None:
    held = {"a": ("1",), "gone": ("0",)}
    assert share_gpus({"a": 1, "b": 1}, ("0", "1"), held) == {"a": ("1",), "b": ("0",)}
