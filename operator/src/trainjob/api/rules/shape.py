"""The shape of the parts of a pod template that this package reads; the API server checks all parts.

A template stays as the user wrote it. The parts that a runner reads must have Kubernetes' types: a list of
objects where Kubernetes has one, and strings where Kubernetes has strings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainjob.api.errors import FieldError, Step, format_path, shown

Shape = type | tuple["Shape"] | dict[str, "Shape"]
"""A scalar's type, a list of one shape, or an object with shapes by key; `{"*": s}` allows any key."""

_MOUNT: Shape = {"name": str, "mountPath": str, "subPath": str, "subPathExpr": str}
_ENV: Shape = {"name": str, "value": str, "valueFrom": {"*": {}}}
_VOLUME: Shape = {
    "name": str,
    "persistentVolumeClaim": {"claimName": str},
    "hostPath": {"path": str},
    **{kind: {} for kind in ("configMap", "secret", "projected", "downwardAPI", "emptyDir", "nfs", "csi")},
}
_CONTAINER: Shape = {
    "image": str,
    "command": (str,),
    "args": (str,),
    "workingDir": str,
    "env": (_ENV,),
    "envFrom": ({"secretRef": {}, "configMapRef": {}},),
    "ports": ({"name": str, "containerPort": int},),
    "volumeMounts": (_MOUNT,),
    "resources": {"limits": {}, "requests": {}},
}
TEMPLATE: Shape = {
    "metadata": {"labels": {"*": str}, "annotations": {"*": str}},
    "spec": {
        "containers": (_CONTAINER,),
        "initContainers": ({"volumeMounts": (_MOUNT,)},),
        "volumes": (_VOLUME,),
        "nodeSelector": {"*": str},
        "tolerations": ({},),
        "terminationGracePeriodSeconds": int,
    },
}
ENV: Shape = (_ENV,)
_REQUIRED: dict[str, tuple[str, ...]] = {
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("name", "mountPath"),
    "persistentVolumeClaim": ("claimName",),
    "hostPath": ("path",),
}
"""Required keys, by the field that holds the object or the list of such objects."""
LONGEST_TEXT = 1024
"""Maximum characters of texts that CEL rules read: the API server accepts no rule on unbounded texts."""
_BOUNDED = ("env", "volumes", "volumeMounts")
_WORDS = {str: "a string", int: "an integer"}


def check_shape(value: object, shape: Shape, path: tuple[Step, ...]) -> Iterator[FieldError]:
    """Yield an error for each value of another shape; null means absent, as for the API server."""
    if value is None:
        return
    if isinstance(shape, dict):
        yield from _check_object(value, shape, path)
    elif isinstance(shape, tuple):
        yield from _check_list(value, shape[0], path)
    elif not isinstance(value, shape) or isinstance(value, bool):
        hint = "; put it in quotes" if shape is str and isinstance(value, int | float) else ""
        yield _error(path, f"must be {_WORDS[shape]}, got {shown(value)}{hint}")


def _check_object(value: object, shape: dict[str, Shape], path: tuple[Step, ...]) -> Iterator[FieldError]:
    if not isinstance(value, Mapping):
        yield _error(path, f"must be an object, got {shown(value)}")
        return
    holder = next((step for step in reversed(path) if isinstance(step, str)), "")
    for key in _REQUIRED.get(holder, ()):
        text = value.get(key)
        if text in (None, ""):
            yield _error((*path, key), "required")
        elif holder in _BOUNDED and isinstance(text, str) and len(text) > LONGEST_TEXT:
            yield _error((*path, key), f"must have at most {LONGEST_TEXT} characters, got {len(text)}")
    for key, item in value.items():
        inner = shape.get("*", shape.get(key)) if isinstance(key, str) else None
        if inner is not None:
            yield from check_shape(item, inner, (*path, key))


def _check_list(value: object, shape: Shape, path: tuple[Step, ...]) -> Iterator[FieldError]:
    if not isinstance(value, list | tuple):
        example = f'; for example "{path[-1]}: [python, train.py]"' if path[-1] == "command" else ""
        yield _error(path, f"must be a list, got {shown(value)}{example}")
        return
    for index, item in enumerate(value):
        if item is None:
            yield _error((*path, index), "must not be empty; remove it")
        elif path[-1] == "env" and isinstance(item, Mapping) and "=" in str(item.get("name")):
            yield _error((*path, index, "name"), f'must not hold "="; got {shown(item["name"])}')
        else:
            yield from check_shape(item, shape, (*path, index))


def _error(path: tuple[Any, ...], message: str) -> FieldError:
    return FieldError(format_path(path), message)
