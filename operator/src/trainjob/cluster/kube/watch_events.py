"""One line of a watch."""

from __future__ import annotations

import json
from dataclasses import dataclass

from trainjob.cluster.kube.answers import error_of_status
from trainjob.cluster.protocol import Manifest

_TYPES = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK")


class GarbledWatch(ValueError):
    """A line that is no event: what comes after it can't be trusted either."""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """What happened to one object; a `BOOKMARK` says only how far the watch has come.

    Attributes:
        type: `ADDED`, `MODIFIED`, `DELETED` or `BOOKMARK`.
        object: its state afterwards, or its last one.
    """

    type: str
    object: Manifest


def read_event(line: bytes) -> WatchEvent:
    """Read a line.

    Raises:
        GarbledWatch: it is none of the four events.
        ClusterError: it is an `ERROR` event; `Expired` when the watch's start is too old.
    """
    try:
        raw = json.loads(line)
        kind, body = raw["type"], raw["object"]
        if kind == "ERROR":
            raise error_of_status(int(body.get("code") or 500), body)
        if kind in _TYPES and (kind == "BOOKMARK" or body["metadata"]["uid"]):
            return WatchEvent(kind, body)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise GarbledWatch(f"no event of a watch: {line[:100]!r}") from error
    raise GarbledWatch(f"no event of a watch: {line[:100]!r}")
