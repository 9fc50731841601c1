"""The variables of a container, as its process on this machine gets them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainjob.cluster.local.expansion import expand
from trainjob.cluster.local.place import Place
from trainjob.cluster.local.refusal import CannotRunHere
from trainjob.cluster.local.rewriting import LOOPBACK

_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_KEPT_BY_CLUSTER = {"secretKeyRef": "Secret", "configMapKeyRef": "ConfigMap"}


@dataclass(frozen=True)
class Variables:
    """What a container's `env` comes to.

    Attributes:
        written: the values written in the manifest, with references expanded; they speak of the cluster's
            addresses and paths.
        given: the values that come from this machine, which already are its own.
        notes: what could not be had, one line each.
    """

    written: dict[str, str] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def all(self) -> dict[str, str]:
        """Return both kinds together, for references to them."""
        return {**self.written, **self.given}


def resolve_variables(pod: Mapping[str, Any], container: Mapping[str, Any], place: Place) -> Variables:
    """Return the variables of `container`, later entries seeing and replacing earlier ones.

    Raises:
        CannotRunHere: a value is kept by a cluster, and the caller's environment has none of that name.
    """
    written: dict[str, str] = {}
    given: dict[str, str] = {}
    refused: list[str] = []
    for entry in container.get("env") or ():
        name = entry["name"]
        written.pop(name, None)
        source = entry.get("valueFrom")
        if not source:
            value = expand(str(entry.get("value") or ""), {**written, **given})
            given.pop(name, None)
            written[name] = value
            continue
        given.pop(name, None)
        try:
            found = _referenced(name, source, pod, place)
        except CannotRunHere as cannot:
            refused += cannot.lines
        else:
            given.update({} if found is None else {name: found})
    if refused:
        raise CannotRunHere(refused)
    return Variables(written, given, tuple(_notes_on_env_from(container)))


def _referenced(name: str, source: Mapping[str, Any], pod: Mapping[str, Any], place: Place) -> str | None:
    kind = next(iter(source))
    reference = source[kind] or {}
    if kind == "fieldRef":
        known = _pod_field(str(reference.get("fieldPath")), pod, place)
        if known is not None:
            return known
    if name in place.environ:
        return place.environ[name]
    if kind in _KEPT_BY_CLUSTER:
        if reference.get("optional"):
            return None
        what = f"{_KEPT_BY_CLUSTER[kind]} {reference.get('name')} (key {reference.get('key')})"
    else:
        what = f"{kind} {reference.get('fieldPath') or reference.get('resource') or ''}".strip()
    raise CannotRunHere([f"env {name} comes from {what}, which is not here: export {name}=... first"])


def _pod_field(path: str, pod: Mapping[str, Any], place: Place) -> str | None:
    metadata, spec = pod["metadata"], pod["spec"]
    keyed = _KEYED.fullmatch(path)
    if keyed:
        return str((metadata.get(keyed.group(1)) or {}).get(keyed.group(2), ""))
    plain = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata.get("namespace", "default"),
        "metadata.uid": metadata.get("uid"),
        "spec.nodeName": place.node,
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.podIP": LOOPBACK,
        "status.podIPs": LOOPBACK,
        "status.hostIP": LOOPBACK,
    }
    return plain.get(path)


def _notes_on_env_from(container: Mapping[str, Any]) -> Iterator[str]:
    for source in container.get("envFrom") or ():
        for key, kind in (("secretRef", "Secret"), ("configMapRef", "ConfigMap")):
            if key in source:
                name = (source[key] or {}).get("name")
                yield f"envFrom: {kind} {name} is not here: export its variables before the start if needed"
