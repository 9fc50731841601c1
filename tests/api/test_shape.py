"""What a runner reads of a pod template is there to be read, or refused with its path."""

from typing import Any

import pytest

from support.world.changes import change_job, errors_of

POD = "spec.template.spec"
TRAINER = f"{POD}.containers[0]"


@pytest.mark.parametrize(
    ("path", "value", "field", "message"),
    [
        (f"{POD}.volumes", [{"name": "v", "persistentVolumeClaim": {}}],
         f"{POD}.volumes[0].persistentVolumeClaim.claimName", "required"),
        (f"{POD}.volumes", [{"name": "v", "hostPath": {"path": ""}}],
         f"{POD}.volumes[0].hostPath.path", "required"),
        (f"{POD}.volumes", [{"name": "v", "secret": "x"}],
         f"{POD}.volumes[0].secret", 'must be an object, got "x"'),
        (f"{TRAINER}.volumeMounts", [{"name": "v"}],
         f"{TRAINER}.volumeMounts[0].mountPath", "required"),
        (f"{TRAINER}.volumeMounts", [{"name": "v", "mountPath": "/v", "subPathExpr": 1}],
         f"{TRAINER}.volumeMounts[0].subPathExpr", "must be a string, got 1; put it in quotes"),
        (f"{TRAINER}.env", [{"name": "A", "valueFrom": {"secretKeyRef": "x"}}],
         f"{TRAINER}.env[0].valueFrom.secretKeyRef", 'must be an object, got "x"'),
        (f"{TRAINER}.envFrom", [{"secretRef": "x"}],
         f"{TRAINER}.envFrom[0].secretRef", 'must be an object, got "x"'),
        (f"{TRAINER}.env", [{"name": "A=B", "value": "c"}],
         f"{TRAINER}.env[0].name", 'must not hold "="; got "A=B"'),
        ("spec.worker.env", [{"name": "A=B", "value": "c"}],
         "spec.worker.env[0].name", 'must not hold "="; got "A=B"'),
        ("spec.worker.env", [{"name": "A" * 1025, "value": "c"}],
         "spec.worker.env[0].name", "must have at most 1024 characters, got 1025"),
    ],
)  # fmt: skip
def test_what_is_read_must_be_there(path: str, value: Any, field: str, message: str) -> None:
    assert errors_of(change_job({path: value})) == {field: [message]}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{POD}.volumes", [{"name": "v", "hostPath": None}]),
        (f"{POD}.volumes", [{"name": "v", "gcePersistentDisk": {"pdName": "x"}}]),
        (f"{TRAINER}.env", [{"name": "A", "valueFrom": None}]),
        (f"{TRAINER}.envFrom", [{"prefix": "P_", "configMapRef": {"name": "c"}}]),
    ],
)
def test_what_kubernetes_takes_is_left_alone(path: str, value: Any) -> None:
    assert errors_of(change_job({path: value})) == {}
