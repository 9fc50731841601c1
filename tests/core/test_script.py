"""The TrainJobs of a command line: a script's, with changes, and a smoke test's."""

from __future__ import annotations

from typing import Any

import pytest

from support.world.jobs import build_job as a_job
from trainjob.api import parse
from trainjob.api.errors import value_at
from trainjob.api.types import count_roles, room_for_name
from trainjob.core.manifests import count_gpus, role_template
from trainjob.core.names import replica_counts
from trainjob.core.script import (
    InvalidOption,
    ScriptJob,
    build_job,
    build_smoke_test,
    is_smoke_test,
    name_from,
    parse_output,
    replace_arguments,
    set_field,
    wants_evaluator,
)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("train.py", "train"),
        ("src/Train_MNIST v2.py", "train-mnist-v2"),
        ("3d-unet.py", "job-3d-unet"),
        ("été.py", "ete"),
        ("训练.py", "job"),
        ("__main__.py", "main"),
        (f"{'x' * 41}-y.py", "x" * 41),
    ],
)
def test_the_name_of_a_script_is_a_valid_name(path: str, name: str) -> None:
    assert name_from(path) == name
    job = parse(build_job(ScriptJob(name=name, command=["python", path])))
    assert len(name) <= room_for_name(count_roles(job.spec))


@pytest.mark.parametrize(
    ("source", "has_one"),
    [
        ("import tensorflow as tf\nimport keras\n", True),
        ("import horovod.tensorflow.keras as hvd\n", False),
        ("def main():\n    from horovod import tensorflow as hvd\n", False),
        ("# import horovod\nimport horovod_tools\nfrom tools import horovod\n", True),
    ],
)
def test_only_a_script_that_imports_horovod_has_no_evaluator_unasked(source: str, has_one: bool) -> None:
    assert wants_evaluator(None, source) is has_one
    assert wants_evaluator(True, source) is True
    assert wants_evaluator(False, source) is False


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("claim:training", {"claim": {"claimName": "training"}}),
        ("size:10Gi", {"claim": {"size": "10Gi"}}),
        ("nfs:nfs.example.com:/exports/a", {"nfs": {"server": "nfs.example.com", "path": "/exports/a"}}),
        ("nfs:fd00::1:/exports", {"nfs": {"server": "fd00::1", "path": "/exports"}}),
        ("gs://bucket/a", {"uri": "gs://bucket/a"}),
    ],
)
def test_an_output(text: str, output: dict[str, Any]) -> None:
    assert parse_output(text) == output
    parse(build_job(ScriptJob(name="a", command=["python", "a.py"], output=output)))


@pytest.mark.parametrize(
    "text", ["training", "claim:", "size:much", "nfs:server", "nfs::/a", "gs:bucket", ""]
)
def test_no_output(text: str) -> None:
    with pytest.raises(InvalidOption, match="claim:NAME"):
        parse_output(text)


def test_a_job_with_everything() -> None:
    made = build_job(
        ScriptJob(
            name="digits",
            command=["python", "train.py"],
            args=["--epochs", "9"],
            workers=4,
            evaluator=False,
            gpus=1,
            image="acme/tf:1",
            queue="research",
            env={"SEED": "1"},
            cpu="2",
            memory="4Gi",
        )
    )
    job = parse(made)
    assert job.metadata.labels == {"kueue.x-k8s.io/queue-name": "research"}
    assert replica_counts(job.spec) == {"worker": 4}
    assert count_gpus(role_template(job.spec, "worker")) == 1
    assert made["spec"]["template"]["spec"]["containers"] == [
        {
            "name": "trainer",
            "image": "acme/tf:1",
            "command": ["python", "train.py"],
            "args": ["--epochs", "9"],
            "env": [{"name": "SEED", "value": "1"}],
            "resources": {
                "requests": {"cpu": "2", "memory": "4Gi"},
                "limits": {"memory": "4Gi", "nvidia.com/gpu": "1"},
            },
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
    ]


def test_the_least_job() -> None:
    made = build_job(ScriptJob(name="digits", command=["python", "train.py"]))
    job = parse(made)
    assert replica_counts(job.spec) == {"worker": 1, "evaluator": 1}
    assert set(made["spec"]["template"]["spec"]["containers"][0]) == {"name", "command", "securityContext"}
    made["spec"]["output"]["claim"]["claimName"] = "other"
    assert build_job(ScriptJob(name="a", command=["a"]))["spec"]["output"] != made["spec"]["output"]


# Fields that a command line sets, and arguments that it replaces.


POD = ("spec", "template", "spec")


@pytest.mark.parametrize(
    ("assignment", "path", "value"),
    [
        ("spec.worker.replicas=4", ("spec", "worker", "replicas"), 4),
        ("spec.suspend=true", ("spec", "suspend"), True),
        ("metadata.name=a=b", ("metadata", "name"), "a=b"),
        ("metadata.labels.team=1", ("metadata", "labels", "team"), 1),
        ('metadata.labels.team="1"', ("metadata", "labels", "team"), "1"),
        ("metadata.labels[example.com/team]=a", ("metadata", "labels", "example.com/team"), "a"),
        ("spec.template.spec.containers[0].image=b:2", (*POD, "containers", 0, "image"), "b:2"),
        ("spec.template.spec.containers[trainer].image=b:2", (*POD, "containers", 0, "image"), "b:2"),
        ("spec.template.spec.containers[0].command=[python, a.py]", (*POD, "containers", 0, "command"),
         ["python", "a.py"]),
        ("spec.template.spec.nodeSelector.pool=12:30", (*POD, "nodeSelector", "pool"), "12:30"),
        ("spec.worker.replicas=", ("spec", "worker", "replicas"), None),
        ("spec.worker=null", ("spec", "worker"), None),
        ("spec.template.spec.containers[0]=~", (*POD, "containers"), []),
    ],
)  # fmt: skip
def test_a_field_is_set(assignment: str, path: tuple[str | int, ...], value: Any) -> None:
    job = a_job()
    set_field(job, assignment)
    assert value_at(job, *path) == value


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("spec.worker.replicas", "is not FIELD=VALUE, such as spec.worker.replicas=4"),
        ("=4", "is not FIELD=VALUE"),
        ("spec..worker=4", "is not FIELD=VALUE"),
        ("spec.worker.replicas=[4", "is not valid YAML"),
        ("spec.worker.replicas.number=4", "spec.worker.replicas.number: 2 has no field 'number'"),
        ("spec.template.spec.containers[1].image=a", r"there is no \[1\]; the list has 1 item: trainer"),
        ("spec.template.spec.containers.image=a", r"there is no \[image\]; the list has 1 item"),
    ],
)
def test_a_field_that_cant_be_set(assignment: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        set_field(a_job(workers=2), assignment)


def test_arguments_are_those_of_every_training_container() -> None:
    job = a_job()
    template = {"spec": {"containers": [{"name": "proxy"}, {"name": "trainer", "args": ["--old"]}]}}
    job["spec"]["evaluator"] = {"template": template}
    replace_arguments(job, ["--epochs", "9"])
    assert value_at(job, *POD, "containers", 0, "args") == ["--epochs", "9"]
    assert template["spec"]["containers"] == [
        {"name": "proxy"},
        {"name": "trainer", "args": ["--epochs", "9"]},
    ]


# Smoke tests.


@pytest.mark.parametrize(
    ("name", "digits", "expected"),
    [
        ("digits", "", "digits-smoke"),
        ("digits", "1a2b", "digits-smoke-1a2b"),
        ("x" * 42, "1a2b", f"{'x' * 31}-smoke-1a2b"),
        (f"{'x' * 30}-{'y' * 11}", "1a2b", f"{'x' * 30}-smoke-1a2b"),
    ],
)
def test_a_smoke_test_is_a_job_of_its_own(name: str, digits: str, expected: str) -> None:
    job = a_job(name=name, evaluator=True, output={"claim": {"claimName": "training"}, "resume": "Never"})
    set_field(job, "spec.template.spec.containers[trainer].env=[{name: TRAIN_SMOKE, value: 'no'}, {name: A}]")
    pod = {"containers": [{"name": "trainer", "command": ["a"]}, {"name": "b"}]}
    job["spec"]["evaluator"] = {"template": {"spec": pod}}
    test = build_smoke_test(job, parse(job).spec, digits)
    spec = parse(test).spec
    assert test["metadata"]["name"] == expected
    assert (spec.max_restarts, spec.ttl_seconds_after_finished, spec.output.resume) == (0, 3600, "Auto")
    smoke = {"name": "TRAIN_SMOKE", "value": "true"}
    assert value_at(test, *POD, "containers", 0, "env") == [{"name": "A"}, smoke]
    own = value_at(test, "spec", "evaluator", "template", "spec", "containers")
    assert own == [{"name": "trainer", "command": ["a"], "env": [smoke]}, {"name": "b"}]
    assert (is_smoke_test(job["spec"]), is_smoke_test(test["spec"])) == (False, True)
