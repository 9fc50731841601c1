"""What a job needs in its pod templates; the API server checks the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainjob.api.constants import (
    ADDED_VOLUMES,
    RESERVED_ENV_NAME,
    RESERVED_ENV_PREFIX,
    RESERVED_LABEL_PREFIX,
    TRAINER_CONTAINER,
)
from trainjob.api.errors import (
    FieldError,
    Step,
    format_path,
    mapping_at,
    objects_at,
    shown,
    trainer_of,
    value_at,
)
from trainjob.api.fields import read_quantity
from trainjob.api.rules.rule import Rule
from trainjob.api.rules.shape import ENV as ENV_SHAPE
from trainjob.api.rules.shape import TEMPLATE, check_shape

ROLES = ("worker", "chief", "ps", "evaluator")

_POD = "spec.template.spec"

TRAINER = Rule(
    at=f"{_POD}.containers",
    cel=f"self.exists(c, c.name == '{TRAINER_CONTAINER}')",
    message=f'must have a container named "{TRAINER_CONTAINER}", the one that trains',
)
RESTART_POLICY = Rule(
    at=f"{_POD}.restartPolicy",
    cel="self == 'Never'",
    message="must be Never or absent; spec.maxRestarts says how often training is restarted",
)
HOST_NETWORK = Rule(
    at=f"{_POD}.hostNetwork",
    cel="!self",
    message="must not be true, since replicas on one node would share a port; remove it",
)
DNS_POLICY = Rule(
    at=f"{_POD}.dnsPolicy",
    cel="self != 'Default'",
    message="must not be Default, which is the node's DNS: replicas find each other by the cluster's; remove"
    " it, or write ClusterFirst",
)
HOST_NAME = Rule(
    at=_POD,
    cel="!has(self.hostname) && !has(self.subdomain)",
    message="hostname and subdomain are set for each replica, so that replicas find each other; remove them",
)
_FREE = (
    f"all(e, !has(e.name) || e.name != '{RESERVED_ENV_NAME}' && !e.name.startsWith('{RESERVED_ENV_PREFIX}'))"
)
ENV = Rule(
    at=f"{_POD}.containers[]",
    cel=f"self.name != '{TRAINER_CONTAINER}' || !has(self.env) || self.env.{_FREE}",
    message=f"{RESERVED_ENV_NAME} and {RESERVED_ENV_PREFIX}* are set for each replica; remove them",
    field_path=".env",
)
ROLE_ENV = tuple(Rule(at=f"spec.{role}.env", cel=f"self.{_FREE}", message=ENV.message) for role in ROLES)
VOLUME = Rule(
    at=f"{_POD}.volumes",
    cel=f"self.all(v, !(v.name in {list(ADDED_VOLUMES)}))",
    message=f"{', '.join(ADDED_VOLUMES)} are volumes that are added; choose another name",
)
COMMAND = Rule(
    at="spec",
    cel="self.restartStrategy == 'Recreate' || self.template.spec.containers.all(c,"
    f" c.name != '{TRAINER_CONTAINER}' || has(c.command) && size(c.command) > 0)",
    message="the container that trains needs a command, which the agent starts (the image's own command "
    "isn't known); or set spec.restartStrategy: Recreate",
    field_path=".template.spec.containers",
)
MOUNT = Rule(
    at="spec",
    cel=f"self.template.spec.containers.all(c, c.name != '{TRAINER_CONTAINER}' || !has(c.volumeMounts)"
    " || c.volumeMounts.all(m, !(m.mountPath in [self.output.mountPath, self.output.mountPath + '/'])))",
    message="the output is mounted at spec.output.mountPath; choose another path for one of them",
    field_path=".template.spec.containers",
)
LABELS = Rule(
    at="spec.template.metadata.labels",
    cel=f"self.all(key, !key.startsWith('{RESERVED_LABEL_PREFIX}'))",
    message=f"keys under {RESERVED_LABEL_PREFIX} are set by the controller; remove them",
)
ANNOTATIONS = Rule(at="spec.template.metadata.annotations", cel=LABELS.cel, message=LABELS.message)

RULES = (
    TRAINER,
    RESTART_POLICY,
    HOST_NETWORK,
    DNS_POLICY,
    HOST_NAME,
    ENV,
    *ROLE_ENV,
    VOLUME,
    MOUNT,
    COMMAND,
    LABELS,
    ANNOTATIONS,
)


def check(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Check the pod templates of the job and of its roles, and the roles' env."""
    mount_path = value_at(raw, "spec", "output", "mountPath") or "/output"
    in_place = value_at(raw, "spec", "restartStrategy") in (None, "InPlace")
    places: list[tuple[Step, ...]] = [("spec",), *(("spec", role) for role in ROLES)]
    for place in places:
        template = value_at(raw, *place, "template")
        if isinstance(template, Mapping):
            yield from _check_template(template, (*place, "template"), mount_path)
            if in_place:
                yield from _check_command(template, (*place, "template"))
            yield from check_shape(template, TEMPLATE, (*place, "template"))
        if len(place) > 1:
            yield from _check_env(mapping_at(raw, *place), place)
            yield from check_shape(value_at(raw, *place, "env"), ENV_SHAPE, (*place, "env"))
    yield from _check_bound(raw)


def _check_bound(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Check that the workers have a memory limit for `maxAllowed` to raise."""
    at = ("spec", "worker", "maxAllowed", "memory")
    bound, role = value_at(raw, *at), mapping_at(raw, "spec", "worker")
    most = read_quantity(bound) if isinstance(bound, str) else None
    if most is None or most <= 0:
        return  # another rule's to refuse
    template = role.get("template") or mapping_at(raw, "spec", "template")
    container = role if "resources" in role else trainer_of(mapping_at(template, "spec"))
    limit = mapping_at(container, "resources", "limits").get("memory")
    if limit is None:
        yield FieldError(
            format_path(at),
            "there is no limit to raise: give the workers' trainer container resources.limits.memory",
        )
    elif (read_quantity(str(limit)) or 0) > most:
        yield FieldError(format_path(at), f"is less than the workers' memory limit, {shown(limit)}; raise it")


def _check_template(
    template: Mapping[str, Any], path: tuple[Step, ...], mount_path: object
) -> Iterator[FieldError]:
    for kind in ("labels", "annotations"):
        for key in mapping_at(template, "metadata", kind):
            if str(key).startswith(RESERVED_LABEL_PREFIX):
                yield FieldError(format_path((*path, "metadata", kind, key)), LABELS.message)
    pod = template.get("spec")
    pod_path = (*path, "spec")
    if not isinstance(pod, Mapping):
        problem = "required" if pod is None else f"must be an object, got {shown(pod)}"
        yield FieldError(format_path(pod_path), f"{problem}; for example {_EXAMPLE}")
        return
    yield from _check_pod(pod, pod_path)
    yield from _check_containers(pod, (*pod_path, "containers"), mount_path)


_EXAMPLE = (
    '"spec: {containers: [{name: trainer, image: ghcr.io/acme/digits:1, command: [python, train.py]}]}"'
)


def _check_pod(pod: Mapping[str, Any], path: tuple[Step, ...]) -> Iterator[FieldError]:
    if pod.get("restartPolicy") not in (None, "Never"):
        problem = f"{RESTART_POLICY.message}; got {shown(pod['restartPolicy'])}"
        yield FieldError(format_path((*path, "restartPolicy")), problem)
    if pod.get("hostNetwork") not in (None, False):
        yield FieldError(format_path((*path, "hostNetwork")), HOST_NETWORK.message)
    if pod.get("dnsPolicy") == "Default":
        yield FieldError(format_path((*path, "dnsPolicy")), DNS_POLICY.message)
    for field in ("hostname", "subdomain"):
        if pod.get(field) is not None:
            yield FieldError(format_path((*path, field)), HOST_NAME.message)
    for index, volume in objects_at(pod, "volumes"):
        if volume.get("name") in ADDED_VOLUMES:
            yield FieldError(format_path((*path, "volumes", index, "name")), VOLUME.message)


def _check_containers(
    pod: Mapping[str, Any], path: tuple[Step, ...], mount_path: object
) -> Iterator[FieldError]:
    containers = pod.get("containers")
    if not isinstance(containers, list):
        problem = "required" if containers is None else f"must be a list, got {shown(containers)}"
        yield FieldError(format_path(path), f'{problem}; for example "containers: [{{name: trainer}}]"')
        return
    names: list[str] = []
    for index, container in enumerate(containers):
        if not isinstance(container, Mapping):
            yield FieldError(format_path((*path, index)), f"must be an object, got {shown(container)}")
            continue
        name = container.get("name")
        if problem := _problem_of_name(name, names):
            yield FieldError(format_path((*path, index, "name")), problem)
        if isinstance(name, str):
            names.append(name)
        if name == TRAINER_CONTAINER:
            yield from _check_env(container, (*path, index))
            yield from _check_mounts(container, (*path, index), mount_path)
    if TRAINER_CONTAINER not in names:
        found = f"; got {', '.join(map(shown, names))}" if names else ""
        yield FieldError(format_path(path), TRAINER.message + found)


def _check_command(template: Mapping[str, Any], path: tuple[Step, ...]) -> Iterator[FieldError]:
    for index, container in objects_at(mapping_at(template, "spec"), "containers"):
        if container.get("name") == TRAINER_CONTAINER and container.get("command") in (None, []):
            yield FieldError(format_path((*path, "spec", "containers", index, "command")), COMMAND.message)


def _problem_of_name(name: object, earlier: list[str]) -> str:
    if name in (None, ""):
        return "required; the container that trains is named trainer"
    if not isinstance(name, str):
        return f"must be a string, got {shown(name)}"
    return f"{shown(name)} is the name of another container; give each its own" if name in earlier else ""


def _check_env(holder: Mapping[str, Any], path: tuple[Step, ...]) -> Iterator[FieldError]:
    for index, variable in objects_at(holder, "env"):
        name = variable.get("name")
        if isinstance(name, str) and (name == RESERVED_ENV_NAME or name.startswith(RESERVED_ENV_PREFIX)):
            yield FieldError(format_path((*path, "env", index, "name")), f"{ENV.message}; got {shown(name)}")


def _check_mounts(
    container: Mapping[str, Any], path: tuple[Step, ...], mount_path: object
) -> Iterator[FieldError]:
    for index, mount in objects_at(container, "volumeMounts"):
        target = mount.get("mountPath")
        if isinstance(target, str) and target.rstrip("/") == str(mount_path).rstrip("/"):
            yield FieldError(format_path((*path, "volumeMounts", index, "mountPath")), MOUNT.message)
