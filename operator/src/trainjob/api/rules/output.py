"""Where the output can be stored."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainjob.api.errors import FieldError, format_path, shown, value_at
from trainjob.api.rules.rule import Rule
from trainjob.api.types import count_raw_roles

PLACES = ("claim", "nfs", "csi", "uri", "emptyDir", "ephemeral")
_OF_ONE_POD = ("emptyDir", "ephemeral")

_ONE_POD = "self.worker.replicas == 1 && self.evaluator.replicas == 0 && !has(self.chief) && !has(self.ps)"
_QUANTITY = r"\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?"
_BUCKET = "^gs://[a-z0-9][-_.a-z0-9]*(/.*)?$"

ONE_PLACE = Rule(
    at="spec.output",
    cel=f"[{', '.join(f'has(self.{place})' for place in PLACES)}].exists_one(x, x)",
    message=f"must have exactly one of {', '.join(PLACES)}",
)
SHARED = Rule(
    at="spec",
    cel=f"!({' || '.join(f'has(self.output.{place})' for place in _OF_ONE_POD)}) || ({_ONE_POD})",
    message="can't be shared by several pods: use claim, nfs or csi,"
    " or one worker with evaluator.replicas 0 and neither chief nor ps",
    field_path=".output",
)
SHARED_CLAIM = Rule(
    at="spec",
    cel="!has(self.output.claim) || !self.output.claim.accessModes.exists(m, m == 'ReadWriteOncePod')"
    f" || ({_ONE_POD})",
    message="ReadWriteOncePod is for one pod only: use ReadWriteMany,"
    " or one worker with evaluator.replicas 0 and neither chief nor ps",
    field_path=".output.claim.accessModes",
)
CLAIM = Rule(
    at="spec.output.claim",
    cel="has(self.claimName) != has(self.size)",
    message="must have either claimName, for a claim that exists, or size, for one to create",
)
STORAGE_CLASS = Rule(
    at="spec.output.claim",
    cel="!has(self.storageClassName) || has(self.size)",
    message="is for a claim that is created: give its size, or remove this",
    field_path=".storageClassName",
)
SIZE = Rule(
    at="spec.output.claim.size",
    cel="isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",
    message='must be a quantity above zero, such as "10Gi"',
)
NFS_PATH = Rule(
    at="spec.output.nfs.path",
    cel="self.startsWith('/')",
    message="must be an absolute path",
)
URI = Rule(
    at="spec.output.uri",
    cel=f"self.matches('{_BUCKET}')",
    message='must be "gs://" and a bucket, the one storage that TensorFlow reaches by itself;'
    " for anything else use claim, nfs or csi",
)
MOUNT_PATH = Rule(
    at="spec.output.mountPath",
    cel="self.startsWith('/') && !self.contains(':') && !self.matches('^/+$|/[.][.](/|$)')",
    message='must be an absolute path other than "/", without ".." and ":"',
)

RULES = (ONE_PLACE, SHARED, SHARED_CLAIM, CLAIM, STORAGE_CLASS, SIZE, NFS_PATH, URI, MOUNT_PATH)


def check(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Check `spec.output`."""
    output = value_at(raw, "spec", "output")
    if not isinstance(output, Mapping):
        return
    places = [place for place in PLACES if place in output]
    if len(places) != 1:
        found = f"; got {' and '.join(places)}" if places else '; for example "claim: {claimName: training}"'
        yield FieldError("spec.output", ONE_PLACE.message + found)
    yield from _check_sharing(raw, output)
    yield from _check_claim(output)
    yield from _check_texts(output)


def _check_sharing(raw: Mapping[str, Any], output: Mapping[str, Any]) -> Iterator[FieldError]:
    counts = count_raw_roles(raw)
    if counts is None or counts.is_single:
        return
    for place in _OF_ONE_POD:
        if place in output:
            yield FieldError(format_path(("spec", "output", place)), SHARED.message)
    modes = value_at(output, "claim", "accessModes")
    if isinstance(modes, list) and "ReadWriteOncePod" in modes:
        yield FieldError("spec.output.claim.accessModes", SHARED_CLAIM.message)


def _check_claim(output: Mapping[str, Any]) -> Iterator[FieldError]:
    claim = output.get("claim")
    if not isinstance(claim, Mapping):
        return
    if ("claimName" in claim) == ("size" in claim):
        yield FieldError("spec.output.claim", CLAIM.message)
    if "storageClassName" in claim and "size" not in claim:
        yield FieldError("spec.output.claim.storageClassName", STORAGE_CLASS.message)


def _check_texts(output: Mapping[str, Any]) -> Iterator[FieldError]:
    for steps, is_good, rule in (
        (("claim", "size"), _is_positive_quantity, SIZE),
        (("nfs", "path"), lambda path: path.startswith("/"), NFS_PATH),
        (("uri",), lambda uri: re.fullmatch(_BUCKET, uri), URI),
        (("mountPath",), _is_mount_path, MOUNT_PATH),
    ):
        text = value_at(output, *steps)
        if isinstance(text, str) and text and not is_good(text):
            yield FieldError(format_path(("spec", "output", *steps)), f"{rule.message}; got {shown(text)}")
    if isinstance(csi := output.get("csi"), Mapping) and not isinstance(csi.get("driver"), str):
        yield FieldError("spec.output.csi.driver", 'required; for example "driver: csi.example.com"')


def _is_positive_quantity(text: str) -> bool:
    return bool(re.fullmatch(_QUANTITY, text)) and bool(re.search("[1-9]", re.split("[eE]", text)[0]))


def _is_mount_path(path: str) -> bool:
    return path.startswith("/") and bool(path.strip("/")) and ":" not in path and ".." not in path.split("/")
