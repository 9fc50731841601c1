"""What commands refuse and the API server would, too, once it creates pods; and what they leave to it."""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes
import pytest
from kubernetes.client import models

from support.world.changes import REMOVED, change_job
from trainjob.api import InvalidTrainJob, parse, parse_strictly
from trainjob.api.strict import _SCALARS

POD = "spec.template.spec"
TRAINER = f"{POD}.containers[0]"
ALONE = {"spec.worker.replicas": 1, "spec.evaluator.replicas": 0}
SCHEMA = json.loads(pkgutil.get_data("trainjob.api", "pod_schema.json") or b"")

REFUSED: tuple[tuple[str, Any, str, str], ...] = (
    # names of fields
    (f"{TRAINER}.evn", [], "", 'unknown field of Container in Kubernetes 1.37; did you mean "env"?'),
    (f"{TRAINER}.readinessprobe", {}, "", 'did you mean "readinessProbe"?'),
    (f"{TRAINER}.volumes", [], "", f"; it is a field of {POD}: indent it less"),
    (f"{TRAINER}.maxRestarts", 1, "", "; it is a field of spec: indent it less"),
    (f"{TRAINER}.limits", {}, "", '; it is a field of "resources": put it below that'),
    ("spec.template.containers", [], "", '; it is a field of "spec": put it below that'),
    (f"{POD}.someday", 1, "", "unknown field of PodSpec in Kubernetes 1.37; if your cluster is newer"),
    (f"{POD}.volumes", [{"name": "a", "configmap": {}}], "[0].configmap", 'did you mean "configMap"?'),
    # types
    (f"{TRAINER}.stdin", "yes", "", 'must be true or false, got "yes"'),
    (f"{TRAINER}.imagePullPolicy", "always", "", 'got "always"; did you mean "Always"?'),
    (f"{TRAINER}.imagePullPolicy", 1, "", "must be one of"),
    (f"{TRAINER}.securityContext", {"runAsUser": "1"}, ".runAsUser", 'must be an integer, got "1"'),
    (f"{TRAINER}.securityContext", {"runAsUser": 2**63}, ".runAsUser", "must be at most 9223372036854775807"),
    (f"{TRAINER}.livenessProbe", {"httpGet": {"port": 1.5}}, ".httpGet.port", "an integer or a string"),
    (f"{TRAINER}.livenessProbe", "exec:ls", "", 'got "exec:ls"; write a space after the colon: "exec: ls"'),
    (f"{TRAINER}.livenessProbe", {"exec": {"command": "ls"}}, ".exec.command", 'must be a list, got "ls"'),
    (f"{TRAINER}.livenessProbe", {"exec": {"command": [None]}}, ".exec.command[0]", "must not be empty"),
    (f"{TRAINER}.lifecycle", {"preStop": {"sleep": {}}}, ".preStop.sleep.seconds", "required"),
    (f"{POD}.dnsConfig", {"searches": [1]}, ".searches[0]", "must be a string, got 1; put it in quotes"),
    ("spec.template.metadata", {"creationTimestamp": 1}, ".creationTimestamp", "must be a string"),
    # quantities
    (f"{TRAINER}.resources.limits", {"a": "2GB"}, ".a", '"2GB" is no quantity; write "2Gi" or "2G"'),
    (f"{TRAINER}.resources.limits", {"a": "512 kb"}, ".a", 'write "512Ki" or "512k"'),
    (f"{TRAINER}.resources.limits", {"a": "2gib"}, ".a", 'no quantity; write "2Gi"'),
    (f"{TRAINER}.resources.requests", {"cpu": "two"}, ".cpu", '"two" is no quantity, such as "500m"'),
    (f"{TRAINER}.resources.requests", {"cpu": True}, ".cpu", "true is no quantity"),
    # images
    (f"{TRAINER}.image", REMOVED, "", "required: Kubernetes starts no container without one"),
    (f"{TRAINER}.image", "", "", "required"),
    (f"{POD}.initContainers", [{"name": "a"}], "[0].image", "required"),
    # parts of roles, and the output
    ("spec.worker.resources", {"limit": {}}, ".limit", "unknown field of ResourceRequirements"),
    ("spec.evaluator.env", [{"name": "A", "valu": ""}], "[0].valu", 'did you mean "value"?'),
    ("spec.chief", {"tolerations": [{"effect": "NoRun"}]}, ".tolerations[0].effect", "must be one of"),
    ("spec.worker.affinity", {"nodeAffinty": {}}, ".nodeAffinty", 'did you mean "nodeAffinity"?'),
    ("spec.ps", {"template": {"spec": {"node": "a"}}}, ".template.spec.node", 'did you mean "nodeName"?'),
    ("spec.output", {"csi": {"driver": "a", "attributes": {}}}, ".csi.attributes", "unknown field"),
    ("spec.output", {"emptyDir": {"sizeLimit": "1GB"}}, ".emptyDir.sizeLimit", "no quantity"),
    ("spec.output.ephemeral", {"volumeClaimTemplate": {}}, ".volumeClaimTemplate.spec", "required"),
    # settings of the trainer
    (f"{TRAINER}.env", [{"name": "TRAIN_EPOCH"}], "[0].name", 'TRAIN_; did you mean "TRAIN_EPOCHS"?'),
    ("spec.worker.env", [{"name": "TRAIN_SEEDS"}], "[0].name", "If it is your script's own, set it in"),
)  # fmt: skip


def errors_of(raw: Any, **options: bool) -> dict[str, list[str]]:
    messages: dict[str, list[str]] = {}
    try:
        parse_strictly(raw, **options)
    except InvalidTrainJob as invalid:
        for error in invalid.errors:
            messages.setdefault(error.path, []).append(error.message)
    return messages


@pytest.mark.parametrize(("path", "value", "below", "message"), REFUSED)
def test_refused(path: str, value: Any, below: str, message: str) -> None:
    alone = ALONE if path == "spec.output" else {}
    errors = errors_of(change_job({**alone, path: value}))
    assert message in errors[f"{path}{below}"][0]
    assert all(len(messages) == 1 for messages in errors.values()), errors


@pytest.mark.parametrize(
    "changes",
    [
        {f"{TRAINER}.resources": {"limits": {"cpu": 2, "memory": "1.5Gi", "nvidia.com/gpu": "1"}}},
        {f"{TRAINER}.resources": {"limits": {"cpu": ".5", "memory": "12e6", "example.com/a": "+1k"}}},
        {f"{TRAINER}.resources": None, f"{POD}.nodeSelector": None},
        {f"{TRAINER}.livenessProbe": {"httpGet": {"port": "web"}, "periodSeconds": 2.0}},
        {f"{TRAINER}.livenessProbe": {"tcpSocket": {"port": 80}}},
        {f"{POD}.tolerations": [{"key": "gpu", "operator": "Exists", "effect": ""}]},
        {f"{TRAINER}.env": [{"name": "TRAIN_EPOCHS", "value": "3"}, {"name": "TRAINING", "value": ""}]},
        {
            f"{TRAINER}.env": [
                {"name": f"TRAIN_{name}", "value": ""}
                for name in (
                    "DATA",
                    "DIR",
                    "FILES",
                    "CSV",
                    "PATH",
                    "MODEL_DIR",
                    "BATCH_SIZE",
                    "OUTPUT_DIR",
                    "X",
                )
            ]
        },
        {"spec.worker.env": [{"name": "TRAIN_DATA", "value": "s3://digits"}]},
        {f"{POD}.initContainers": [{"name": "a", "image": "b", "env": [{"name": "TRAIN_X", "value": ""}]}]},
        {"spec.template.metadata": {"labels": {"a": "b"}, "creationTimestamp": None}},
        {"spec.worker.affinity": {"nodeAffinity": {}}},
        {"spec.output": {"csi": {"driver": "a", "volumeAttributes": {"a": "b"}}}},
    ],
)
def test_accepted(changes: dict[str, Any]) -> None:
    assert errors_of(change_job(changes)) == {}


def test_a_run_here_needs_no_image() -> None:
    job = change_job({f"{TRAINER}.image": REMOVED})
    assert set(errors_of(job)) == {f"{TRAINER}.image"}
    assert errors_of(job, needs_image=False) == {}


def test_the_controller_leaves_templates_to_the_api_server() -> None:
    job = change_job(
        {f"{TRAINER}.someday": 1, f"{TRAINER}.imagePullPolicy": "Soon", f"{TRAINER}.image": REMOVED}
    )
    job = change_job({f"{TRAINER}.env": [{"name": "TRAIN_EPOCH", "value": ""}]}, job)
    assert len(errors_of(job)) == 4
    assert parse(job).metadata.name == "digits"


@pytest.mark.parametrize("kind", SCHEMA["types"])
def test_types_are_those_of_the_official_client(kind: str) -> None:
    """The client (36 is of Kubernetes 1.36) may be newer or older: the newer has more fields."""
    model = getattr(models, f"CoreV1{kind}", None) or getattr(models, f"V1{kind}", None)
    ours = SCHEMA["types"][kind]
    fields, theirs = set(ours["fields"]), set(model.attribute_map.values() if model is not None else ())
    assert set(ours["required"]) <= fields
    is_older = int(kubernetes.__version__.partition(".")[0]) < int(SCHEMA["kubernetes"].partition(".")[2])
    assert theirs <= fields if is_older else fields <= theirs


def names_in(kind: Any) -> Iterator[str]:
    if isinstance(kind, list):
        yield from names_in(kind[0])
    elif isinstance(kind, str):
        yield kind
    elif "*" in kind:
        yield from names_in(kind["*"])


def test_every_type_of_the_schema_is_known_and_used() -> None:
    fields = [kind for each in SCHEMA["types"].values() for kind in each["fields"].values()]
    used = {name for kind in fields for name in names_in(kind)} - set(_SCALARS)
    assert {*used, "PodTemplateSpec"} == set(SCHEMA["types"])


def test_the_schema_is_of_the_test_clusters_version() -> None:
    """If it isn't any more, ADR 28 has the command that writes it again."""
    modules = (Path(__file__).parents[2] / "testbed/go/kubernetes/go.mod").read_text()
    assert re.findall(r"k8s.io/kubernetes v(\d+\.\d+)\.", modules) == [SCHEMA["kubernetes"]]
