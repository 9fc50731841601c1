"""Limits on a job's size: its total replicas, and the parts that its pods repeat.

The controller and its standby, the API server and etcd serve every namespace: one job must not fill them.
The limits apply to a job that hasn't begun; a job that an earlier version started continues. ADR 0019 has
the figures behind the limits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trainjob.api.constants import PORT
from trainjob.api.errors import FieldError, Step, format_path, mapping_at, value_at
from trainjob.api.rules.rule import Rule
from trainjob.api.types import RoleCounts, count_raw_roles

MOST_REPLICAS = 1000
"""Of chief, workers and parameter servers together; one evaluator may be added."""

LARGEST_PART = 64 * 1024
"""Bytes as JSON of each part of a job that its pods repeat."""

LARGEST_PODS = 32 * 1024 * 1024
"""Bytes as JSON of these parts in all pods of a job together."""

LARGEST_TF_CONFIG = 128 * 1024 - 1024
"""Bytes of all addresses: Linux starts no process with a variable of 128 KiB (`MAX_ARG_STRLEN`)."""

_ROLES = ("worker", "chief", "ps", "evaluator")
_PARTS: tuple[tuple[Step, ...], ...] = (
    ("spec", "template"),
    ("spec", "output"),
    *(("spec", role) for role in _ROLES),
)
_DEEPEST_NAMED = 4  # below a part: `spec.containers[0].env` of a template
_MIB = 1024 * 1024
_KEEP_FILES = "keep files in the image, a ConfigMap or a volume"


def _sum_in_cel(spec: str) -> str:
    return f"{spec}.worker.replicas + (has({spec}.chief) ? 1 : 0) + (has({spec}.ps) ? {spec}.ps.replicas : 0)"


_TOTAL_MESSAGE = f"worker, chief and ps may have {MOST_REPLICAS} replicas together; ask for fewer"

# The API server drops the status of a new job; a job with a status may be from an earlier version.
TOTAL = Rule(
    at="",
    cel=f"has(self.status) || {_sum_in_cel('self.spec')} <= {MOST_REPLICAS}",
    message=_TOTAL_MESSAGE,
    field_path=".spec.worker.replicas",
)
GROWTH = Rule(
    at="spec",
    cel=f"{_sum_in_cel('self')} <= {MOST_REPLICAS} || self.worker.replicas <= oldSelf.worker.replicas",
    message=f"{_TOTAL_MESSAGE} (a job that has more can only be made smaller)",
    field_path=".worker.replicas",
)

RULES = (TOTAL, GROWTH)


class TooLarge(dict[str, Any]):
    """An empty replacement for a part of a job that is too large to be kept.

    Attributes:
        error: the error about that part.
    """

    def __init__(self, error: FieldError) -> None:
        super().__init__()
        self.error = error


def find_too_large(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield an error for each part over its limit, with the innermost field that alone is over it."""
    for path in _PARTS:
        part = value_at(raw, *path)
        if isinstance(part, TooLarge):
            yield part.error
        elif (size := _size_of(part)) > LARGEST_PART:
            inner, size = _largest_in(part, size)
            yield FieldError(format_path((*path, *inner)), _describe(size))


def without_too_large(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job without the parts over their limit; `find_too_large` yields the same errors for it."""
    errors = list(find_too_large(raw))
    if not errors:
        return dict(raw)
    spec = dict(mapping_at(raw, "spec"))
    for error in errors:
        name = next(str(path[1]) for path in _PARTS if _is_within(error.path, format_path(path)))
        spec[name] = TooLarge(error)
    return {**raw, "spec": spec}


def check(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Check the number of replicas and the total size of their pods."""
    counts = count_raw_roles(raw)
    if counts is None:
        return
    if counts.training > MOST_REPLICAS:
        yield FieldError("spec.worker.replicas", f"{_TOTAL_MESSAGE}; got {counts.training}")
    yield from _check_addresses(raw, counts)
    yield from _check_pods(raw, counts)


def _check_addresses(raw: Mapping[str, Any], counts: RoleCounts) -> Iterator[FieldError]:
    meta = mapping_at(raw, "metadata")
    name, namespace = len(str(meta.get("name", ""))), len(str(meta.get("namespace") or "default"))
    # As in "digits-worker-0.digits.research.svc:2222", with quotes and a comma.
    each = 2 * name + len(counts.longest_suffix()) + namespace + len(f'"...svc:{PORT}",')
    largest = max(1, LARGEST_TF_CONFIG // each)
    if largest < counts.training <= MOST_REPLICAS:
        yield FieldError(
            "spec.worker.replicas",
            f"the addresses of {counts.training} replicas don't fit into one variable, TF_CONFIG, which Linux"
            f" limits to 128 KiB; with these names of the job and its namespace, {largest} do: ask for fewer"
            " replicas, or choose shorter names",
        )


def _check_pods(raw: Mapping[str, Any], counts: RoleCounts) -> Iterator[FieldError]:
    if counts.training * 3 * LARGEST_PART <= LARGEST_PODS:
        return  # within the limit even with the largest template, role and output
    spec = mapping_at(raw, "spec")
    shared, output = _size_of(spec.get("template")), _size_of(spec.get("output"))
    sizes: dict[str, int] = {}
    for role in _ROLES:
        if count := getattr(counts, role):
            own = mapping_at(spec, role)
            sizes[role] = count * (_size_of(own) + output + (0 if own.get("template") else shared))
    total, largest = sum(sizes.values()), max(sizes, key=sizes.__getitem__, default="")
    if total > LARGEST_PODS:
        yield FieldError(
            f"spec.{largest}.replicas",
            f"the templates and the output of all pods together are {total / _MIB:.1f} MiB as JSON; at most"
            f" {LARGEST_PODS // _MIB} MiB are allowed: ask for fewer replicas, or {_KEEP_FILES}",
        )


def _size_of(value: object) -> int:
    """Return the bytes of a value as JSON; other rules refuse values that can't be written as JSON."""
    if value is None:
        return 0
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str, skipkeys=True)
    except (ValueError, RecursionError):
        return 0
    return len(text.encode(errors="replace"))


def _largest_in(part: object, size: int) -> tuple[tuple[Step, ...], int]:
    """Return the path of the innermost value that alone is over the limit, and its size."""
    path: tuple[Step, ...] = ()
    while len(path) < _DEEPEST_NAMED:
        inner: Iterable[tuple[Step, object]] = ()
        if isinstance(part, Mapping):
            inner = ((key, value) for key, value in part.items() if isinstance(key, str))
        elif isinstance(part, list):
            inner = enumerate(part)
        sized = [(_size_of(value), step, value) for step, value in inner]
        largest = max(sized, key=lambda each: each[0], default=None)
        if largest is None or largest[0] <= LARGEST_PART:
            break
        size, step, part = largest
        path = (*path, step)
    return path, size


def _is_within(path: str, part: str) -> bool:
    return path == part or path.startswith((f"{part}.", f"{part}["))


def _describe(size: int) -> str:
    return (
        f"is {size / 1024:.1f} KiB as JSON; at most {LARGEST_PART // 1024} KiB are allowed,"
        f" since each pod repeats it: {_KEEP_FILES}"
    )
