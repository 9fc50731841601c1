"""The controller's key: created at the first start, stored in a Secret, and shared by all its replicas.

Each job's token is derived from it. The controller and the job's agents authenticate each other by the token.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets

from trainjob.cluster import AlreadyExists, ClusterError, Manifest, NotFound, Unavailable
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.informer import Backoff
from trainjob.cluster.kube.resources import SECRETS
from trainjob.core.names import CONTROLLER_LABELS, MANAGER

_log = logging.getLogger(__name__)

KEY_BYTES = 32
ENTRY = "key"
"""The entry of the Secret's data."""


class InvalidKey(Exception):
    """The Secret holds no valid key."""


async def need_key(api: ApiClient, namespace: str, name: str, backoff: Backoff | None = None) -> bytes:
    """Return the key; create it if it is missing, and retry while the API server fails.

    Raises:
        InvalidKey: the Secret exists, but holds no valid key.
    """
    backoff, place = backoff or Backoff(), f"Secret {namespace}/{name}"
    while True:
        try:
            try:
                secret = await api.get(SECRETS, namespace, name)
            except NotFound:
                secret = await api.create(SECRETS, _build_secret(namespace, name))
                _log.info("Made a new key for agents in %s", place)
            break
        except (NotFound, AlreadyExists):
            await asyncio.sleep(backoff.next())  # created or deleted just now: read again
        except ClusterError as error:
            wait = backoff.next(error.retry_after if isinstance(error, Unavailable) else None)
            _log.warning("%s: %s; trying again in %.1f s", place, error, wait)
            await asyncio.sleep(wait)
    try:
        key = base64.b64decode((secret.get("data") or {})[ENTRY], validate=True)
    except (KeyError, TypeError, ValueError):
        key = b""
    if len(key) < KEY_BYTES:
        raise InvalidKey(
            f"{place} has no entry {ENTRY!r} of at least {KEY_BYTES} bytes: delete it and restart the "
            "controller, which makes another one"
        )
    return key


def _build_secret(namespace: str, name: str) -> Manifest:
    key = base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
    labels = {**CONTROLLER_LABELS, "app.kubernetes.io/managed-by": MANAGER}
    return {
        "apiVersion": SECRETS.api_version,
        "kind": SECRETS.kind,
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "type": "Opaque",
        "immutable": True,
        "data": {ENTRY: key},
    }
