from __future__ import annotations

from typing import Any

import pytest

from support.world.jobs import build_plain_job
from trainjob.api import parse
from trainjob.cli.validate import describe_size
from trainjob.core.manifests import build_pod, count_gpus, is_extended_resource


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({}, 0),
        ({"nvidia.com/gpu": 2}, 2),
        ({"amd.com/gpu": "1", "cpu": 3}, 1),
        ({"nvidia.com/gpu": "many"}, 0),
        ({"nvidia.com/mig-1g.5gb": 2, "nvidia.com/gpu.shared": 1}, 3),
        ({"aliyun.com/gpu-mem": 8, "rdma/hca": 1}, 0),
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


GPU = {"limits": {"nvidia.com/gpu": 1, "memory": "8Gi"}}
CLAIM = {"claims": [{"name": "gpu"}], "limits": {"memory": "8Gi"}}
CPU = {"limits": {"memory": "1Gi"}}
CLAIMS = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}, {"name": "net", "resourceClaimName": "n"}]
HIDDEN = {"CUDA_VISIBLE_DEVICES": "-1", "NVIDIA_VISIBLE_DEVICES": "void"}


def pod_of(role: str, template: dict[str, Any], roles: dict[str, Any], **pod: Any) -> dict[str, Any]:
    raw = build_plain_job(container=template, pod=pod)
    for name, fields in roles.items():
        raw["spec"][name] = {**(raw["spec"].get(name) or {}), **fields}
    built: dict[str, Any] = build_pod(parse(raw), role=role, index=0, incarnation=1, attempt=1)["spec"]
    return built


def hidden(pod: dict[str, Any]) -> dict[str, str]:
    env = next(c for c in pod["containers"] if c["name"] == "trainer")["env"]
    return {v["name"]: v.get("value", "") for v in env if v["name"] in HIDDEN}


@pytest.mark.parametrize(
    ("role", "template", "roles", "expected"),
    [
        ("worker", {"resources": GPU}, {}, {}),
        ("evaluator", {"resources": GPU}, {}, HIDDEN),
        ("evaluator", {"resources": GPU}, {"evaluator": {"resources": CPU}}, HIDDEN),
        ("evaluator", {"resources": GPU}, {"evaluator": {"resources": GPU}}, {}),
        ("evaluator", {"resources": CLAIM}, {}, HIDDEN),
        ("evaluator", {"resources": {"limits": {"nvidia.com/mig-1g.5gb": 1}}}, {}, HIDDEN),
        ("evaluator", {}, {"worker": {"resources": GPU}}, HIDDEN),
        ("ps", {"resources": GPU}, {"chief": {}, "ps": {"resources": CPU}}, HIDDEN),
        ("worker", {}, {"chief": {"resources": GPU}}, HIDDEN),
        # GPUs that come by the node's runtime alone.
        ("worker", {}, {}, {}),
        ("evaluator", {}, {}, {}),
        ("evaluator", {"resources": {"limits": {"rdma/hca": 1}}}, {}, {}),
        # What the user sets holds.
        ("evaluator", {"resources": GPU, "env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]}, {},
         {"CUDA_VISIBLE_DEVICES": "0"}),
        ("evaluator", {"resources": GPU}, {"evaluator": {"env": [{"name": "NVIDIA_VISIBLE_DEVICES"}]}},
         {"NVIDIA_VISIBLE_DEVICES": ""}),
        ("evaluator", {"resources": GPU, "envFrom": [{"secretRef": {"name": "s"}}]}, {}, HIDDEN),
    ],
)  # fmt: skip
def test_a_pod_without_a_device_sees_none_where_the_job_asks_for_gpus(
    role: str, template: dict[str, Any], roles: dict[str, Any], expected: dict[str, str]
) -> None:
    assert hidden(pod_of(role, template, roles, resourceClaims=CLAIMS)) == expected


SIDECAR = [
    {"name": "trainer", "image": "i", "command": ["true"], "resources": CLAIM},
    {"name": "watcher", "image": "i", "resources": {"claims": [{"name": "gpu"}]}},
]


@pytest.mark.parametrize(
    ("role", "roles", "pod", "claims"),
    [
        ("worker", {}, {}, CLAIMS),
        ("evaluator", {}, {}, CLAIMS[1:]),
        ("evaluator", {"evaluator": {"resources": CPU}}, {}, CLAIMS[1:]),
        ("evaluator", {"evaluator": {"resources": CLAIM}}, {}, CLAIMS),
        ("worker", {"worker": {"resources": CPU}}, {}, CLAIMS[1:]),
        ("evaluator", {}, {"containers": SIDECAR}, CLAIMS),
    ],
)
def test_a_claim_to_devices_goes_with_the_last_container_that_names_it(
    role: str, roles: dict[str, Any], pod: dict[str, Any], claims: list[dict[str, Any]]
) -> None:
    built = pod_of(role, {"resources": CLAIM}, roles, resourceClaims=CLAIMS, **pod)
    assert built["resourceClaims"] == claims
    trainer = next(c for c in built["containers"] if c["name"] == "trainer")
    own = roles.get(role, {}).get("resources")
    assert bool(trainer["resources"].get("claims")) is (
        "claims" in own if own is not None else role != "evaluator"
    )


def test_validate_counts_claims_and_parts_of_gpus() -> None:
    for resources in (GPU, CLAIM, {"limits": {"nvidia.com/mig-1g.5gb": "1"}}):
        job = parse(build_plain_job(container={"resources": resources}, pod={"resourceClaims": CLAIMS}))
        assert describe_size(job) == "3 pods, 2 GPUs"
