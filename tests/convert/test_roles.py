from typing import Any

import pytest

from support.golden import Golden
from support.world.tfjobs import build_replicas, build_tfjob, notes_of, refusals_of, spec_of
from trainjob.api import parse
from trainjob.convert import convert
from trainjob.core.names import replica_counts

R = build_replicas()


def counts_of(tfjob: dict[str, Any]) -> dict[str, int]:
    return replica_counts(parse(convert(tfjob).manifest).spec)


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ({"Worker": R}, {"worker": 1}),
        ({"Worker": build_replicas(4)}, {"worker": 4}),
        ({"Worker": build_replicas(2), "Evaluator": R}, {"worker": 2, "evaluator": 1}),
        ({"Worker": build_replicas(2), "Evaluator": build_replicas(0)}, {"worker": 2}),
        ({"Worker": build_replicas(2), "Evaluator": build_replicas(3)}, {"worker": 2, "evaluator": 1}),
        ({"Chief": R, "Worker": build_replicas(2)}, {"chief": 1, "worker": 2}),
        ({"Master": R, "Worker": build_replicas(2)}, {"chief": 1, "worker": 2}),
        ({"Chief": build_replicas(2), "Worker": R}, {"chief": 1, "worker": 1}),
        ({"Chief": R, "Worker": build_replicas(0)}, {"worker": 1}),
        ({"Chief": R}, {"worker": 1}),
        ({"Master": R, "Evaluator": R}, {"worker": 1, "evaluator": 1}),
        ({"Chief": R, "PS": build_replicas(2), "Worker": R}, {"chief": 1, "worker": 1, "ps": 2}),
        ({"PS": R, "Worker": build_replicas(3)}, {"chief": 1, "worker": 3, "ps": 1}),
        ({"PS": build_replicas(0), "Worker": build_replicas(3)}, {"worker": 3}),
        ({"Chief": R, "PS": R}, {"chief": 1, "worker": 1, "ps": 1}),
        (
            {"worker": R, "ps": R, "CHIEF": R, "eValuator": R},
            {"chief": 1, "worker": 1, "ps": 1, "evaluator": 1},
        ),
    ],
)
def test_every_shape_of_a_job(replicas: dict[str, Any], expected: dict[str, int]) -> None:
    assert counts_of(build_tfjob(replicas)) == expected


@pytest.mark.parametrize(
    ("replicas", "path"),
    [
        ({"Master": R, "Worker": R}, "Master"),
        ({"Chief": R}, "Chief"),
        ({"PS": R, "Worker": R}, "PS"),
        ({"Chief": R, "PS": R}, "Chief"),
        ({"Chief": build_replicas(3), "Worker": R}, "Chief.replicas"),
        ({"Worker": R, "Evaluator": build_replicas(2)}, "Evaluator.replicas"),
        ({"Worker": R, "PS": build_replicas(0)}, "PS"),
    ],
)
def test_a_role_that_changes_is_noted(replicas: dict[str, Any], path: str, golden: Golden) -> None:
    golden(notes_of(build_tfjob(replicas))[f"spec.tfReplicaSpecs.{path}"])


def test_a_chief_keeps_its_name_beside_workers() -> None:
    """TensorFlow takes a chief under MultiWorkerMirroredStrategy, too: nothing changes for the script."""
    tfjob = build_tfjob({"Chief": R, "Worker": build_replicas(2)})
    assert not any("TF_CONFIG" in note for note in notes_of(tfjob).values())


@pytest.mark.parametrize(
    ("replicas", "path"),
    [
        (None, "spec.tfReplicaSpecs"),
        ([], "spec.tfReplicaSpecs"),
        ({}, "spec.tfReplicaSpecs"),
        ({"PS": R}, "spec.tfReplicaSpecs"),
        ({"Worker": R, "Scheduler": R}, "spec.tfReplicaSpecs.Scheduler"),
        ({"Worker": R, "Workers": R}, "spec.tfReplicaSpecs.Workers"),
        ({"Worker": R, "Chief": R, "Master": R}, "spec.tfReplicaSpecs.Master"),
        ({"Worker": R, "worker": R}, "spec.tfReplicaSpecs.worker"),
        ({"Worker": None}, "spec.tfReplicaSpecs.Worker"),
        ({"Worker": {"replicas": 2}}, "spec.tfReplicaSpecs.Worker.template"),
        ({"Worker": {"template": []}}, "spec.tfReplicaSpecs.Worker.template"),
        ({"Worker": build_replicas(0)}, "spec.tfReplicaSpecs.Worker.replicas"),
        ({"Worker": {**R, "replicas": "2"}}, "spec.tfReplicaSpecs.Worker.replicas"),
        ({"Worker": {**R, "replicas": True}}, "spec.tfReplicaSpecs.Worker.replicas"),
        ({"Worker": R, "Chief": {**R, "replicas": True}}, "spec.tfReplicaSpecs.Chief.replicas"),
    ],
)
def test_what_makes_no_trainjob(replicas: Any, path: str, golden: Golden) -> None:
    tfjob = build_tfjob()
    tfjob["spec"]["tfReplicaSpecs"] = replicas
    golden(refusals_of(tfjob)[path])


def test_the_form_of_v1alpha1_is_named(golden: Golden) -> None:
    tfjob = build_tfjob(replicaSpecs=[{"tfReplicaType": "MASTER"}])
    del tfjob["spec"]["tfReplicaSpecs"]
    golden(refusals_of(tfjob)["spec.tfReplicaSpecs"])


def test_an_unknown_field_of_replicas_is_noted(golden: Golden) -> None:
    tfjob = build_tfjob({"Worker": {**R, "minReplicas": 1}})
    golden(notes_of(tfjob)["spec.tfReplicaSpecs.Worker.minReplicas"])


def test_short_things_come_first() -> None:
    tfjob = build_tfjob({"Evaluator": R, "PS": R, "Worker": R, "Chief": R}, runPolicy={"suspend": True})
    assert list(spec_of(tfjob)) == [
        *("worker", "chief", "ps", "evaluator", "output", "suspend", "maxRestarts", "template")
    ]
