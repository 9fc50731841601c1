"""Fields that a command line sets, and arguments that it replaces."""

from __future__ import annotations

from typing import Any

import pytest

from support.world.jobs import build_job
from trainjob.api.errors import value_at
from trainjob.core.overrides import InvalidOverride, replace_arguments, set_field

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
    job = build_job()
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
    with pytest.raises(InvalidOverride, match=message):
        set_field(build_job(workers=2), assignment)


def test_arguments_are_those_of_every_training_container() -> None:
    job = build_job()
    template = {"spec": {"containers": [{"name": "proxy"}, {"name": "trainer", "args": ["--old"]}]}}
    job["spec"]["evaluator"] = {"template": template}
    replace_arguments(job, ["--epochs", "9"])
    assert value_at(job, *POD, "containers", 0, "args") == ["--epochs", "9"]
    assert template["spec"]["containers"] == [
        {"name": "proxy"},
        {"name": "trainer", "args": ["--epochs", "9"]},
    ]
