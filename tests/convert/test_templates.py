from typing import Any

import pytest

from support.golden import Golden
from support.world.tfjobs import build_replicas, build_tfjob, converted, notes_of, refusals_of, spec_of
from trainjob.api import parse
from trainjob.api.errors import trainer_of as training_container
from trainjob.core.manifests import role_template

TEMPLATE = "spec.tfReplicaSpecs.Worker.template"
GPU = {"limits": {"nvidia.com/gpu": 1}}


def template_of(**entry: Any) -> dict[str, Any]:
    template: dict[str, Any] = spec_of(build_tfjob({"Worker": build_replicas(2, **entry)}))["template"]
    return template


def trainer_of(container: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = template_of(container=container)["spec"]["containers"][0]
    return found


def notes_on(**entry: Any) -> dict[str, str]:
    notes = notes_of(build_tfjob({"Worker": build_replicas(2, **entry)}))
    return {
        path.removeprefix(f"{TEMPLATE}."): note for path, note in notes.items() if path.startswith(TEMPLATE)
    }


def test_the_container_is_renamed_and_the_rest_stays() -> None:
    container = {
        "command": ["python", "train.py"],
        "args": ["--epochs=3"],
        "env": [{"name": "MODE", "value": "fast"}],
        "ports": [{"name": "tfjob-port", "containerPort": 2222}, {"name": "board", "containerPort": 6006}],
        "resources": GPU,
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
        "lifecycle": {"preStop": {"exec": {"command": ["sync"]}}},
    }
    pod = {
        "initContainers": [{"name": "fetch", "image": "x"}],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        "nodeSelector": {"pool": "gpu"},
        "securityContext": {"runAsUser": 1000},
        "imagePullSecrets": [{"name": "pull"}],
        "dnsPolicy": "None",
    }
    template = template_of(container=container, pod=pod)
    trainer = {"name": "trainer", "image": "example.com/scans:1", **container}
    assert template == {"spec": {"containers": [trainer], **pod}}
    assert notes_on(container=container, pod=pod) == {}


def test_other_containers_stay() -> None:
    pod = {"containers": [{"name": "proxy", "image": "p"}, {"name": "tensorflow", "image": "t"}]}
    assert [c["name"] for c in template_of(pod=pod)["spec"]["containers"]] == ["proxy", "trainer"]


def test_the_only_container_is_the_one_that_trains(golden: Golden) -> None:
    pod = {"containers": [{"name": "main", "image": "t"}]}
    assert template_of(pod=pod)["spec"]["containers"][0]["name"] == "trainer"
    golden(notes_on(pod=pod)["spec.containers[0].name"])


def test_several_containers_without_their_name_are_refused(golden: Golden) -> None:
    pod = {"containers": [{"name": "one", "image": "t"}, {"name": "two", "image": "t"}]}
    refusals = refusals_of(build_tfjob({"Worker": build_replicas(2, pod=pod)}))
    golden(refusals[f"{TEMPLATE}.spec.containers"])


@pytest.mark.parametrize(
    ("pod", "path"),
    [
        ({"restartPolicy": "Always"}, "restartPolicy"),
        ({"restartPolicy": "Never"}, "restartPolicy"),
        ({"hostNetwork": True}, "hostNetwork"),
        ({"dnsPolicy": "Default"}, "dnsPolicy"),
        ({"hostname": "here"}, "hostname"),
        ({"subdomain": "there"}, "subdomain"),
        ({"automountServiceAccountToken": True}, "automountServiceAccountToken"),
    ],
)
def test_what_a_trainjob_sets_is_left_out(pod: dict[str, Any], path: str, golden: Golden) -> None:
    assert next(iter(pod)) not in template_of(pod=pod)["spec"]
    golden(notes_on(pod=pod)[f"spec.{path}"])


def selector(**labels: str) -> dict[str, Any]:
    return {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}


def affine(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


TERMS = "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution"


def test_selectors_of_their_labels_select_by_ours(golden: Golden) -> None:
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    pod = {
        "affinity": affine(
            selector(**{"tf-replica-type": "Worker", "training.kubeflow.org/job-name": "scans", "app": "a"}),
            selector(**{"job-name": "loader"}),  # of a batch/v1 Job
            selector(**{"training.kubeflow.org/job-role": "master"}),
        ),
        "topologySpreadConstraints": [
            {
                **spread,
                "labelSelector": {
                    "matchExpressions": [
                        {"key": "replica-type", "operator": "NotIn", "values": ["master", "ps"]},
                        {"key": "training.kubeflow.org/operator-name", "operator": "Exists"},
                    ]
                },
                "matchLabelKeys": ["job-name", "pod-template-hash"],
            },
            {**spread, "labelSelector": {"matchLabels": {"tf-replica-type": "launcher"}}},
        ],
    }
    made = template_of(pod=pod)["spec"]
    assert made["affinity"] == affine(
        selector(**{"trainjob.dev/role": "worker", "trainjob.dev/job": "scans", "app": "a"}),
        selector(**{"job-name": "loader"}),
    )
    assert made["topologySpreadConstraints"] == [
        {
            **spread,
            "labelSelector": {
                "matchExpressions": [
                    {"key": "trainjob.dev/role", "operator": "NotIn", "values": ["chief", "ps"]},
                    {"key": "app.kubernetes.io/managed-by", "operator": "Exists"},
                ]
            },
            "matchLabelKeys": ["trainjob.dev/job", "pod-template-hash"],
        }
    ]
    notes = notes_on(pod=pod)
    golden(notes[f"{TERMS}[0].labelSelector.matchLabels.tf-replica-type"])
    golden(
        notes[f"{TERMS}[2].labelSelector.matchLabels[training.kubeflow.org/job-role]"],
        notes["spec.topologySpreadConstraints[1].labelSelector.matchLabels.tf-replica-type"],
    )


def of_label(label: str) -> dict[str, Any]:
    return {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}


def test_variables_and_files_of_their_labels_have_ours(golden: Golden) -> None:
    container = {
        "env": [
            {"name": "RANK", "valueFrom": of_label("training.kubeflow.org/replica-index")},
            {"name": "ROLE", "valueFrom": of_label("job-role")},
            {"name": "TEAM", "valueFrom": of_label("team")},
        ]
    }
    items = [{"path": "type", **of_label("tf-replica-type")}]
    pod = {
        "volumes": [
            {"name": "a", "downwardAPI": {"items": items}},
            {"name": "b", "projected": {"sources": [{"downwardAPI": {"items": items}}]}},
        ]
    }
    made = template_of(container=container, pod=pod)["spec"]
    ours = [{"path": "type", **of_label("trainjob.dev/role")}]
    assert made["volumes"][0]["downwardAPI"]["items"] == ours
    assert made["volumes"][1]["projected"]["sources"][0]["downwardAPI"]["items"] == ours
    assert made["containers"][0]["env"] == [
        {"name": "RANK", "valueFrom": of_label("trainjob.dev/index")},
        {"name": "TEAM", "valueFrom": of_label("team")},
    ]
    notes = notes_on(container=container, pod=pod)
    place = "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath"
    golden(notes[place])


def test_labels_that_the_template_sets_itself_stay() -> None:
    replicas = build_replicas(2, pod={"affinity": affine(selector(**{"replica-type": "mine"}))})
    replicas["template"]["metadata"] = {"labels": {"replica-type": "mine"}}
    made = spec_of(build_tfjob({"Worker": replicas}))["template"]["spec"]
    assert made["affinity"] == affine(selector(**{"replica-type": "mine"}))


def test_a_chief_alone_is_a_worker_to_selectors_too() -> None:
    pod = {"affinity": affine(selector(**{"tf-replica-type": "chief"}))}
    made = spec_of(build_tfjob({"Chief": build_replicas(pod=pod)}))["template"]["spec"]
    assert made["affinity"] == affine(selector(**{"trainjob.dev/role": "worker"}))


@pytest.mark.parametrize(
    ("pod", "noted"),
    [
        ({"serviceAccountName": "reader"}, True),
        ({"serviceAccount": "reader"}, True),
        ({"serviceAccountName": "default"}, False),
        ({"schedulerName": "volcano"}, True),
        ({"schedulerName": "default-scheduler"}, False),
        ({"hostNetwork": False}, False),
        ({"automountServiceAccountToken": False}, False),
    ],
)
def test_what_is_kept_with_a_note(pod: dict[str, Any], noted: bool) -> None:
    field, value = next(iter(pod.items()))
    assert template_of(pod=pod)["spec"][field] == value
    assert (f"spec.{field}" in notes_on(pod=pod)) is noted


def test_metadata_of_a_template() -> None:
    metadata = {"labels": {"a": "b"}, "annotations": {"c": "d"}, "name": "x", "creationTimestamp": None}
    assert template_of(metadata=metadata)["metadata"] == {"labels": {"a": "b"}, "annotations": {"c": "d"}}
    assert list(notes_on(metadata=metadata)) == ["metadata.name"]
    assert "metadata" not in template_of(metadata={"creationTimestamp": None})


@pytest.mark.parametrize("name", ["TF_CONFIG", "TRAINJOB_MODE"])
def test_variables_of_the_job_are_left_out(name: str) -> None:
    mode = {"name": "MODE", "value": "fast"}
    assert trainer_of({"env": [{"name": name, "value": "x"}, mode]})["env"] == [mode]
    assert "env" not in trainer_of({"env": [{"name": name, "value": "x"}]})
    notes = notes_on(container={"env": [mode, {"name": name, "value": "x"}]})
    assert notes["spec.containers[0].env[1]"].startswith("left out: ")


def test_another_port_is_left_out(golden: Golden) -> None:
    ports = [{"name": "tfjob-port", "containerPort": 5000}]
    assert "ports" not in trainer_of({"ports": ports})
    golden(notes_on(container={"ports": ports})["spec.containers[0].ports[0]"])


def test_references_to_the_container_follow_its_name() -> None:
    limit = {"resourceFieldRef": {"containerName": "tensorflow", "resource": "limits.memory"}}
    other = {"resourceFieldRef": {"containerName": "proxy", "resource": "limits.memory"}}
    template = template_of(
        container={"env": [{"name": "A", "valueFrom": limit}, {"name": "B", "valueFrom": other}]},
        pod={"volumes": [{"name": "info", "downwardAPI": {"items": [{"path": "memory", **limit}]}}]},
        metadata={
            "annotations": {
                "kubectl.kubernetes.io/default-container": "tensorflow",
                "container.apparmor.security.beta.kubernetes.io/tensorflow": "unconfined",
                "note": "tensorflow",
            }
        },
    )
    env = template["spec"]["containers"][0]["env"]
    assert [v["valueFrom"]["resourceFieldRef"]["containerName"] for v in env] == ["trainer", "proxy"]
    item = template["spec"]["volumes"][0]["downwardAPI"]["items"][0]
    assert item["resourceFieldRef"]["containerName"] == "trainer"
    assert template["metadata"]["annotations"] == {
        "kubectl.kubernetes.io/default-container": "trainer",
        "container.apparmor.security.beta.kubernetes.io/trainer": "unconfined",
        "note": "tensorflow",
    }


@pytest.mark.parametrize("role", ["Chief", "PS", "Evaluator"])
@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({}, {}),
        ({"container": {"resources": GPU}}, {"resources": GPU}),
        ({"container": {"env": [{"name": "A", "value": "1"}]}}, {"env": [{"name": "A", "value": "1"}]}),
        ({"pod": {"nodeSelector": {"pool": "cpu"}}}, {"nodeSelector": {"pool": "cpu"}}),
        ({"pod": {"tolerations": [{"operator": "Exists"}]}}, {"tolerations": [{"operator": "Exists"}]}),
        ({"pod": {"affinity": {"podAffinity": {}}}}, {"affinity": {"podAffinity": {}}}),
        ({"pod": {"priorityClassName": "low"}}, {"priorityClassName": "low"}),
    ],
)
def test_a_role_says_only_what_is_different(
    role: str, entry: dict[str, Any], expected: dict[str, Any]
) -> None:
    replicas = {"Chief": build_replicas(), "Worker": build_replicas(2), role: build_replicas(**entry)}
    made = spec_of(build_tfjob(replicas))[role.lower()]
    assert {key: value for key, value in made.items() if key != "replicas"} == expected


@pytest.mark.parametrize(
    ("worker", "chief"),
    [
        ({"container": {"resources": GPU}}, {}),
        ({"container": {"env": [{"name": "A", "value": "1"}]}}, {}),
        ({"pod": {"nodeSelector": {"pool": "gpu"}}}, {}),
        ({"pod": {"tolerations": [{"operator": "Exists"}]}}, {}),
        ({"pod": {"affinity": {"podAffinity": {}}}}, {}),
        ({"pod": {"priorityClassName": "high"}}, {}),
        ({"pod": {"nodeName": "one"}}, {}),
        ({}, {"container": {"image": "example.com/other:1"}}),
        ({}, {"metadata": {"labels": {"a": "b"}}}),
        ({"container": {"env": None}}, {"container": {"env": []}}),
    ],
)
def test_pods_of_each_role_are_as_they_were(worker: dict[str, Any], chief: dict[str, Any]) -> None:
    """In any form of the difference, the chief's pods come from the chief's own template."""
    replicas = {"Chief": build_replicas(**chief), "Worker": build_replicas(2, **worker)}
    spec = parse(converted(build_tfjob(replicas)).manifest).spec
    for role, entry in (("chief", chief), ("worker", worker)):
        alone = template_of(**entry)
        assert without_nothing(role_template(spec, role)) == without_nothing(alone)


def without_nothing(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: without_nothing(inner) for key, inner in value.items()}
        return {key: inner for key, inner in kept.items() if inner not in (None, {}, [])}
    return [without_nothing(inner) for inner in value] if isinstance(value, list) else value


def test_an_evaluator_with_the_workers_gpus_keeps_them() -> None:
    replicas = {
        "Worker": build_replicas(2, container={"resources": GPU}),
        "Evaluator": build_replicas(container={"resources": GPU}),
    }
    spec = parse(converted(build_tfjob(replicas)).manifest).spec
    assert training_container(role_template(spec, "evaluator")["spec"])["resources"] == GPU
