"""The complete Kubernetes objects of a job, as they are sent to the API server or to the local cluster."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import yaml

from trainjob.api import AGENT_PORT, PORT, TRAINER_CONTAINER, TrainJob, TrainJobSpec
from trainjob.api.errors import mapping_at, objects_at, trainer_of
from trainjob.api.types import CONTAINER_FIELDS, POD_FIELDS
from trainjob.core.agent import (
    CODE_FOLDER,
    AgentSource,
    agent_environment,
    agent_mounts,
    agent_volumes,
    has_agent,
    interpreter_of,
    job_token,
    program_name,
    secret_name,
    wrapped_command,
)
from trainjob.core.names import (
    AVOIDED_NODES,
    CONTROLLER_LABELS,
    LABEL_JOB,
    LABEL_LIVE,
    LABEL_OUTPUT_READER,
    LABEL_PROGRAM,
    MANAGER,
    TOPOLOGY_GATE,
    VOLUME,
    Replica,
    build_tf_config,
    claim_name,
    desired_replicas,
    folder_name,
    hostname,
    is_training,
    job_labels,
    leader,
    output_uri,
    owner_references,
    pod_labels,
    pod_name,
    replica_counts,
    reported_checkpoint,
    root_folder,
)
from trainjob.core.settings import Bundle, Isolation
from trainjob_trainer.contract.files import output_folders
from trainjob_trainer.contract.replicas import EVALUATOR

if TYPE_CHECKING:
    import jinja2
    from jinja2.runtime import Context

Manifest = dict[str, Any]

# Devices that pods request.


def is_extended_resource(name: str) -> bool:
    """Return whether a resource is a device: its name has a domain outside Kubernetes' own."""
    domain, slash, _ = name.partition("/")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


def count_gpus(pod: Mapping[str, Any]) -> int:
    """Return how many GPUs, of any vendor, the containers of a pod or pod template request.

    A part of a GPU that has an own name (MIG) counts as one, and so does a claim to devices (dynamic resource
    allocation): what and how many they are, only the cluster knows.
    """
    total = len(_claimed(pod["spec"]))
    for _, container in objects_at(pod["spec"], "containers"):
        limits = mapping_at(container, "resources", "limits")
        total += sum(_quantity(number) for name, number in limits.items() if _GPU.search(name))
    return total


_GPU = re.compile(r"/(gpu|gpu\.shared|mig-.*)$")


def _claimed(pod_spec: Manifest) -> set[str]:
    """Return the claims to devices that a container names."""
    return {
        str(claim.get("name"))
        for kind in ("initContainers", "containers")
        for _, container in objects_at(pod_spec, kind)
        for _, claim in objects_at(container, "resources", "claims")
    }


def _quantity(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        return 0


# The pod template of one role: `spec.template` or the role's own, with the role's named fields.


def role_template(spec: TrainJobSpec, role: str) -> dict[str, Any]:
    """Return the role's pod template, in which the role's named fields replace whole fields.

    The evaluator gets no devices (GPUs) unless it has resources or a template of its own. A claim to devices
    goes with the last container that names it.

    The template, its pod spec, its list of containers and the training container are copies, which callers
    may change. All else is shared with the job and the pods of its other replicas, and must not change: a
    copy of a large template for each of many pods would delay all other jobs.
    """
    settings = getattr(spec, role)
    template: dict[str, Any] = {**(settings.template or spec.template)}
    pod_spec = template["spec"] = {**template["spec"]}
    pod_spec["containers"] = [
        {**container} if container["name"] == TRAINER_CONTAINER else container
        for container in pod_spec["containers"]
    ]
    container, claimed = trainer_of(pod_spec), _claimed(pod_spec)
    for holder, fields in ((pod_spec, POD_FIELDS), (container, CONTAINER_FIELDS)):
        for name, key in fields.items():
            if (value := getattr(settings, name)) is not None:
                holder[key] = list(value) if isinstance(value, tuple) else value
    if role == EVALUATOR and settings.resources is None and settings.template is None:
        _drop_devices(container)
    if unclaimed := claimed - _claimed(pod_spec):
        claims = pod_spec.get("resourceClaims") or ()
        pod_spec["resourceClaims"] = [claim for claim in claims if claim.get("name") not in unclaimed]
    return template


def _drop_devices(container: dict[str, Any]) -> None:
    resources = container.get("resources")
    if not isinstance(resources, dict):
        return
    container["resources"] = {
        kind: {k: v for k, v in named.items() if not is_extended_resource(k)}
        if kind in ("limits", "requests") and isinstance(named, dict)
        else named
        for kind, named in resources.items()
        if kind != "claims"
    }


_NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1", "NVIDIA_VISIBLE_DEVICES": "void"}
"""For CUDA, and for NVIDIA's container runtime: an image of CUDA asks it for all GPUs of the node."""


def _hidden_gpus(spec: TrainJobSpec, pod_spec: Manifest) -> Mapping[str, str]:
    """Return the variables by which a pod without a device sees no GPU, in a job that asks for GPUs.

    In other jobs GPUs may come without being asked for, by the node's runtime. Neither is set beside one that
    the user has set: what an `envFrom` sets can't be seen here.
    """
    containers = [c for kind in ("initContainers", "containers") for _, c in objects_at(pod_spec, kind)]
    devices = (name for c in containers for name in mapping_at(c, "resources", "limits"))
    if _claimed(pod_spec) or any(is_extended_resource(name) for name in devices):
        return {}
    if any(v.get("name") in _NO_GPU for _, v in objects_at(trainer_of(pod_spec), "env")):
        return {}
    return _NO_GPU if any(count_gpus(role_template(spec, role)) for role in replica_counts(spec)) else {}


# The objects of a job.


TERMINATION_LOG = "/dev/termination-log"
"""Kubernetes' default of `terminationMessagePath`."""

_LAST_LINES = "FallbackToLogsOnError"
"""The `terminationMessagePolicy` by which the status of a container that has failed has its last lines."""


def build_objects(job: TrainJob, source: AgentSource | None = None) -> list[Manifest]:
    """Return all objects of the job's first attempt, in order of creation."""
    pods = [
        build_pod(job, role=r.role, index=r.index, incarnation=1, attempt=1, source=source)
        for r in desired_replicas(job.spec)
    ]
    claim = build_claim(job)
    return [*([claim] if claim else []), build_service(job), *pods]


def build_service(job: TrainJob) -> Manifest:
    """Return the headless Service that gives every replica its DNS name."""
    return render_template(
        "service.yaml.j2",
        job=job.metadata,
        labels=job_labels(job.metadata.name),
        owners=owner_references(job),
        selector={LABEL_JOB: job.metadata.name, LABEL_LIVE: "true"},
        port=PORT,
        agent_port=AGENT_PORT,
    )


def build_network_policy(job: TrainJob, isolation: Isolation) -> Manifest:
    """Return the policy that admits the job's own pods, the controller and the configured peers only."""
    return render_template(
        "network_policy.yaml.j2",
        job=job.metadata,
        labels=job_labels(job.metadata.name),
        owners=owner_references(job),
        selector={LABEL_JOB: job.metadata.name},
        controller_namespace=isolation.controller_namespace,
        controller_labels=CONTROLLER_LABELS,
        extra_ingress=[dict(rule) for rule in isolation.extra_ingress],
    )


def build_claim(job: TrainJob) -> Manifest | None:
    """Return the claim to create for the output, or None if the user provides the storage."""
    claim = job.spec.output.claim
    if claim is None or claim.size is None:
        return None
    return render_template(
        "claim.yaml.j2",
        job=job.metadata,
        claim_name=claim_name(job),
        # Argo CD takes what has this label and no owner for its application's, and would prune it.
        labels={
            key: value
            for key, value in job_labels(job.metadata.name).items()
            if not (claim.retain and key == "app.kubernetes.io/instance")
        },
        owners=owner_references(job),
        claim=claim,
    )


def build_program(namespace: str, bundle: Bundle) -> Manifest:
    """Return the ConfigMap with the agent and the trainer library for the pods of a namespace."""
    return render_template(
        "agent_program.yaml.j2",
        object_name=program_name(bundle.digest),
        namespace=namespace,
        labels={
            "app.kubernetes.io/name": MANAGER,
            "app.kubernetes.io/managed-by": MANAGER,
            LABEL_PROGRAM: "true",
        },
        program=bundle.encoded,
    )


def build_token_secret(job: TrainJob, bundle: Bundle) -> Manifest:
    """Return the Secret with the job's token for its pods."""
    token = job_token(bundle.key, job.metadata.uid)
    return render_template(
        "agent_secret.yaml.j2",
        job=job.metadata,
        object_name=secret_name(job.metadata, bundle.key),
        labels=job_labels(job.metadata.name),
        owners=owner_references(job),
        token=base64.b64encode(token.encode()).decode(),
    )


def build_pod(
    job: TrainJob,
    *,
    role: str,
    index: int,
    incarnation: int,
    attempt: int,
    source: AgentSource | None = None,
    avoided: Collection[str] = (),
    spec_digest: str = "",
) -> Manifest:
    """Return the pod of one replica.

    Args:
        job: a valid job.
        role: `chief`, `worker`, `ps` or `evaluator`.
        index: the replica's index within the role, from 0.
        incarnation: the number of the replica's pod, from 1.
        attempt: the number of this start of the training replicas, from 1.
        source: where its agent comes from; None if no controller's key is available.
        avoided: the names of nodes that it must not run on.
        spec_digest: identifies the job's spec, see `Observed.spec_digest`.
    """
    replica = Replica(role, index)
    source = source or AgentSource(f"{job.metadata.name}-agent")
    template = role_template(job.spec, role)
    agent = has_agent(job.spec)
    container = trainer_of(template["spec"])
    env = {**_environment(job, replica, attempt, container), **_hidden_gpus(job.spec, template["spec"])}
    if spec_digest:
        env["TRAINJOB_SPEC"] = spec_digest
    if not agent:  # an agent sets these at each start
        env["PYTHONHASHSEED"] = "0"  # a set has one order in all replicas
        if is_training(replica):
            env["TRAINJOB_GENERATION"] = f"{incarnation}.{attempt}"
    else:
        if job.spec.code is not None and not container.get("workingDir"):
            container["workingDir"] = CODE_FOLDER
        container["command"] = wrapped_command(container["command"], source.digest)
        env |= agent_environment(job, replica, incarnation, template["spec"], source.token_digest)
    overlay = render_template(
        "pod.yaml.j2",
        job=job.metadata,
        pod_name=pod_name(job.metadata.name, job.metadata.uid, replica, incarnation),
        labels=pod_labels(job.metadata.name, replica, incarnation),
        owners=owner_references(job),
        hostname=hostname(job.metadata.name, replica),
        volumes=[*_volumes(job), *(agent_volumes(source, job.spec.code) if agent else [])],
        mounts=[*_mounts(job, replica), *(agent_mounts(job.spec.code) if agent else [])],
        env=env,
        port=PORT,
        agent=agent,
        agent_port=AGENT_PORT,
        credentials=_credentials(job),
    )
    annotations = {}
    is_placed = {"name": TOPOLOGY_GATE} in (template["spec"].get("schedulingGates") or ())
    if avoided and not is_placed:  # Kueue knows which nodes are lost, and chooses another
        annotations[AVOIDED_NODES] = ",".join(sorted(avoided))
        template["spec"]["affinity"] = _avoiding(template["spec"], sorted(avoided))
    return _merge(template, overlay, annotations)


def _avoiding(pod_spec: Manifest, nodes: list[str]) -> Manifest:
    """Return the pod's affinity with these nodes excluded, whatever else it says."""
    affinity = mapping_at(pod_spec, "affinity")
    node_affinity = mapping_at(affinity, "nodeAffinity")
    required = mapping_at(node_affinity, _REQUIRED)
    others = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    terms = [  # a node needs to match only one of them
        {**term, "matchFields": [*(term.get("matchFields") or ()), *others]}
        for term in required.get("nodeSelectorTerms") or [{}]
    ]
    merged = {**node_affinity, _REQUIRED: {**required, "nodeSelectorTerms": terms}}
    return {**affinity, "nodeAffinity": merged}


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _environment(job: TrainJob, replica: Replica, attempt: int, container: Manifest) -> dict[str, str]:
    folders, reported = output_folders(root_folder(job), replica.role), reported_checkpoint(job)
    uri = output_uri(job)
    return {
        "TF_CONFIG": build_tf_config(job, replica),
        "TRAINJOB_NAMESPACE": job.metadata.namespace,
        "TRAINJOB_NAME": job.metadata.name,
        "TRAINJOB_UID": job.metadata.uid,
        "TRAINJOB_ATTEMPT": str(attempt),
        "TRAINJOB_OUTPUT_DIR": folders.own,
        "TRAINJOB_CHECKPOINT_DIR": folders.checkpoints,
        "TRAINJOB_LOG_DIR": folders.logs,
        "TRAINJOB_TERMINATION_LOG": container.get("terminationMessagePath") or TERMINATION_LOG,
        **({} if reported is None else {"TRAINJOB_REPORTED_CHECKPOINT": str(reported)}),
        **({"TRAINJOB_OUTPUT_URI": uri + folders.own.removeprefix(root_folder(job))} if uri else {}),
    }


def _volumes(job: TrainJob) -> list[Manifest]:
    output = job.spec.output
    claim = claim_name(job)
    if claim is not None:
        source: Manifest = {"persistentVolumeClaim": {"claimName": claim}}
    elif output.nfs is not None:
        source = {"nfs": output.nfs.model_dump(by_alias=True, exclude_none=True)}
    elif output.csi is not None:
        source = {"csi": output.csi}
    elif output.uri is not None:
        source = {"emptyDir": {}}  # what a bucket keeps is written there first
    elif output.empty_dir is not None:
        source = {"emptyDir": output.empty_dir}
    else:
        source = {"ephemeral": output.ephemeral}
    return [{"name": VOLUME, **source}]


def _credentials(job: TrainJob) -> list[Manifest]:
    """Return the `envFrom` of the job's own Secret for its bucket, if it has one."""
    secret = job.spec.output.credentials
    return [] if secret is None else [{"secretRef": {"name": secret.secret_name}}]


def _mounts(job: TrainJob, replica: Replica) -> list[Manifest]:
    output = job.spec.output
    if replica.role != EVALUATOR:
        return [{"name": VOLUME, "mountPath": output.mount_path}]
    # Read-only except for its own folder: a script that ignores its role can't harm the training.
    return [
        {"name": VOLUME, "mountPath": output.mount_path, "readOnly": True},
        {
            "name": VOLUME,
            "mountPath": output_folders(root_folder(job), replica.role).own,
            "subPath": f"{folder_name(job)}/{EVALUATOR}",
        },
    ]


def _merge(template: Manifest, overlay: Manifest, annotations: Mapping[str, str]) -> Manifest:
    """Merge the overlay into the user's template: what TrainJob promises wins, all else stays unchanged."""
    pod_spec = template["spec"]
    container = trainer_of(pod_spec)
    ours = overlay.pop("container")
    # Ours come first: `$(TRAINJOB_OUTPUT_DIR)` in the user's variables can only refer to earlier ones.
    # An empty `env:` is null and means none.
    container["env"] = [*ours["env"], *(container.get("env") or [])]
    container["volumeMounts"] = [*(container.get("volumeMounts") or []), *ours["volumeMounts"]]
    if sources := [*(container.get("envFrom") or []), *ours["envFrom"]]:
        container["envFrom"] = sources
    for port in ours["ports"]:
        container["ports"] = _with_port(container.get("ports") or [], port)
    container.setdefault("terminationMessagePolicy", _LAST_LINES)
    if inits := pod_spec.get("initContainers"):
        pod_spec["initContainers"] = [{"terminationMessagePolicy": _LAST_LINES, **init} for init in inits]
    pod_spec.setdefault("enableServiceLinks", False)
    pod_spec["volumes"] = [*(pod_spec.get("volumes") or []), *overlay["spec"].pop("volumes")]
    pod_spec.update(overlay["spec"])
    users, metadata = mapping_at(template, "metadata"), overlay["metadata"]
    metadata["labels"] = {**mapping_at(users, "labels"), **metadata["labels"]}
    if annotations := {**mapping_at(users, "annotations"), **annotations}:
        metadata["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec}


def _with_port(ports: list[Manifest], port: Manifest) -> list[Manifest]:
    present = any(
        p.get("containerPort") == port["containerPort"] or p.get("name") == port["name"] for p in ports
    )
    return ports if present else [*ports, port]


def share_claims(pod: Manifest) -> Manifest:
    """Return the pod with one volume for each claim, for all mounts of the claim.

    The kubelet mounts a claim once for each pod, and waits for a second volume of it for ever, without an
    event. Volumes of one NFS folder or CSI bucket are mounted apart. `trainjob run` leaves claims apart, too:
    `--volume` may name a folder for the one and not for the other.
    """
    spec = mapping_at(pod, "spec")
    by_claim: dict[str, list[Manifest]] = {}
    for volume in reversed(spec.get("volumes") or ()):  # the output's comes last, and stays
        if claim := mapping_at(volume, "persistentVolumeClaim").get("claimName"):
            by_claim.setdefault(claim, []).append(volume)
    kept: dict[str, Manifest] = {}
    changes: dict[str, Manifest] = {}  # of mounts, by the name of their volume
    for volumes in by_claim.values():
        if len(volumes) > 1:
            name = volumes[0]["name"]
            read_only = {v["name"]: v["persistentVolumeClaim"].get("readOnly") is True for v in volumes}
            source = next((v for v in volumes if not read_only[v["name"]]), volumes[0])
            kept[name] = {**source, "name": name}
            changes |= {
                n: {"name": name, **({"readOnly": True} if ro else {})} for n, ro in read_only.items()
            }
    if not changes:
        return pod

    def mount_again(container: Manifest) -> Manifest:
        mounts = [{**m, **changes.get(m["name"], {})} for m in container.get("volumeMounts") or ()]
        return {**container, "volumeMounts": mounts}

    volumes = [
        kept.get(v["name"], v) for v in spec["volumes"] if v["name"] in kept or v["name"] not in changes
    ]
    containers = {
        kind: [mount_again(container) for container in spec[kind]]
        for kind in ("initContainers", "containers")
        if spec.get(kind)
    }
    return {**pod, "spec": {**spec, "volumes": volumes, **containers}}


# The pod that reads a job's output, for `trainjob cp` and the like. Image, user and nodes are those of the
# leading replica: with these it can start and read. It has no label of a replica.


READER_CONTAINER = "reader"
READER_SECONDS = 3600
"""After which Kubernetes ends the pod, should nobody have deleted it."""

_IDLE = """\
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
time.sleep(int(sys.argv[1]))
"""
_READER_KEEPS = ("imagePullSecrets", "nodeSelector", "serviceAccountName", "tolerations")
_READER_USER = ("runAsUser", "runAsGroup", "supplementalGroups", "fsGroup", "seLinuxOptions")
_NOBODY = 65534


def build_output_reader(job: TrainJob, suffix: str) -> Manifest:
    """Return the pod that reads the job's output, as the user who submitted the job may create it.

    Args:
        job: a valid job, whose pods have no output volumes of their own.
        suffix: makes the name unique.
    """
    template = role_template(job.spec, leader(job.spec).role)
    pod_spec = template["spec"]
    container = trainer_of(pod_spec)
    idle = [interpreter_of(container.get("command") or ()), "-I", "-S", "-c", _IDLE, str(READER_SECONDS)]
    near = {
        "labelSelector": {"matchLabels": {LABEL_JOB: job.metadata.name}},
        "topologyKey": "kubernetes.io/hostname",
    }
    weighted = [{"weight": 100, "podAffinityTerm": near}]
    affinity: Manifest = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}
    if node_affinity := (pod_spec.get("affinity") or {}).get("nodeAffinity"):
        affinity["nodeAffinity"] = node_affinity
    return render_template(
        "output_reader.yaml.j2",
        job=job.metadata,
        object_name=f"{job.metadata.name}-output-{suffix}",
        labels={
            "app.kubernetes.io/name": MANAGER,
            "app.kubernetes.io/component": "output-reader",
            LABEL_OUTPUT_READER: job.metadata.name,
        },
        # Those by which drivers and meshes decide about a pod's volumes and containers.
        annotations=mapping_at(template, "metadata").get("annotations"),
        owners=[{k: v for k, v in owner_references(job)[0].items() if k not in _CONTROLS}],
        deadline=READER_SECONDS,
        security=_reader_security(pod_spec, container),
        affinity=affinity,
        kept={key: pod_spec[key] for key in _READER_KEEPS if pod_spec.get(key)},
        container=READER_CONTAINER,
        image=container.get("image"),
        pull_policy=container.get("imagePullPolicy"),
        command=idle,
        volumes=_volumes(job),
        mount_path=job.spec.output.mount_path,
        is_read_only=not job.spec.output.uri,
        # To reach a bucket it needs what the replicas have for it.
        env=list(container.get("env") or ()) if job.spec.output.uri else [],
        env_from=[*(container.get("envFrom") or ()), *_credentials(job)] if job.spec.output.uri else [],
    )


_CONTROLS = ("controller", "blockOwnerDeletion")
"""Of an owner: the controller takes what it controls for a replica, and only it may block a deletion."""


def _reader_security(pod_spec: Manifest, container: Manifest) -> Manifest:
    """Return the restricted security context with the user of the job's pods, or nobody instead of root."""
    users = {**mapping_at(pod_spec, "securityContext"), **mapping_at(container, "securityContext")}
    kept = {key: users[key] for key in _READER_USER if users.get(key) is not None}
    if kept.get("runAsUser") == 0 or ("runAsUser" not in kept and not users.get("runAsNonRoot")):
        kept["runAsUser"] = _NOBODY
    if "fsGroup" in kept:
        kept["fsGroupChangePolicy"] = "OnRootMismatch"  # the job's pods have changed all that there is
    return {**kept, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


# Jinja2 templates of manifests, rendered so that no value can become structure.
#
# A template is YAML. Every value passes the filter `value`, which writes a numbered placeholder into the
# text. The text is parsed, and then the values replace the placeholders. So the YAML parser never reads a
# value. A text without values is the same for thousands of pods and is parsed once: parsing took three
# quarters of the time to render a pod.


_PLACES = "_places"
_TAG = "!place"


class _Place(int):
    """The placeholder for the value of this number."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A safe loader that also reads placeholders."""


def _read_place(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> _Place:
    return _Place(loader.construct_scalar(node))


_Loader.add_constructor(_TAG, _read_place)


@cache
def load_templates() -> jinja2.Environment:
    """Return the templates; the first call imports jinja2, which takes a while."""
    import jinja2  # noqa: PLC0415 - `trainjob validate` renders nothing

    @jinja2.pass_context
    def leave_place(context: Context, value: Any) -> str:
        if isinstance(value, jinja2.Undefined):
            str(value)  # raises, and names what is missing
        places: list[Any] = context[_PLACES]
        # A copy, and a check that it is JSON: the values are shared with the job.
        places.append(value if isinstance(value, str) else json.loads(json.dumps(value)))
        return f"{_TAG} {len(places) - 1}"

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("trainjob", "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - this is YAML, not HTML, and holds no values
        keep_trailing_newline=True,
        auto_reload=False,
    )
    environment.filters["value"] = leave_place
    return environment


@lru_cache(maxsize=256)
def _parse(text: str) -> Any:
    return yaml.load(text, _Loader)  # noqa: S506 - a safe loader


def _fill(tree: Any, values: list[Any]) -> Any:
    if isinstance(tree, _Place):
        return values[tree]
    if isinstance(tree, dict):
        return {key: _fill(branch, values) for key, branch in tree.items()}
    if isinstance(tree, list):
        return [_fill(branch, values) for branch in tree]
    return tree


def render_template(name: str, **values: Any) -> dict[str, Any]:
    """Return the object that the template `name` describes.

    Raises:
        jinja2.UndefinedError: the template uses a value that wasn't given.
        TypeError: a value can't be written as JSON.
    """
    places: list[Any] = []
    text = load_templates().get_template(name).render(**values, **{_PLACES: places})
    rendered = _fill(_parse(text), places)
    assert isinstance(rendered, dict)  # noqa: S101 - our own templates
    return rendered
