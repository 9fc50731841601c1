"""What the operator puts into a pod's environment is what the trainer takes out of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from support.world.jobs import build_job
from trainjob.api import parse
from trainjob.core.manifests import build_pod
from trainjob.core.names import Replica, address, build_tf_config, desired_replicas
from trainjob_trainer import Environment, Task, environment
from trainjob_trainer.checkpoint.fence import build_fence
from trainjob_trainer.contract.environment import SETTING, SETTINGS
from trainjob_trainer.environment import Generation


def environment_of(role: str, **job: Any) -> dict[str, str]:
    pod = build_pod(parse(build_job(uid="some-uid", **job)), role=role, index=0, incarnation=2, attempt=2)
    return {v["name"]: v["value"] for v in pod["spec"]["containers"][0]["env"] if "value" in v}


def test_a_workers_folders() -> None:
    variables = environment_of("worker")
    read = Environment.from_environment(variables, Task.from_environment(variables))
    assert (read.name, read.uid, read.attempt) == ("digits", "some-uid", 2)
    assert read.output_dir == Path("/output/digits")
    assert read.checkpoint_dir == Path("/output/digits/checkpoints")
    assert read.log_dir == Path("/output/digits/logs/train")


def test_an_evaluators_folders() -> None:
    variables = environment_of("evaluator")
    read = Environment.from_environment(variables, Task.from_environment(variables))
    assert read.output_dir == Path("/output/digits/evaluator")
    assert read.checkpoint_dir == Path("/output/digits/checkpoints")
    assert read.log_dir == Path("/output/digits/evaluator/logs")


@pytest.mark.parametrize(
    ("strategy", "role", "generation", "has_agent"),
    [
        ("Recreate", "worker", Generation(2, 2), False),
        ("Recreate", "evaluator", None, False),
        # The agent has a new one for each start.
        ("InPlace", "worker", None, True),
        ("InPlace", "evaluator", None, True),
    ],
)
def test_every_start_has_its_generation_and_knows_of_its_agent(
    strategy: str, role: str, generation: Generation | None, *, has_agent: bool
) -> None:
    variables = environment_of(role, restartStrategy=strategy)
    task = Task.from_environment(variables)
    read = Environment.from_environment(variables, task)
    assert (read.generation, read.has_agent) == (generation, has_agent)
    assert (build_fence(task, read) is not None) is (generation is not None)


@pytest.mark.parametrize("role", ["worker", "evaluator"])
def test_the_trainers_defaults_are_laid_out_alike(role: str, tmp_path: Path) -> None:
    """A script that is run by hand below `output` finds its folders where a job would put them."""
    variables = environment_of(role)
    ours = {k: v for k, v in variables.items() if k in ("TF_CONFIG", "TRAINJOB_OUTPUT_DIR")}
    task = Task.from_environment(variables)
    given, default = Environment.from_environment(variables, task), Environment.from_environment(ours, task)
    assert (given.checkpoint_dir, given.log_dir) == (default.checkpoint_dir, default.log_dir)


def test_the_operator_knows_every_setting_that_the_trainer_reads() -> None:
    own = ["gradients", "without", "smoke", "strategy"]
    read = {f"{SETTING}{name.upper()}" for name in [*environment.SETTINGS, *own]}
    assert set(SETTINGS) == read
    sources = "".join(path.read_text() for path in Path(environment.__file__).parent.rglob("*.py"))
    a_constant = "TRAIN_METHODS"
    assert set(re.findall(rf"\b{SETTING}[A-Z_]+\b", sources)) - {a_constant} <= read


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
