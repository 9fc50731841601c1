from __future__ import annotations

import json

import pytest

from support.world.jobs import build_job
from trainjob.api import parse
from trainjob.core.names import Replica, build_tf_config, desired_replicas, training_world


def test_the_documented_form() -> None:
    job = parse(build_job(namespace="ml"))
    assert json.loads(build_tf_config(job, Replica("worker", 1))) == {
        "cluster": {
            "worker": ["digits-worker-0.digits.ml.svc:2222", "digits-worker-1.digits.ml.svc:2222"],
            "evaluator": ["digits-evaluator-0.digits.ml.svc:2222"],
        },
        "task": {"type": "worker", "index": 1},
    }


def test_chief_and_parameter_servers_are_listed() -> None:
    job = parse(build_job(chief={}, ps={"replicas": 2}, evaluator=False))
    cluster = json.loads(build_tf_config(job, Replica("ps", 0)))["cluster"]
    assert {role: len(addresses) for role, addresses in cluster.items()} == {"chief": 1, "worker": 2, "ps": 2}


@pytest.mark.parametrize("workers", [1, 2, 16])
@pytest.mark.parametrize("evaluator", [True, False])
def test_every_task_sees_one_cluster(workers: int, evaluator: bool) -> None:
    job = parse(build_job(workers=workers, evaluator=evaluator))
    configs = [json.loads(build_tf_config(job, r)) for r in desired_replicas(job.spec)]
    assert len(configs) == workers + evaluator
    assert all(config["cluster"] == configs[0]["cluster"] for config in configs)
    assert len({(c["task"]["type"], c["task"]["index"]) for c in configs}) == len(configs)


def test_two_jobs_of_one_name_or_size_have_addresses_of_their_own() -> None:
    jobs = [
        parse(build_job(name=name, namespace=namespace, workers=workers))
        for name in ("a", "b")
        for namespace in ("x", "y")
        for workers in (1, 2)
    ]
    assert len({build_tf_config(job, Replica("worker", 0)) for job in jobs}) == len(jobs)


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"cluster": 1}', '{"cluster": {"worker": 1}}'])
def test_a_foreign_value_has_no_world(text: str) -> None:
    assert training_world(text) is None


def test_the_world_is_what_trains() -> None:
    job = parse(build_job(workers=3))
    assert training_world(build_tf_config(job, Replica("evaluator", 0))) == {"worker": 3}


@pytest.mark.parametrize(
    "text",
    [
        '{"task": {"type": "worker", "index": 0}, "cluster": {"worker": ["a:1"]}}',
        '{"cluster":{"worker":["a:1"]},"x":[1,"task:"],"y":{"z":1,"task":2}}',
    ],
)
def test_a_world_in_another_order_is_read_too(text: str) -> None:
    assert training_world(text) == {"worker": 1}
