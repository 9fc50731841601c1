"""An API server in memory, over real HTTP: objects with resourceVersions, watches with bookmarks, and faults.

It keeps the rules that clients depend on: resourceVersions grow over all kinds, a watch gives what came
after its version or says 410, lists come in pages that expire, uids and resourceVersions are preconditions,
a merge patch merges, a deleted pod that runs keeps running for its grace period.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from support.kube.api_server.addresses import Kind, matches, read_path
from support.kube.api_server.answers import ApiError, gone
from support.kube.api_server.discovery import DEFINITIONS, OTHERS, OURS, PAGES, list_groups
from support.kube.api_server.faulty import FaultyServer
from support.kube.api_server.rules import ApiRules, Seen
from support.kube.api_server.storage import Manifest


@dataclass
class Stream:
    kind: Kind
    namespace: str | None
    selector: str
    transport: asyncio.BaseTransport | None = None
    queue: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    frozen: bool = False


class FakeApiServer(FaultyServer, ApiRules):
    """Anybody is accepted, unless there are bearer `tokens`.

    `kueue` are the versions of Kueue's API; `pod_groups` has the `apiVersion` of each kind of PodGroup.
    `pending` are the Workloads of each queue, as Kueue's visibility API has them; None: it isn't served.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tokens: set[str] = set()
        self.kueue: tuple[str, ...] = ()
        self.pod_groups: tuple[str, ...] = ()
        self.pending: dict[str, list[str]] | None = None
        self.paths: list[str] = []
        self._streams: list[Stream] = []

    # -- what tests do -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[FakeApiServer]:
        """Listen on a port of 127.0.0.1."""
        async with self._listening():
            try:
                yield self
            finally:
                self.end_watches()

    def end_watches(self) -> None:
        """End every watch as when its time is over."""
        for stream in self._streams:
            stream.queue.put_nowait(None)

    def send_line(self, kind: str, line: bytes) -> None:
        """Put bytes into the open watches of a kind."""
        for stream in self._streams:
            if stream.kind.kind == kind:
                stream.queue.put_nowait(line)

    def send_bookmarks(self) -> None:
        """Send every watch a bookmark."""
        for stream in self._streams:
            bookmark = {
                "kind": stream.kind.kind,
                "metadata": {"resourceVersion": str(self.version)},
            }
            self._send(stream, "BOOKMARK", bookmark)

    def open_watches(self) -> Counter[str]:
        return Counter(stream.kind.kind for stream in self._streams if not stream.frozen)

    def writes(self) -> list[str]:
        """Return every request that asks for a change, as `create Pod digits-worker-0-…`."""
        reading = ("get", "list", "watch")
        return [f"{seen.verb} {seen.kind} {seen.name}" for seen in self.seen if seen.verb not in reading]

    # -- requests ----------------------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        if request.path == "/apis":
            prefixes = ("",) if self.pending is None else ("", "visibility.")
            kueue = [f"{prefix}kueue.x-k8s.io/{version}" for prefix in prefixes for version in self.kueue]
            served = (OURS, OTHERS, DEFINITIONS, "scheduling.k8s.io/v1", *kueue, *self.pod_groups)
            return web.json_response(list_groups(served))
        if request.path in PAGES:
            return web.json_response(PAGES[request.path])
        kind, namespace, name, sub = read_path(request.path)
        body = await request.json() if request.can_read_body else None
        seen = self._see(request, kind, name, sub, body)
        try:
            early = self.fault(seen)
            if early is not None:
                return self._give(request, early)
            if self.tokens and seen.token not in self.tokens:
                raise ApiError(401, "Unauthorized", "Unauthorized")
            if sub == "pendingworkloads":
                return web.json_response(self._pending(name))
            if seen.verb == "watch":
                return await self._watch(request, kind, namespace)
            answer = web.json_response(self.work(seen, kind, namespace, sub), status=_code(seen.verb))
            late = self.fault_after(seen)
            return answer if late is None else self._give(request, late)
        except ApiError as error:
            return error.response()

    def _see(self, request: web.Request, kind: Kind, name: str, sub: str, body: Manifest | None) -> Seen:
        verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(request.method)
        if verb is None:
            verb = "get" if name else "watch" if "watch" in request.query else "list"
        if verb == "create" and body is not None:
            name = body["metadata"]["name"]
        query = dict(request.query)
        query["accept"] = request.headers.get("Accept", "")
        query["sub"] = sub
        token = request.headers.get("Authorization", "").removeprefix("Bearer ") or None
        peer = request.transport.get_extra_info("peername") if request.transport is not None else None
        seen = Seen(verb, f"{kind.kind}/{sub}" if sub else kind.kind, name, query, token, peer, body)
        self.seen.append(seen)
        return seen

    def _pending(self, queue: str) -> Manifest:
        if self.pending is None or queue not in self.pending:
            raise ApiError(404, "NotFound", f'localqueue "{queue}" not found')
        names = enumerate(self.pending[queue])
        return {"items": [{"metadata": {"name": n}, "positionInLocalQueue": i} for i, n in names]}

    # -- watches -----------------------------------------------------------------------------------------

    async def _watch(self, request: web.Request, kind: Kind, namespace: str | None) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        stream = Stream(kind, namespace, request.query.get("labelSelector", ""), request.transport)
        if since < self.oldest:
            error = {"type": "ERROR", "object": gone().status()}
            await response.write(json.dumps(error).encode() + b"\n")
            return response
        for version, type_, manifest, before in self.log:
            if version > since:
                self._offer(stream, type_, manifest, before)
        self._streams.append(stream)
        try:
            async with asyncio.timeout(float(request.query["timeoutSeconds"])):
                while (line := await stream.queue.get()) is not None:
                    if not stream.frozen:
                        await response.write(line)
        except (TimeoutError, ConnectionError):
            pass
        finally:
            self._streams.remove(stream)
        return response

    def happened(self, type_: str, manifest: Manifest, before: Manifest | None) -> None:
        for stream in self._streams if not self.losing else ():
            self._offer(stream, type_, manifest, before)

    def _offer(self, stream: Stream, type_: str, manifest: Manifest, before: Manifest | None) -> None:
        """Send an event as the watch's selector sees it: an object may come into it and leave it."""
        if manifest["kind"] != stream.kind.kind or stream.namespace not in (
            None,
            manifest["metadata"]["namespace"],
        ):
            return
        was = before is not None and matches(before, stream.selector)
        if type_ != "DELETED":
            now = matches(manifest, stream.selector)
            type_ = {(False, True): "ADDED", (True, True): "MODIFIED", (True, False): "DELETED"}.get(
                (was, now), ""
            )
        elif not was:
            type_ = ""
        if type_:
            self._send(stream, type_, manifest)

    def _send(self, stream: Stream, type_: str, manifest: Manifest) -> None:
        stream.queue.put_nowait(json.dumps({"type": type_, "object": manifest}).encode() + b"\n")


def _code(verb: str) -> int:
    return 201 if verb == "create" else 200
