from typing import Any

import pytest

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
    ("replicas", "path", "words"),
    [
        ({"Master": R, "Worker": R}, "Master", 'TF_CONFIG calls it "chief" instead of "master"'),
        ({"Chief": R}, "Chief", "TF_CONFIG calls it worker 0 instead of chief 0"),
        ({"PS": R, "Worker": R}, "PS", "spec.chief is added with the template of Worker"),
        ({"Chief": R, "PS": R}, "Chief", "becomes spec.chief and one worker"),
        (
            {"Chief": build_replicas(3), "Worker": R},
            "Chief.replicas",
            "becomes 1: a TrainJob has one chief, not 3",
        ),
        ({"Worker": R, "Evaluator": build_replicas(2)}, "Evaluator.replicas", "becomes 1"),
        ({"Worker": R, "PS": build_replicas(0)}, "PS", "left out: it has no replicas"),
    ],
)
def test_a_role_that_changes_is_noted(replicas: dict[str, Any], path: str, words: str) -> None:
    assert words in notes_of(build_tfjob(replicas))[f"spec.tfReplicaSpecs.{path}"]


def test_a_chief_keeps_its_name_beside_workers() -> None:
    """TensorFlow takes a chief under MultiWorkerMirroredStrategy, too: nothing changes for the script."""
    tfjob = build_tfjob({"Chief": R, "Worker": build_replicas(2)})
    assert not any("TF_CONFIG" in note for note in notes_of(tfjob).values())


@pytest.mark.parametrize(
    ("replicas", "path", "words"),
    [
        (None, "spec.tfReplicaSpecs", "required"),
        ([], "spec.tfReplicaSpecs", "must be an object, got a list"),
        ({}, "spec.tfReplicaSpecs", "has neither Worker nor Chief"),
        ({"PS": R}, "spec.tfReplicaSpecs", "has neither Worker nor Chief"),
        ({"Worker": R, "Scheduler": R}, "spec.tfReplicaSpecs.Scheduler", "the replica types are"),
        ({"Worker": R, "Workers": R}, "spec.tfReplicaSpecs.Workers", 'did you mean "Worker"?'),
        ({"Worker": R, "Chief": R, "Master": R}, "spec.tfReplicaSpecs.Master", "a second chief beside Chief"),
        ({"Worker": R, "worker": R}, "spec.tfReplicaSpecs.worker", "a second worker beside Worker"),
        ({"Worker": None}, "spec.tfReplicaSpecs.Worker", "must be an object, got null"),
        ({"Worker": {"replicas": 2}}, "spec.tfReplicaSpecs.Worker.template", "required"),
        (
            {"Worker": {"template": []}},
            "spec.tfReplicaSpecs.Worker.template",
            "must be an object, got a list",
        ),
        ({"Worker": build_replicas(0)}, "spec.tfReplicaSpecs.Worker.replicas", "must be at least 1, got 0"),
        ({"Worker": {**R, "replicas": "2"}}, "spec.tfReplicaSpecs.Worker.replicas", "must be an integer"),
        ({"Worker": {**R, "replicas": True}}, "spec.tfReplicaSpecs.Worker.replicas", "must be an integer"),
        ({"Worker": R, "Chief": {**R, "replicas": True}}, "spec.tfReplicaSpecs.Chief.replicas", "an integer"),
    ],
)
def test_what_makes_no_trainjob(replicas: Any, path: str, words: str) -> None:
    tfjob = build_tfjob()
    tfjob["spec"]["tfReplicaSpecs"] = replicas
    assert words in refusals_of(tfjob)[path]


def test_the_form_of_v1alpha1_is_named() -> None:
    tfjob = build_tfjob(replicaSpecs=[{"tfReplicaType": "MASTER"}])
    del tfjob["spec"]["tfReplicaSpecs"]
    assert "write it as tfReplicaSpecs first" in refusals_of(tfjob)["spec.tfReplicaSpecs"]


def test_an_unknown_field_of_replicas_is_noted() -> None:
    tfjob = build_tfjob({"Worker": {**R, "minReplicas": 1}})
    assert "no field of" in notes_of(tfjob)["spec.tfReplicaSpecs.Worker.minReplicas"]


def test_short_things_come_first() -> None:
    tfjob = build_tfjob({"Evaluator": R, "PS": R, "Worker": R, "Chief": R}, runPolicy={"suspend": True})
    assert list(spec_of(tfjob)) == [
        *("worker", "chief", "ps", "evaluator", "output", "suspend", "maxRestarts", "template")
    ]
