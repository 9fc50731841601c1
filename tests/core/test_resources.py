from __future__ import annotations

from typing import Any

import pytest

from trainjob.core.manifests import count_gpus, is_extended_resource


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({}, 0),
        ({"nvidia.com/gpu": 2}, 2),
        ({"amd.com/gpu": "1", "cpu": 3}, 1),
        ({"nvidia.com/gpu": "many"}, 0),
        ("many", 0),
    ],
)
def test_gpus_of_a_pod(limits: Any, count: int) -> None:
    assert count_gpus({"spec": {"containers": [{}, {"resources": {"limits": limits}}]}}) == count


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("nvidia.com/gpu", True),
        ("cpu", False),
        ("hugepages-2Mi", False),
        ("attachable.kubernetes.io/x", False),
    ],
)
def test_devices_have_a_domain(name: str, device: bool) -> None:
    assert is_extended_resource(name) is device
