from typing import Any

import pytest

from support.golden import Golden
from support.world.tfjobs import build_claim_mount, build_replicas, build_tfjob, notes_of, spec_of
from trainjob.convert import PLACEHOLDER_CLAIM

MOUNT = build_claim_mount()
MOUNTS = "spec.tfReplicaSpecs.Worker.template.spec.containers[0].volumeMounts"


def two_claims() -> dict[str, Any]:
    data, results = build_claim_mount("data", "/data"), build_claim_mount()
    return {
        "container": {"volumeMounts": [m for e in (data, results) for m in e["container"]["volumeMounts"]]},
        "pod": {"volumes": [v for e in (data, results) for v in e["pod"]["volumes"]]},
    }


def test_the_claim_of_all_workers_is_the_output(golden: Golden) -> None:
    tfjob = build_tfjob({"Worker": build_replicas(2, **MOUNT)})
    spec = spec_of(tfjob)
    assert spec["output"] == {"claim": {"claimName": "results"}, "mountPath": "/results"}
    assert "volumes" not in spec["template"]["spec"]
    assert "volumeMounts" not in spec["template"]["spec"]["containers"][0]
    golden(notes_of(tfjob)[f"{MOUNTS}[0]"])


def test_a_folder_of_an_nfs_server_may_be_it() -> None:
    nfs = {"server": "nfs.example.com", "path": "/exports"}
    entry = {"container": MOUNT["container"], "pod": {"volumes": [{"name": "results", "nfs": nfs}]}}
    spec = spec_of(build_tfjob({"Worker": build_replicas(2, **entry)}))
    assert spec["output"] == {"nfs": nfs, "mountPath": "/results"}


def test_it_is_removed_from_every_role(golden: Golden) -> None:
    replicas = {role: build_replicas(**MOUNT) for role in ("Chief", "Worker", "PS", "Evaluator")}
    tfjob = build_tfjob(replicas)
    spec = spec_of(tfjob)
    assert (spec["chief"], spec["ps"], spec["evaluator"]) == ({}, {"replicas": 1}, {})
    golden(notes_of(tfjob)[f"{MOUNTS}[0]"])


def test_servers_and_evaluators_need_not_mount_it() -> None:
    replicas = {"Chief": build_replicas(**MOUNT), "Worker": build_replicas(**MOUNT), "PS": build_replicas()}
    assert spec_of(build_tfjob(replicas))["output"]["claim"] == {"claimName": "results"}


def test_a_volume_that_something_else_mounts_stays() -> None:
    mount = {"name": "results", "mountPath": "/out"}
    pod = {
        **MOUNT["pod"],
        "containers": [
            {
                "name": "tensorflow",
                "image": "t",
                "volumeMounts": [{"name": "results", "mountPath": "/results"}],
            },
            {"name": "shipper", "image": "s", "volumeMounts": [mount]},
        ],
    }
    made = spec_of(build_tfjob({"Worker": build_replicas(2, pod=pod)}))["template"]["spec"]
    assert made["volumes"] == MOUNT["pod"]["volumes"]
    assert made["containers"][1]["volumeMounts"] == [mount]
    assert "volumeMounts" not in made["containers"][0]


@pytest.mark.parametrize(
    "worker",
    [
        {},
        build_claim_mount(readOnly=True),
        build_claim_mount(subPath="scans"),
        build_claim_mount(path="relative"),
        build_claim_mount(path="/"),
        build_claim_mount(path="/a/../b"),
        {"container": MOUNT["container"], "pod": {"volumes": [{"name": "results", "emptyDir": {}}]}},
        {"container": MOUNT["container"]},
        {
            "container": MOUNT["container"],
            "pod": {
                "volumes": [
                    {"name": "results", "persistentVolumeClaim": {"claimName": "results", "readOnly": True}}
                ]
            },
        },
        two_claims(),
    ],
)
def test_where_it_is_unknown_a_claim_has_to_be_named(worker: dict[str, Any]) -> None:
    tfjob = build_tfjob({"Worker": build_replicas(2, **worker)})
    spec = spec_of(tfjob)
    assert spec["output"] == {"claim": {"claimName": PLACEHOLDER_CLAIM}}
    note = notes_of(tfjob)["spec.tfReplicaSpecs"]
    assert PLACEHOLDER_CLAIM in note
    assert "--claim" in note
    kept = spec["template"]["spec"]["containers"][0].get("volumeMounts")
    assert kept == worker.get("container", {}).get("volumeMounts")


@pytest.mark.parametrize(
    "chief",
    [{}, build_claim_mount("other"), build_claim_mount(path="/elsewhere"), build_claim_mount(readOnly=True)],
)
def test_chief_and_workers_must_agree(chief: dict[str, Any]) -> None:
    tfjob = build_tfjob({"Chief": build_replicas(**chief), "Worker": build_replicas(2, **MOUNT)})
    assert spec_of(tfjob)["output"]["claim"]["claimName"] == PLACEHOLDER_CLAIM


def test_another_role_must_not_have_its_place() -> None:
    tfjob = build_tfjob(
        {"Worker": build_replicas(**MOUNT), "Evaluator": build_replicas(**build_claim_mount("other"))}
    )
    assert spec_of(tfjob)["output"]["claim"]["claimName"] == PLACEHOLDER_CLAIM


def test_several_that_it_could_be_are_named(golden: Golden) -> None:
    notes = notes_of(build_tfjob({"Worker": build_replicas(2, **two_claims())}))
    golden(notes["spec.tfReplicaSpecs"])


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ("results", {"claim": {"claimName": "results"}, "mountPath": "/results"}),
        ("training", {"claim": {"claimName": "training"}}),
    ],
)
def test_a_claim_that_is_named(claim: str, expected: dict[str, Any]) -> None:
    tfjob = build_tfjob({"Worker": build_replicas(2, **two_claims())})
    assert spec_of(tfjob, claim=claim)["output"] == expected
    assert "spec.tfReplicaSpecs" not in notes_of(tfjob, claim=claim)


@pytest.mark.parametrize(
    ("taken", "expected"),
    [(["/output"], "/trainjob-output"), (["/output/", "/trainjob-output"], "/trainjob-output-2")],
)
def test_it_is_mounted_where_nothing_is(taken: list[str], expected: str) -> None:
    volume = {"name": "v", "emptyDir": {}}
    entry = {
        "container": {"volumeMounts": [{"name": "v", "mountPath": path} for path in taken]},
        "pod": {"volumes": [volume]},
    }
    assert spec_of(build_tfjob({"Worker": build_replicas(2, **entry)}))["output"]["mountPath"] == expected
