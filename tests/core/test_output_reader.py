"""The pod that reads a job's output: what Kubernetes lets it do, and what it is to the job."""

from __future__ import annotations

from typing import Any

import pytest

from support.world.jobs import build_job
from trainjob.api import parse
from trainjob.core.manifests import READER_SECONDS, build_network_policy, build_output_reader, build_service
from trainjob.core.names import CONTROLLER_LABELS, LABEL_JOB, LABEL_LIVE, controller_uid
from trainjob.core.pods import read_pod
from trainjob.core.settings import Isolation


def reader(**job: Any) -> dict[str, Any]:
    return build_output_reader(parse(build_job(uid="some-uid", **job)), "abcd")


def container_of(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["spec"]["containers"]
    return container


def test_it_is_no_replica_and_is_not_let_in_to_them() -> None:
    job, pod = parse(build_job(uid="some-uid")), reader()
    labels = pod["metadata"]["labels"]
    assert read_pod(pod) is None
    assert controller_uid(pod) is None
    assert {LABEL_JOB, LABEL_LIVE}.isdisjoint(labels)
    assert not labels.items() >= CONTROLLER_LABELS.items()
    assert not labels.items() >= build_service(job)["spec"]["selector"].items()
    (rule,) = build_network_policy(job, Isolation("trainjob-system"))["spec"]["ingress"]
    selectors = [peer["podSelector"]["matchLabels"] for peer in rule["from"]]
    assert len(selectors) == 2
    assert [each for each in selectors if labels.items() >= each.items()] == []


def test_it_goes_with_its_job_and_after_an_hour() -> None:
    pod = reader()
    assert pod["metadata"]["name"] == "digits-output-abcd"
    assert pod["metadata"]["ownerReferences"] == [
        {"apiVersion": "trainjob.dev/v1alpha1", "kind": "TrainJob", "name": "digits", "uid": "some-uid"}
    ]
    assert pod["spec"]["activeDeadlineSeconds"] == READER_SECONDS
    assert pod["spec"]["restartPolicy"] == "Never"


def test_it_may_read_the_output_and_nothing_else() -> None:
    pod = reader(
        pod={"volumes": [{"name": "secrets", "secret": {"secretName": "x"}}]},
        container={"volumeMounts": [{"name": "secrets", "mountPath": "/secrets"}], "env": [{"name": "A"}]},
    )
    volume = {"name": "trainjob-output", "persistentVolumeClaim": {"claimName": "training"}}
    assert pod["spec"]["volumes"] == [volume]
    mount = {"name": "trainjob-output", "mountPath": "/output", "readOnly": True}
    assert container_of(pod)["volumeMounts"] == [mount]
    assert "env" not in container_of(pod)
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["enableServiceLinks"] is False
    assert container_of(pod)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_it_reaches_a_bucket_as_the_replicas_do() -> None:
    region, source = {"name": "AWS_REGION", "value": "eu-west-1"}, {"secretRef": {"name": "own"}}
    pod = reader(
        output={"uri": "s3://results", "credentials": {"secretName": "bucket-key"}},
        container={"env": [region], "envFrom": [source]},
        pod={"serviceAccountName": "trainer"},
    )
    assert pod["spec"]["volumes"] == [{"name": "trainjob-output", "emptyDir": {}}]
    assert container_of(pod)["volumeMounts"][0]["readOnly"] is False
    assert container_of(pod)["env"] == [region]
    assert container_of(pod)["envFrom"] == [source, {"secretRef": {"name": "bucket-key"}}]
    assert pod["spec"]["serviceAccountName"] == "trainer"


NOBODY = {"runAsUser": 65534}


@pytest.mark.parametrize(
    ("pod", "container", "user"),
    [
        ({}, {}, NOBODY),
        ({"runAsNonRoot": True}, {}, {}),
        ({"runAsUser": 1000, "runAsGroup": 100}, {}, {"runAsUser": 1000, "runAsGroup": 100}),
        ({"runAsUser": 0}, {}, NOBODY),
        ({"runAsUser": 0}, {"runAsUser": 5, "privileged": True}, {"runAsUser": 5}),
        ({"runAsNonRoot": True}, {"runAsNonRoot": False}, NOBODY),
        (
            {"runAsNonRoot": True, "fsGroup": 7, "fsGroupChangePolicy": "Always", "supplementalGroups": [8]},
            {"seccompProfile": {"type": "Unconfined"}},
            {"fsGroup": 7, "fsGroupChangePolicy": "OnRootMismatch", "supplementalGroups": [8]},
        ),
    ],
)
def test_it_is_restricted_and_the_jobs_own_user_unless_that_is_root(
    pod: dict[str, Any], container: dict[str, Any], user: dict[str, Any]
) -> None:
    made = reader(pod={"securityContext": pod}, container={"securityContext": container})
    restricted = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert made["spec"]["securityContext"] == restricted | user


def test_it_starts_where_the_jobs_pods_start() -> None:
    node_affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
    kept = {
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "registry"}],
        "serviceAccountName": "trainer",
    }
    affinity = {"nodeAffinity": node_affinity, "podAntiAffinity": {}}
    pod = reader(pod={**kept, "affinity": affinity}, container={"imagePullPolicy": "Never"})
    assert {key: pod["spec"][key] for key in kept} == kept
    assert set(pod["spec"]["affinity"]) == {"nodeAffinity", "podAffinity"}
    assert "nvidia.com/gpu" not in str(pod)
    assert container_of(pod)["image"] == "example.com/digits:1"
    assert container_of(pod)["imagePullPolicy"] == "Never"


@pytest.mark.parametrize(
    ("command", "interpreter"),
    [
        (["/opt/venv/bin/python3.11", "train.py"], "/opt/venv/bin/python3.11"),
        (["torchrun"], "python3"),
        (None, "python3"),
    ],
)
def test_it_runs_the_jobs_interpreter(command: list[str] | None, interpreter: str) -> None:
    pod = reader(restartStrategy="Recreate", container={"command": command} if command else {"command": []})
    assert container_of(pod)["command"][:3] == [interpreter, "-I", "-S"]


def test_it_takes_what_the_chief_has() -> None:
    own = {"spec": {"containers": [{"name": "trainer", "image": "chief:1", "command": ["python"]}]}}
    pod = reader(chief={"template": own})
    assert container_of(pod)["image"] == "chief:1"
