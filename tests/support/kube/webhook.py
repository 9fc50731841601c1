"""An admission webhook that a real API server calls, on loopback."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from testbed import Cluster
from testbed.pki import Authority
from testbed.ports import free_ports

Answer = Callable[[dict[str, Any]], dict[str, Any]]
"""Takes the request of an AdmissionReview, and returns the response without its uid."""


@asynccontextmanager
async def open_webhook(
    cluster: Cluster, kind: str, namespace: str, rules: Sequence[dict[str, Any]], answer: Answer, folder: Path
) -> AsyncIterator[str]:
    """Have `answer` decide on what `rules` name in one namespace; yield the configuration's name.

    `kind` is `Mutating` or `Validating`.
    """
    authority = Authority(folder / "authority")
    pair, (port,) = authority.issue("webhook", names=("IP:127.0.0.1",)), free_ports(1)

    async def review(request: web.Request) -> web.Response:
        body = await request.json()
        response = {"uid": body["request"]["uid"], **answer(body["request"])}
        return web.json_response({**body, "request": None, "response": response})

    app = web.Application()
    app.router.add_post("/", review)
    runner = web.AppRunner(app)
    await runner.setup()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pair.certificate, pair.key)
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
    name, resource = f"{namespace}-test", f"{kind}WebhookConfiguration"
    trusted = base64.b64encode(authority.certificate.read_bytes()).decode()
    webhook = {
        "name": "policy.example.com",
        "rules": list(rules),
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "clientConfig": {"url": f"https://127.0.0.1:{port}/", "caBundle": trusted},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
    }
    api = "admissionregistration.k8s.io/v1"
    cluster.apply({"apiVersion": api, "kind": resource, "metadata": {"name": name}, "webhooks": [webhook]})
    try:
        yield f"{resource.lower()}/{name}"
    finally:
        cluster.kubectl("delete", f"{resource.lower()}/{name}", "--ignore-not-found")
        connections = [handler.transport for handler in runner.server.connections] if runner.server else []
        await runner.cleanup()
        for transport in filter(None, connections):
            transport.abort()  # TLS waits for the API server's farewell, longer than the test's loop lives
        await asyncio.sleep(0)
