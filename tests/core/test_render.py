from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import jinja2
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from support.world.jobs import build_job, build_plain_job
from trainjob.api import InvalidTrainJob, OutputStatus, TrainJobStatus, parse
from trainjob.core.manifests import (
    build_claim,
    build_network_policy,
    build_objects,
    build_pod,
    build_service,
    render_template,
    share_claims,
)
from trainjob.core.settings import Isolation


def pod_of(role: str = "worker", **job: Any) -> dict[str, Any]:
    """Return a pod without an agent; `test_agent.py` is about those that have one."""
    return build_pod(
        parse(build_plain_job(uid="some-uid", **job)), role=role, index=0, incarnation=1, attempt=1
    )


def trainer_of(pod: dict[str, Any]) -> dict[str, Any]:
    return next(c for c in pod["spec"]["containers"] if c["name"] == "trainer")


def env_of(pod: dict[str, Any]) -> dict[str, str]:
    return {v["name"]: v.get("value", "") for v in trainer_of(pod)["env"]}


def test_objects_come_in_the_order_of_creation() -> None:
    kinds = [o["kind"] for o in build_objects(parse(build_job(output={"claim": {"size": "10Gi"}})))]
    assert kinds == ["PersistentVolumeClaim", "Service", "Pod", "Pod", "Pod"]


def test_the_service_resolves_live_pods_before_they_are_ready() -> None:
    service = build_service(parse(build_job(uid="some-uid")))
    assert service["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"trainjob.dev/job": "digits", "trainjob.dev/live": "true"},
        "ports": [
            {"name": "tensorflow", "port": 2222, "targetPort": 2222, "appProtocol": "tcp"},
            {"name": "agent", "port": 2223, "targetPort": 2223, "appProtocol": "tcp"},
        ],
    }
    assert service["metadata"]["ownerReferences"][0]["uid"] == "some-uid"


def test_a_pod_keeps_what_every_pod_is_promised() -> None:
    pod = pod_of()
    assert pod["spec"]["hostname"] == "digits-worker-0"
    assert pod["spec"]["subdomain"] == "digits"
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["metadata"]["ownerReferences"][0]["controller"] is True
    env = env_of(pod)
    assert json.loads(env.pop("TF_CONFIG"))["task"] == {"type": "worker", "index": 0}
    assert env == {
        "TRAINJOB_NAMESPACE": "default",
        "TRAINJOB_NAME": "digits",
        "TRAINJOB_UID": "some-uid",
        "TRAINJOB_ATTEMPT": "1",
        "PYTHONHASHSEED": "0",
        "TRAINJOB_GENERATION": "1.1",
        "TRAINJOB_OUTPUT_DIR": "/output/digits",
        "TRAINJOB_CHECKPOINT_DIR": "/output/digits/checkpoints",
        "TRAINJOB_LOG_DIR": "/output/digits/logs/train",
        "TRAINJOB_TERMINATION_LOG": "/dev/termination-log",
    }


def test_the_evaluator_may_write_into_its_own_folder_only() -> None:
    pod = pod_of("evaluator")
    assert trainer_of(pod)["volumeMounts"] == [
        {"name": "trainjob-output", "mountPath": "/output", "readOnly": True},
        {"name": "trainjob-output", "mountPath": "/output/digits/evaluator", "subPath": "digits/evaluator"},
    ]
    env = env_of(pod)
    assert env["TRAINJOB_OUTPUT_DIR"] == "/output/digits/evaluator"
    assert env["TRAINJOB_LOG_DIR"] == "/output/digits/evaluator/logs"
    assert env["TRAINJOB_CHECKPOINT_DIR"] == "/output/digits/checkpoints"


@pytest.mark.parametrize(
    ("output", "volume"),
    [
        ({"claim": {"claimName": "mine"}}, {"persistentVolumeClaim": {"claimName": "mine"}}),
        ({"claim": {"size": "1Gi"}}, {"persistentVolumeClaim": {"claimName": "digits-output"}}),
        ({"nfs": {"server": "nas", "path": "/x"}}, {"nfs": {"server": "nas", "path": "/x"}}),
        ({"csi": {"driver": "fuse"}}, {"csi": {"driver": "fuse"}}),
        ({"uri": "s3://results"}, {"emptyDir": {}}),
    ],
)
def test_the_output_is_mounted(output: dict[str, Any], volume: dict[str, Any]) -> None:
    pod = pod_of(output=output, restartStrategy="InPlace")
    assert pod["spec"]["volumes"][0] == {"name": "trainjob-output", **volume}


@pytest.mark.parametrize(
    ("output", "path", "told"),
    [
        ({"claim": {"claimName": "mine"}}, "/output/digits", "3000"),
        ({"nfs": {"server": "nas", "path": "/x"}}, "/output/digits", "3000"),
        ({"csi": {"driver": "fuse"}}, "/output/digits", "3000"),
        ({"claim": {"claimName": "mine"}}, "/output/another", None),
        ({"emptyDir": {}}, "/output/digits", None),
        ({"ephemeral": {"volumeClaimTemplate": {"spec": {}}}}, "/output/digits", None),
    ],
)
def test_a_new_pod_gets_the_step_of_the_checkpoint_that_it_has_to_find(
    output: dict[str, Any], path: str, told: str | None
) -> None:
    """A volume that is the pod's own may be empty, and so may another folder."""
    job = parse(build_plain_job(uid="some-uid", workers=1, evaluator=False, output=output))
    known = TrainJobStatus(output=OutputStatus(path=path, checkpoint_step=3000))
    job = job.model_copy(update={"status": known})

    pod = build_pod(job, role="worker", index=0, incarnation=2, attempt=2)

    assert env_of(pod).get("TRAINJOB_REPORTED_CHECKPOINT") == told


@pytest.mark.parametrize(
    ("role", "resume", "uri"),
    [
        ("worker", "Auto", "s3://results/team/digits"),
        ("evaluator", "Auto", "s3://results/team/digits/evaluator"),
        ("worker", "Never", "s3://results/team/digits-d5452366"),
    ],
)
def test_a_replica_gets_the_address_of_its_folder_in_the_bucket(role: str, resume: str, uri: str) -> None:
    pod = pod_of(role, output={"uri": "s3://results/team/", "resume": resume}, restartStrategy="InPlace")
    assert env_of(pod)["TRAINJOB_OUTPUT_URI"] == uri
    assert "TRAINJOB_OUTPUT_URI" not in env_of(pod_of(role))


def test_credentials_come_after_the_users_own_variables() -> None:
    output = {"uri": "s3://results", "credentials": {"secretName": "bucket-key"}}
    credentials, own = {"secretRef": {"name": "bucket-key"}}, {"configMapRef": {"name": "own"}}
    for sources in ([], [own]):
        pod = pod_of(output=output, restartStrategy="InPlace", container={"envFrom": sources})
        assert trainer_of(pod)["envFrom"] == [*sources, credentials]
    assert "envFrom" not in trainer_of(pod_of())


def test_starting_over_takes_a_folder_of_its_own() -> None:
    output = {"claim": {"claimName": "training"}, "resume": "Never"}
    first = env_of(pod_of(output=output))["TRAINJOB_OUTPUT_DIR"]
    again = env_of(pod_of(output=output))["TRAINJOB_OUTPUT_DIR"]
    assert first == again
    assert first.startswith("/output/digits-")


@pytest.mark.parametrize(
    ("claim", "owned"), [({"size": "1Gi"}, True), ({"size": "1Gi", "retain": True}, False)]
)
def test_a_claim_goes_with_its_job_unless_retained(claim: dict[str, Any], owned: bool) -> None:
    manifest = build_claim(parse(build_job(output={"claim": claim})))
    assert manifest is not None
    assert ("ownerReferences" in manifest["metadata"]) is owned
    # Argo CD takes what has this label and no owner for its own, and prunes it.
    assert ("app.kubernetes.io/instance" in manifest["metadata"]["labels"]) is owned
    assert manifest["spec"]["resources"]["requests"]["storage"] == "1Gi"


def test_the_users_claim_is_not_created() -> None:
    assert build_claim(parse(build_job())) is None


def test_the_users_template_stays_the_users() -> None:
    pod = pod_of(
        container={
            "env": [{"name": "DATA", "value": "$(TRAINJOB_OUTPUT_DIR)/data"}],
            "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
            "terminationMessagePolicy": "File",
        },
        pod={
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
            "schedulerName": "gang",
            "enableServiceLinks": True,
        },
    )
    trainer = trainer_of(pod)
    assert trainer["env"][-1] == {"name": "DATA", "value": "$(TRAINJOB_OUTPUT_DIR)/data"}
    assert trainer["terminationMessagePolicy"] == "File"
    assert [m["name"] for m in trainer["volumeMounts"]] == ["shm", "trainjob-output"]
    assert [v["name"] for v in pod["spec"]["volumes"]] == ["shm", "trainjob-output"]
    assert pod["spec"]["schedulerName"] == "gang"
    assert pod["spec"]["enableServiceLinks"] is True


def of_claim(name: str, claim: str = "training", **source: Any) -> dict[str, Any]:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim, **source}}


def mount_of(volume: str, path: str, **fields: Any) -> dict[str, Any]:
    return {"name": volume, "mountPath": path, **fields}


@pytest.mark.parametrize(
    ("volumes", "mounts", "output", "kept", "mounted"),
    [
        (
            [of_claim("data")],
            [mount_of("data", "/data")],
            {"claim": {"claimName": "training"}},
            [of_claim("trainjob-output")],
            [mount_of("trainjob-output", "/data")],
        ),
        (
            [of_claim("data", "digits-output"), {"name": "shm", "emptyDir": {}}],
            [mount_of("shm", "/dev/shm"), mount_of("data", "/data", readOnly=True, subPath="scans")],
            {"claim": {"size": "1Gi"}},
            [{"name": "shm", "emptyDir": {}}, of_claim("trainjob-output", "digits-output")],
            [
                mount_of("shm", "/dev/shm"),
                mount_of("trainjob-output", "/data", readOnly=True, subPath="scans"),
            ],
        ),
        (
            [of_claim("data", readOnly=True), of_claim("more", readOnly=False)],
            [mount_of("data", "/data", readOnly=False), mount_of("more", "/more", subPathExpr="$(A)")],
            {"claim": {"claimName": "training"}},
            [of_claim("trainjob-output")],
            [
                mount_of("trainjob-output", "/data", readOnly=True),
                mount_of("trainjob-output", "/more", subPathExpr="$(A)"),
            ],
        ),
        (
            [of_claim("a", "images", readOnly=True), of_claim("b", "images"), of_claim("c", "else")],
            [mount_of("a", "/a"), mount_of("b", "/b"), mount_of("c", "/c")],
            {"claim": {"claimName": "training"}},
            [of_claim("b", "images"), of_claim("c", "else"), of_claim("trainjob-output")],
            [mount_of("b", "/a", readOnly=True), mount_of("b", "/b"), mount_of("c", "/c")],
        ),
        (
            [of_claim("a", "images", readOnly=True), of_claim("b", "images", readOnly=True)],
            [mount_of("a", "/a"), mount_of("b", "/b")],
            {"csi": {"driver": "fuse"}},
            [of_claim("b", "images", readOnly=True), {"name": "trainjob-output", "csi": {"driver": "fuse"}}],
            [mount_of("b", "/a", readOnly=True), mount_of("b", "/b", readOnly=True)],
        ),
        (
            [{"name": "data", "nfs": {"server": "nas", "path": "/x"}}],
            [mount_of("data", "/data")],
            {"nfs": {"server": "nas", "path": "/x"}},
            [{"name": name, "nfs": {"server": "nas", "path": "/x"}} for name in ("data", "trainjob-output")],
            [mount_of("data", "/data")],
        ),
    ],
)
@pytest.mark.parametrize("role", ["worker", "evaluator"])
def test_a_claim_is_one_volume_however_often_it_is_mounted(
    role: str,
    volumes: list[dict[str, Any]],
    mounts: list[dict[str, Any]],
    output: dict[str, Any],
    kept: list[dict[str, Any]],
    mounted: list[dict[str, Any]],
) -> None:
    fetch = {"name": "fetch", "image": "i", "volumeMounts": mounts}
    template = {
        "spec": {
            "initContainers": [fetch, {"name": "other", "image": "i"}],
            "containers": [
                {"name": "trainer", "image": "i", "command": ["true"], "volumeMounts": mounts},
                {"name": "shipper", "image": "i", "volumeMounts": mounts},
            ],
            "volumes": volumes,
        }
    }
    raw = build_plain_job(uid="some-uid", output=output)
    raw["spec"][role]["template"] = template
    before = deepcopy(template)

    pod = share_claims(build_pod(parse(raw), role=role, index=0, incarnation=1, attempt=1))["spec"]

    assert pod["volumes"] == kept
    assert [c["volumeMounts"][: len(mounts)] for c in pod["containers"]] == [mounted, mounted]
    assert pod["containers"][0]["volumeMounts"][len(mounts)]["mountPath"] == "/output"
    assert pod["initContainers"][0]["volumeMounts"] == mounted
    assert template == before


def test_the_job_is_left_as_it_was() -> None:
    job = parse(build_job(container={"env": [{"name": "A", "value": "b"}]}))
    before = job.model_dump()
    build_objects(job)
    assert job.model_dump() == before


def test_a_large_template_is_shared_by_all_pods() -> None:
    """A copy for each of forty pods with an affinity of a megabyte took six seconds."""
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    sidecar = {"name": "sidecar", "image": "example.com/logs:1"}
    raw = build_job(pod={"affinity": affinity}, uid="some-uid")
    raw["spec"]["template"]["spec"]["containers"].append(sidecar)
    job = parse(raw)
    for pod in build_objects(job)[1:]:
        assert pod["spec"]["affinity"] is affinity
        assert pod["spec"]["containers"][1] is sidecar


def test_a_pod_is_built_without_a_copy_of_the_template() -> None:
    class Uncopied(dict[str, Any]):
        def __deepcopy__(self, _memo: object) -> None:
            raise AssertionError("copied for each pod")

    job = parse(build_job(uid="some-uid", pod={"securityContext": Uncopied(fsGroup=1)}))
    for pod in build_objects(job)[1:]:
        assert pod["spec"]["securityContext"] == {"fsGroup": 1}


GPU = {"limits": {"nvidia.com/gpu": "1", "memory": "8Gi"}}


@pytest.mark.parametrize(
    ("evaluator", "resources"),
    [
        ({}, {"limits": {"memory": "8Gi"}}),
        ({"resources": GPU}, GPU),
        ({"resources": {"limits": {"cpu": "1"}}}, {"limits": {"cpu": "1"}}),
    ],
)
def test_the_evaluator_gets_gpus_only_by_name(evaluator: dict[str, Any], resources: dict[str, Any]) -> None:
    pod = pod_of("evaluator", container={"resources": GPU}, evaluator=evaluator)
    assert trainer_of(pod)["resources"] == resources


def test_a_roles_fields_replace_the_templates() -> None:
    job = build_job(pod={"nodeSelector": {"pool": "gpu", "zone": "a"}})
    job["spec"]["worker"]["nodeSelector"] = {"pool": "big"}
    pod = build_pod(parse(job), role="worker", index=0, incarnation=1, attempt=1)
    assert pod["spec"]["nodeSelector"] == {"pool": "big"}


NASTY = [
    "{{ 7*7 }}",
    "a: b\n- c",
    "'\"`",
    "🎉 \U0001f9d1\u200d\U0001f680",
    "#",
    "",
    " lead",
    "\x7f\x85\u2028",
    "yes",
    "0x10",
]


@pytest.mark.parametrize("text", NASTY)
def test_strings_come_out_as_they_went_in(text: str) -> None:
    pod = pod_of(
        container={"args": [text], "env": [{"name": "TEXT", "value": text}]},
        output={"claim": {"claimName": "c"}},
    )
    assert trainer_of(pod)["args"] == [text]
    assert trainer_of(pod)["env"][-1]["value"] == text
    assert yaml.safe_load(yaml.safe_dump(pod)) == pod


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_no_value_becomes_structure(text: str) -> None:
    rendered = render_template(
        "service.yaml.j2",
        job={"name": text, "namespace": text},
        labels={text: text},
        owners=[{"uid": text}],
        selector={},
        port=1,
        agent_port=2,
    )
    assert rendered["metadata"] == {
        "name": text,
        "namespace": text,
        "labels": {text: text},
        "ownerReferences": [{"uid": text}],
    }


def test_what_is_rendered_shares_nothing() -> None:
    labels = {"a": "b"}
    values = {"job": {"name": "n", "namespace": "n"}, "owners": [], "port": 1, "agent_port": 2}
    first, second = (
        render_template("service.yaml.j2", labels=labels, selector=labels, **values) for _ in range(2)
    )
    first["metadata"]["labels"]["a"] = "c"
    first["spec"]["ports"].clear()
    assert labels == {"a": "b"}
    assert second["metadata"]["labels"] == {"a": "b"}
    assert len(second["spec"]["ports"]) == 2


def test_a_value_that_is_missing_is_named() -> None:
    with pytest.raises(jinja2.UndefinedError, match="'port' is undefined"):
        render_template(
            "service.yaml.j2", job={"name": "n", "namespace": "n"}, labels={}, owners=[], selector={}
        )


FIELDS = ["env", "ports", "volumeMounts", "resources", "terminationMessagePolicy"]
odd = st.sampled_from([None, [], {}, "text", 1, [None], [1]])
templates = st.builds(
    lambda container, pod, metadata: {
        "metadata": metadata,
        "spec": {"containers": [{"name": "trainer", **container}], **pod},
    },
    st.dictionaries(st.sampled_from(FIELDS), odd),
    st.dictionaries(st.sampled_from(["volumes", "tolerations", "enableServiceLinks"]), odd),
    odd | st.dictionaries(st.sampled_from(["labels", "annotations"]), odd),
)
roles = st.fixed_dictionaries(
    {},
    optional={
        "template": templates,
        "env": st.just([{"name": "A", "value": "b"}]),
        "tolerations": st.just([{"key": "gpu"}]),
        "resources": st.just({"limits": {"nvidia.com/gpu": 1}}),
        "affinity": st.just({}),
    },
)
outputs = st.sampled_from(
    [
        {"claim": {"claimName": "c"}},
        {"claim": {"size": "1Gi", "storageClassName": "nfs", "retain": True}},
        {"nfs": {"server": "nas", "path": "/x"}, "resume": "Never"},
        {"csi": {"driver": "fuse"}},
    ]
)


def _take_all(value: Any) -> None:
    """Change everything that a pod has of its own, as its sender might."""
    for holder in (value["metadata"], value["spec"], value["spec"]["containers"], value):
        holder.clear()


@given(templates, roles, roles, roles, roles, outputs)
def test_no_pod_is_another_one_for_what_it_shares(
    template: Any, worker: Any, chief: Any, ps: Any, evaluator: Any, output: Any
) -> None:
    job = build_job(worker=worker, chief=chief, ps=ps, evaluator=evaluator, output=output, template=template)
    try:
        accepted = parse(job)
    except InvalidTrainJob:
        return
    expected = deepcopy(build_objects(accepted))
    for manifest in build_objects(accepted):
        if manifest["kind"] == "Pod":
            _take_all(manifest)
    assert build_objects(accepted) == expected
    assert build_objects(parse(deepcopy(job))) == expected


@given(templates, roles, roles, roles, roles, outputs)
def test_every_accepted_job_can_be_rendered(
    template: Any, worker: Any, chief: Any, ps: Any, evaluator: Any, output: Any
) -> None:
    job = build_job(worker=worker, chief=chief, ps=ps, evaluator=evaluator, output=output, template=template)
    try:
        accepted = parse(job)
    except InvalidTrainJob:
        return
    for manifest in build_objects(accepted):
        assert manifest == json.loads(json.dumps(manifest)), "plain JSON, no tuples"


@pytest.mark.parametrize("template", [{}, {"spec": {}}, {"spec": {"containers": [{"name": "other"}]}}])
@pytest.mark.parametrize("role", ["worker", "chief", "ps", "evaluator"])
def test_a_roles_template_without_a_trainer_is_refused(role: str, template: dict[str, Any]) -> None:
    others = {} if role == "chief" else {"chief": {}}
    with pytest.raises(InvalidTrainJob, match=rf"spec\.{role}\.template\.spec"):
        parse(build_job(**{**others, role: {"template": template}}))


def test_a_network_policy_lets_in_the_jobs_own_pods_the_controller_and_what_is_set() -> None:
    extra = {"from": [{"namespaceSelector": {"matchLabels": {"team": "metrics"}}}], "ports": [{"port": 9000}]}
    policy = build_network_policy(parse(build_job(uid="some-uid")), Isolation("trainjob-system", (extra,)))
    spec, own = policy["spec"], {"podSelector": {"matchLabels": {"trainjob.dev/job": "digits"}}}
    assert spec["podSelector"] == own["podSelector"]
    assert spec["policyTypes"] == ["Ingress"]
    peers, also = spec["ingress"]
    assert peers["from"][0] == own
    assert peers["from"][1] == {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "trainjob-system"}},
        "podSelector": {
            "matchLabels": {
                "app.kubernetes.io/name": "trainjob",
                "app.kubernetes.io/component": "controller",
            }
        },
    }
    assert also == extra


def test_a_controller_outside_of_the_cluster_is_no_peer() -> None:
    policy = build_network_policy(parse(build_job(uid="some-uid")), Isolation())
    assert len(policy["spec"]["ingress"]) == 1
    assert len(policy["spec"]["ingress"][0]["from"]) == 1


def test_a_container_gets_the_path_of_its_termination_message() -> None:
    pod = pod_of(container={"terminationMessagePath": "/tmp/last"})
    assert env_of(pod)["TRAINJOB_TERMINATION_LOG"] == "/tmp/last"
