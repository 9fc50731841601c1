"""The controller's key: created at the first start, stored in a Secret, and shared by all its replicas.

Each job's token is derived from it. The controller and the job's agents authenticate each other by the token.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
from dataclasses import dataclass

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


@dataclass(frozen=True)
class KeyName:
    """The Secret that holds the key.

    Attributes:
        namespace: the controller's namespace; read access to its Secrets gives control of every job's agents.
        name: the name of the Secret.
    """

    namespace: str
    name: str = "trainjob-agent-key"

    def __str__(self) -> str:
        return f"Secret {self.namespace}/{self.name}"


class KeyStore:
    """Reads the Secret, and creates it if it is missing.

    Args:
        api: the API server.
        key_name: the Secret.
        backoff: the waits after consecutive failures.
    """

    def __init__(self, api: ApiClient, key_name: KeyName, backoff: Backoff | None = None) -> None:
        self._api = api
        self._name = key_name
        self._backoff = backoff or Backoff()

    async def need(self) -> bytes:
        """Return the key; create it if it is missing, and retry while the API server fails.

        Raises:
            InvalidKey: the Secret exists, but holds no valid key.
        """
        while True:
            try:
                return _key_of(await self._find_or_make(), self._name)
            except (NotFound, AlreadyExists):
                await asyncio.sleep(self._backoff.next())  # created or deleted just now: read again
            except ClusterError as error:
                wait = self._backoff.next(error.retry_after if isinstance(error, Unavailable) else None)
                _log.warning("%s: %s; trying again in %.1f s", self._name, error, wait)
                await asyncio.sleep(wait)

    async def _find_or_make(self) -> Manifest:
        try:
            return await self._api.get(SECRETS, self._name.namespace, self._name.name)
        except NotFound:
            made = await self._api.create(SECRETS, _build_secret(self._name))
            _log.info("Made a new key for agents in %s", self._name)
            return made


def _build_secret(key_name: KeyName) -> Manifest:
    key = base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
    labels = {**CONTROLLER_LABELS, "app.kubernetes.io/managed-by": MANAGER}
    return {
        "apiVersion": SECRETS.api_version,
        "kind": SECRETS.kind,
        "metadata": {"name": key_name.name, "namespace": key_name.namespace, "labels": labels},
        "type": "Opaque",
        "immutable": True,
        "data": {ENTRY: key},
    }


def _key_of(secret: Manifest, key_name: KeyName) -> bytes:
    try:
        key = base64.b64decode((secret.get("data") or {})[ENTRY], validate=True)
    except (KeyError, TypeError, ValueError):
        key = b""
    if len(key) < KEY_BYTES:
        raise InvalidKey(
            f"{key_name} has no entry {ENTRY!r} of at least {KEY_BYTES} bytes: delete it and restart the "
            "controller, which makes another one"
        )
    return key
