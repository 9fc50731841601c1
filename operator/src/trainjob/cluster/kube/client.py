"""The verbs of the API server on JSON objects."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from types import TracebackType
from typing import Any, Self

from trainjob.cluster.kube.config import Access
from trainjob.cluster.kube.resources import (
    ANY_TEXT,
    JSON,
    MERGE_PATCH,
    PODS,
    STRATEGIC_MERGE_PATCH,
    Request,
    Resource,
)
from trainjob.cluster.kube.responses import Expired, error_of_status
from trainjob.cluster.kube.transport import OnCall, Transport, ignore
from trainjob.cluster.protocol import Manifest, read_json

# Lines from a stream of chunks: an object on one line may be longer than any buffer of the transport.


LONGEST_LINE = 16 * 1024 * 1024
"""Bytes; etcd refuses objects of more than 1.5 MiB, which are somewhat larger as JSON."""


class LineTooLong(ValueError):
    """A line exceeds the limit: this is no watch."""


class LineSplitter:
    """Collects chunks until a line is complete; keeps at most one unfinished line."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the lines that this chunk completes, without line ends; empty lines are left out.

        Raises:
            LineTooLong: the unfinished line is over the limit.
        """
        first, *rest = chunk.split(b"\n")
        self._keep(first)
        for part in rest:
            line = b"".join(self._parts).strip()
            self._parts.clear()
            self._size = 0
            self._keep(part)
            if line:
                yield line

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._longest:
            raise LineTooLong(f"a line of more than {self._longest} bytes")
        if part:
            self._parts.append(part)


# The events of a watch.


_TYPES = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK")


class GarbledWatch(ValueError):
    """A line is no event: the lines after it can't be trusted either."""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A change of one object; a `BOOKMARK` reports only how far the watch has come.

    Attributes:
        type: `ADDED`, `MODIFIED`, `DELETED` or `BOOKMARK`.
        object: its state after the change, or its last state.
    """

    type: str
    object: Manifest


def read_event(line: bytes) -> WatchEvent:
    """Return the event on a line.

    Raises:
        GarbledWatch: the line is none of the four events.
        ClusterError: the line is an `ERROR` event; `Expired` when the watch's start is too old.
    """
    try:
        raw = read_json(line)
        kind, body = raw["type"], raw["object"]
        if kind == "ERROR":
            raise error_of_status(int(body.get("code") or 500), body)
        if kind in _TYPES and (kind == "BOOKMARK" or body["metadata"]["uid"]):
            return WatchEvent(kind, body)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise GarbledWatch(f"no event of a watch: {line[:100]!r}") from error
    raise GarbledWatch(f"no event of a watch: {line[:100]!r}")


CONTROLLER = f"trainjob-controller/{version('trainjob')}"
"""The controller's user agent."""

TIMEOUT_SECONDS = 30.0
CONNECTIONS = 48
INACTIVITY_SECONDS = 90.0
"""The API server sends a bookmark about once a minute, even without changes."""

_METADATA = f"{JSON};as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
_METADATA_OF_ONE = f"{JSON};as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
_STRICT = ("fieldValidation", "Strict")
_IGNORE = ("fieldValidation", "Ignore")


class ApiClient:
    """One API server; an asynchronous context manager. Every method may raise `ClusterError`.

    Args:
        access: the server's address and the credentials.
        user_agent: the part before the slash becomes the field manager of written objects.
        on_call: called after every request.
        timeout: seconds for one whole request, except watches and logs.
        connections: the most open connections, watches included.

    Raises:
        InvalidAccess: a certificate or key can't be read.
    """

    def __init__(
        self,
        access: Access,
        *,
        user_agent: str = CONTROLLER,
        on_call: OnCall = ignore,
        timeout: float = TIMEOUT_SECONDS,
        connections: int = CONNECTIONS,
    ) -> None:
        self.access = access
        self._transport = Transport(
            access, user_agent=user_agent, on_call=on_call, timeout=timeout, connections=connections
        )

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.__aexit__(kind, error, trace)

    async def get(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        *,
        metadata_only: bool = False,
        subresource: str = "",
        query: tuple[tuple[str, str], ...] = (),
    ) -> Manifest:
        """Return one object, or a subresource of it; None: its kind has no namespaces."""
        accept = _METADATA_OF_ONE if metadata_only else JSON
        return await self._send(
            Request("get", resource, namespace, name, subresource, query=query, accept=accept)
        )

    async def list(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        selector: str = "",
        fields: str = "",
        limit: int | None = None,
        continuation: str = "",
        metadata_only: bool = False,
        most_bytes: int | None = None,
    ) -> Manifest:
        """Return one page of a list, or the whole list without a limit.

        Raises:
            Expired: the continuation is too old.
            TooLong: the page has more than `most_bytes`.
        """
        query = (
            ("labelSelector", selector),
            ("fieldSelector", fields),
            ("limit", str(limit) if limit else ""),
            ("continue", continuation),
        )
        accept = _METADATA if metadata_only else JSON
        return await self._send(
            Request("list", resource, namespace, query=query, accept=accept, most_bytes=most_bytes)
        )

    async def create(
        self, resource: Resource, manifest: Mapping[str, Any], *, dry_run: bool = False, strict: bool = True
    ) -> Manifest:
        """Create an object; with `strict` the API server refuses unknown fields, else it leaves them out."""
        namespace = manifest["metadata"].get("namespace")
        query = (_STRICT if strict else _IGNORE, ("dryRun", "All" if dry_run else ""))
        return await self._send(Request("create", resource, namespace, query=query, body=_dump(manifest)))

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, grace_seconds: int | None = None
    ) -> Manifest:
        """Delete the object with this uid (empty: any); return its last state or a `Status`."""
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
        }
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        return await self._send(Request("delete", resource, namespace, name, body=_dump(options)))

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Manifest:
        """Merge a patch into an object, or a subresource of it; uid and resourceVersion are preconditions.

        A pod's containers are merged by name (Kubernetes' strategic merge, which other kinds don't have).
        With `dry_run` nothing is changed, and unknown fields are refused.
        """
        query = (_STRICT, ("dryRun", "All")) if dry_run else ()
        body = _dump(patch)
        kind = STRATEGIC_MERGE_PATCH if resource == PODS else MERGE_PATCH
        request = Request(
            "patch", resource, namespace, name, subresource, query=query, body=body, content_type=kind
        )
        return await self._send(request)

    async def replace(
        self,
        resource: Resource,
        manifest: Mapping[str, Any],
        *,
        subresource: str = "",
        strict: bool = False,
    ) -> Manifest:
        """Replace an object, or a subresource of it; its uid and resourceVersion are preconditions.

        With `strict` the API server refuses unknown fields.
        """
        meta = manifest["metadata"]
        query = (_STRICT,) if strict else ()
        namespace, name, body = meta.get("namespace"), meta["name"], _dump(manifest)
        return await self._send(
            Request("update", resource, namespace, name, subresource, query=query, body=body)
        )

    async def watch(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        selector: str = "",
        fields: str = "",
        version: str = "",
        seconds: int,
        inactivity: float = INACTIVITY_SECONDS,
    ) -> AsyncGenerator[WatchEvent]:
        """Yield the events after `version`, for so many seconds.

        Raises:
            Expired: `version` is too old, or the stream can't be read: list again.
            Unavailable: the connection broke, or was silent for longer than `inactivity` seconds.
        """
        query = (
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("labelSelector", selector),
            ("fieldSelector", fields),
            ("resourceVersion", version),
            ("timeoutSeconds", str(seconds)),
        )
        request = Request("watch", resource, namespace, query=query)
        async with self._transport.open(request, inactivity) as chunks:
            lines = LineSplitter()
            try:
                async for chunk in chunks:
                    for line in lines.feed(chunk):
                        yield read_event(line)
            except (GarbledWatch, LineTooLong) as error:
                raise Expired(f"watch {resource.plural}: {error}") from error

    @asynccontextmanager
    async def log(
        self, namespace: str, pod: str, query: Mapping[str, str], *, inactivity: float = INACTIVITY_SECONDS
    ) -> AsyncIterator[AsyncGenerator[bytes]]:
        """Open a container's log, and yield the iterator of its pieces, which are cut anywhere.

        Args:
            namespace: of the pod.
            pod: its name.
            query: the options of Kubernetes' `PodLogOptions`.
            inactivity: seconds without a byte after which the connection counts as dead.
        """
        request = Request("get", PODS, namespace, pod, "log", query=tuple(query.items()), accept=ANY_TEXT)
        async with self._transport.open(request, inactivity) as pieces:
            yield pieces

    async def _send(self, request: Request) -> Manifest:
        body = await self._transport.send(request)
        try:
            answer = read_json(body)
        except (ValueError, RecursionError) as error:
            raise self._transport.garbled(request, "the answer is no JSON") from error
        if not isinstance(answer, dict):
            raise self._transport.garbled(request, "the answer is no object")
        return answer


def _dump(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest, separators=(",", ":")).encode()
