"""The TrainJob that a script stands for."""

from __future__ import annotations

from typing import Any

import pytest

from trainjob.api import parse
from trainjob.api.types import count_roles, room_for_name
from trainjob.core.manifests import count_gpus, role_template
from trainjob.core.names import replica_counts
from trainjob.core.script import InvalidOption, ScriptJob, build_job, name_from, parse_output


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
    ("text", "output"),
    [
        ("claim:training", {"claim": {"claimName": "training"}}),
        ("size:10Gi", {"claim": {"size": "10Gi"}}),
        ("nfs:nfs.example.com:/exports/a", {"nfs": {"server": "nfs.example.com", "path": "/exports/a"}}),
        ("nfs:fd00::1:/exports", {"nfs": {"server": "fd00::1", "path": "/exports"}}),
    ],
)
def test_an_output(text: str, output: dict[str, Any]) -> None:
    assert parse_output(text) == output
    parse(build_job(ScriptJob(name="a", command=["python", "a.py"], output=output)))


@pytest.mark.parametrize(
    "text", ["training", "claim:", "size:much", "nfs:server", "nfs::/a", "gs://bucket/a", ""]
)
def test_no_output(text: str) -> None:
    with pytest.raises(InvalidOption, match="claim:NAME"):
        parse_output(text)


def test_a_job_with_everything() -> None:
    code = {"configMap": "digits-code-1", "digest": "0" * 64}
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
            code=code,
        )
    )
    job = parse(made)
    assert job.metadata.labels == {"kueue.x-k8s.io/queue-name": "research"}
    assert replica_counts(job.spec) == {"worker": 4}
    assert count_gpus(role_template(job.spec, "worker")) == 1
    assert made["spec"]["code"] == code
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
