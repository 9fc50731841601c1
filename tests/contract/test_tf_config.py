"""What the operator writes into TF_CONFIG is what TensorFlow and the trainer read out of it."""

from __future__ import annotations

import json

import pytest
import tensorflow as tf

from support.world.jobs import build_job
from trainjob.api import parse
from trainjob.core.names import Replica, address, build_tf_config, desired_replicas
from trainjob_trainer import Task

SIZES = pytest.mark.parametrize("workers", [1, 2, 16])
EVALUATOR = pytest.mark.parametrize("evaluator", [True, False])


@SIZES
@EVALUATOR
def test_tensorflows_own_resolver_reads_it(
    workers: int, evaluator: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = parse(build_job(workers=workers, evaluator=evaluator))
    for replica in desired_replicas(job.spec):
        monkeypatch.setenv("TF_CONFIG", build_tf_config(job, replica))
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        assert (resolver.task_type, resolver.task_id) == (replica.role, replica.index)
        spec = resolver.cluster_spec()
        assert spec.num_tasks("worker") == workers
        assert spec.task_address(replica.role, replica.index) == address(job, replica)


@SIZES
@EVALUATOR
def test_the_trainer_reads_it(workers: int, evaluator: bool) -> None:
    job = parse(build_job(workers=workers, evaluator=evaluator))
    for replica in desired_replicas(job.spec):
        task = Task.from_environment({"TF_CONFIG": build_tf_config(job, replica)})
        assert (task.type, task.index, task.replica) == (replica.role, replica.index, replica.name)
        assert task.num_workers == workers
        assert task.address == address(job, replica)
        assert task.is_writer == (replica == Replica("worker", 0))
        assert task.is_evaluator == (replica.role == "evaluator")


def test_a_chief_and_parameter_servers_are_read() -> None:
    job = parse(build_job(chief={}, ps={"replicas": 2}, evaluator=False))
    tasks = [
        Task.from_environment({"TF_CONFIG": build_tf_config(job, r)}) for r in desired_replicas(job.spec)
    ]
    assert [t.replica for t in tasks] == ["chief-0", "worker-0", "worker-1", "ps-0", "ps-1"]
    assert [t.is_writer for t in tasks] == [True, False, False, False, False]


def test_it_is_one_line_of_json() -> None:
    text = build_tf_config(parse(build_job()), Replica("worker", 0))
    assert "\n" not in text
    assert set(json.loads(text)) == {"cluster", "task"}
