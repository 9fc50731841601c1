"""A bucket of Google Cloud Storage, as the documentation of its XML API has it: what our client uses of it.

An entity tag is the MD5 of the content (docs "Hashes and ETags"), so another generation can have the same.
A list has no generation that object_store reads. To delete what isn't there is an error.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

_ITEM = (
    "<Contents><Key>{}</Key><Size>{}</Size><LastModified>2026-11-28T12:00:00Z</LastModified>"
    "<ETag>{}</ETag></Contents>"
)


class GoogleStorage(ThreadingHTTPServer):
    """One bucket, whatever its name is.

    Attributes:
        objects: content and generation by key.
        interval: seconds after a write of an object in which a change of it is refused with 429.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.interval = 0.0
        self.changed: dict[str, float] = {}
        self.lock = threading.Lock()

    def put(self, key: str, content: bytes) -> int:
        """Write a new generation of an object."""
        self.objects[key] = content, time.time_ns()
        return self.objects[key][1]

    @property
    def account(self) -> str:
        """The key of a service account that has this server's address."""
        names = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        url = f"http://127.0.0.1:{self.server_port}"
        return json.dumps({"gcs_base_url": url, "disable_oauth": True, **names})


class _Request(BaseHTTPRequestHandler):
    server: GoogleStorage
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self._change(self.rfile.read(int(self.headers["content-length"])))

    def do_DELETE(self) -> None:
        self._change(None)

    def do_GET(self) -> None:
        key = self._key()
        if not key:
            (prefix,) = parse_qs(urlsplit(self.path).query).get("prefix", [""])
            found = {
                one: content for one, (content, _) in self.server.objects.items() if one.startswith(prefix)
            }
            items = (_ITEM.format(one, len(content), _tag(content)) for one, content in found.items())
            return self._answer(200, f"<ListBucketResult>{''.join(items)}</ListBucketResult>".encode())
        if key not in self.server.objects:
            return self._refuse(404, "NoSuchKey")
        content, generation = self.server.objects[key]
        if self.headers.get("if-none-match") == _tag(content):
            return self._answer(304)
        if self.headers.get("if-match", _tag(content)) != _tag(content):
            return self._refuse(412, "PreconditionFailed")
        headers = {"etag": _tag(content), "x-goog-generation": str(generation)}
        if part := self.headers.get("range"):
            first, last = map(int, part.removeprefix("bytes=").split("-"))
            headers["content-range"] = f"bytes {first}-{last}/{len(content)}"
            return self._answer(206, content[first : last + 1], **headers)
        return self._answer(200, content, **headers)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _change(self, content: bytes | None) -> None:
        key = self._key()
        with self.server.lock:
            there = self.server.objects.get(key, (b"", 0))[1]
            if int(self.headers.get("x-goog-if-generation-match", there)) != there:
                self._refuse(412, "PreconditionFailed")
            elif time.monotonic() < self.server.changed.get(key, 0.0) + self.server.interval:
                self._refuse(429, "SlowDown")
            elif content is None and not there:
                self._refuse(404, "NoSuchKey")
            elif content is None:
                del self.server.objects[key]
                self._answer(204)
            else:
                self.server.changed[key] = time.monotonic()
                generation = str(self.server.put(key, content))
                self._answer(200, etag=_tag(content), **{"x-goog-generation": generation})

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path)[1:].partition("/")[2]

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code}.</Message></Error>".encode())

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        times = {"last-modified": "Sat, 28 Nov 2026 12:00:00 GMT"}
        for name, value in {**times, **headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write no line for each request."""


def _tag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'
