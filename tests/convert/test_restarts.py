from typing import Any

import pytest

from support.golden import Golden
from support.world.tfjobs import build_replicas, build_tfjob, notes_of, refusals_of, spec_of

WORKER = "spec.tfReplicaSpecs.Worker.restartPolicy"


@pytest.mark.parametrize(
    ("policy", "limit", "expected"),
    [
        ("OnFailure", 5, 5),
        ("OnFailure", None, 3),
        ("OnFailure", 0, 0),
        ("Always", 5, 5),
        ("Always", None, 3),
        ("ExitCode", 5, 5),
        ("ExitCode", None, 3),
        ("Never", None, 0),
        ("Never", 5, 0),
        (None, None, 0),
        ("", None, 0),
    ],
)
def test_every_policy(policy: str | None, limit: int | None, expected: int, golden: Golden) -> None:
    run_policy = {} if limit is None else {"backoffLimit": limit}
    tfjob = build_tfjob({"Worker": build_replicas(2, policy)}, runPolicy=run_policy)
    assert spec_of(tfjob)["maxRestarts"] == expected
    golden(notes_of(tfjob)[WORKER])


@pytest.mark.parametrize("policy", ["Never", None])
def test_a_limit_without_effect_is_noted(policy: str | None) -> None:
    tfjob = build_tfjob({"Worker": build_replicas(2, policy)}, runPolicy={"backoffLimit": 5})
    assert "left out" in notes_of(tfjob)["spec.runPolicy.backoffLimit"]


def test_one_role_that_restarts_is_enough(golden: Golden) -> None:
    tfjob = build_tfjob({"Chief": build_replicas(policy="Never"), "Worker": build_replicas(2)})
    assert spec_of(tfjob)["maxRestarts"] == 3
    golden(notes_of(tfjob)["spec.tfReplicaSpecs.Chief.restartPolicy"])


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never", "ExitCode"])
def test_the_evaluator_does_not_decide(policy: str, golden: Golden) -> None:
    tfjob = build_tfjob(
        {"Worker": build_replicas(2, "Never"), "Evaluator": build_replicas(policy=policy)},
    )
    assert spec_of(tfjob)["maxRestarts"] == 0
    golden(notes_of(tfjob)["spec.tfReplicaSpecs.Evaluator.restartPolicy"])


@pytest.mark.parametrize("policy", ["onFailure", 3, ["Never"], {}])
def test_a_policy_that_there_is_not(policy: Any, golden: Golden) -> None:
    for role in ("Worker", "Evaluator"):
        replicas = {"Worker": build_replicas(2), role: {**build_replicas(), "restartPolicy": policy}}
        golden(refusals_of(build_tfjob(replicas))[f"spec.tfReplicaSpecs.{role}.restartPolicy"])


@pytest.mark.parametrize("limit", [-1, "3", 2.5])
def test_a_limit_that_can_not_be(limit: Any, golden: Golden) -> None:
    golden(refusals_of(build_tfjob(runPolicy={"backoffLimit": limit}))["spec.runPolicy.backoffLimit"])


NO_COMMAND: dict[str, Any] = {"container": {"command": None}}


@pytest.mark.parametrize("command", [None, []])
def test_without_a_command_pods_are_replaced(command: Any, golden: Golden) -> None:
    tfjob = build_tfjob({"Worker": build_replicas(2, container={"command": command})})
    assert spec_of(tfjob)["restartStrategy"] == "Recreate"
    golden(notes_of(tfjob)["spec.tfReplicaSpecs.Worker.template.spec.containers[0].command"])


def test_with_a_command_training_restarts_in_place() -> None:
    assert "restartStrategy" not in spec_of(build_tfjob())
    assert not any(path.endswith(".command") for path in notes_of(build_tfjob()))


@pytest.mark.parametrize("role", ["Chief", "PS", "Evaluator"])
def test_one_role_without_a_command_is_enough(role: str) -> None:
    replicas = {"Chief": build_replicas(), "Worker": build_replicas(2), role: build_replicas(**NO_COMMAND)}
    tfjob = build_tfjob(replicas)
    assert spec_of(tfjob)["restartStrategy"] == "Recreate"
    noted = [path for path in notes_of(tfjob) if path.endswith(".command")]
    assert noted == [f"spec.tfReplicaSpecs.{role}.template.spec.containers[0].command"]


def test_only_the_container_that_trains_needs_a_command() -> None:
    pod = {
        "containers": [
            {"name": "proxy", "image": "p"},
            {"name": "tensorflow", "image": "t", "command": ["a"]},
        ]
    }
    assert "restartStrategy" not in spec_of(build_tfjob({"Worker": build_replicas(2, pod=pod)}))


def test_a_role_that_is_left_out_needs_none() -> None:
    replicas = {"Worker": build_replicas(2), "Evaluator": build_replicas(0, **NO_COMMAND)}
    assert "restartStrategy" not in spec_of(build_tfjob(replicas))
