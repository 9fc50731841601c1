"""Where the output can be stored."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainjob.api.errors import FieldError, format_path, value_at
from trainjob.api.rules.rule import Rule, fields_are, find_broken, is_positive_quantity, text_is
from trainjob.api.types import count_raw_roles

PLACES = ("claim", "nfs", "csi", "uri", "emptyDir", "ephemeral")
_OF_ONE_POD = ("emptyDir", "ephemeral")

_ONE_POD = "self.worker.replicas == 1 && self.evaluator.replicas == 0 && !has(self.chief) && !has(self.ps)"


def _is_mount_path(path: str) -> bool:
    return path.startswith("/") and bool(path.strip("/")) and ":" not in path and ".." not in path.split("/")


ONE_PLACE = Rule(
    at="spec.output",
    cel=f"[{', '.join(f'has(self.{place})' for place in PLACES)}].exists_one(x, x)",
    message=f"must have exactly one of {', '.join(PLACES)}",
)
_ADDRESS = "(s3|gs|az)://[a-z0-9][a-z0-9._-]*[a-z0-9](/[A-Za-z0-9_=+-][A-Za-z0-9._=+-]*)*/?"
URI = Rule(
    at="spec.output.uri",
    cel=f"self.matches('^{_ADDRESS}$')",
    message="must be s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or az://CONTAINER/FOLDER, in letters, digits and"
    " ._=+-; no name of a folder begins with a dot",
    holds=text_is(lambda uri: re.fullmatch(_ADDRESS, uri) is not None),
)
CREDENTIALS = Rule(
    at="spec.output",
    cel="!has(self.credentials) || has(self.uri)",
    message="is for a bucket: give its uri, or remove this",
    field_path=".credentials",
    holds=fields_are(lambda output: "credentials" not in output or "uri" in output),
)
SHARED = Rule(
    at="spec",
    cel=f"!({' || '.join(f'has(self.output.{place})' for place in _OF_ONE_POD)}) || ({_ONE_POD})",
    message="can't be shared by several pods: use claim, nfs, csi or uri,"
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

RULES = (
    ONE_PLACE,
    URI,
    CREDENTIALS,
    SHARED,
    SHARED_CLAIM,
    Rule(
        at="spec.output.claim",
        cel="has(self.claimName) != has(self.size)",
        message="must have either claimName, for a claim that exists, or size, for one to create",
        holds=fields_are(lambda claim: ("claimName" in claim) != ("size" in claim)),
    ),
    Rule(
        at="spec.output.claim",
        cel="!has(self.storageClassName) || has(self.size)",
        message="is for a claim that is created: give its size, or remove this",
        field_path=".storageClassName",
        holds=fields_are(lambda claim: "storageClassName" not in claim or "size" in claim),
    ),
    is_positive_quantity("spec.output.claim.size"),
    Rule(
        at="spec.output.nfs.path",
        cel="self.startsWith('/')",
        message="must be an absolute path",
        holds=text_is(lambda path: path.startswith("/")),
    ),
    Rule(
        at="spec.output.mountPath",
        cel="self.startsWith('/') && !self.contains(':') && !self.matches('^/+$|/[.][.](/|$)')",
        message='must be an absolute path other than "/", without ".." and ":"',
        holds=text_is(_is_mount_path),
    ),
)


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
    yield from find_broken(RULES, raw)
    if isinstance(csi := output.get("csi"), Mapping) and not isinstance(csi.get("driver"), str):
        yield FieldError("spec.output.csi.driver", 'required; for example "driver: csi.example.com"')


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
