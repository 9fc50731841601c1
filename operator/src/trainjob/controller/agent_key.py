"""The controller's own key: made at the first start, kept in a Secret, the same for all replicas ever since.

From it each job's token is derived, by which its agents and the controller know each other.
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
from trainjob.cluster.kube.transport import SECRETS
from trainjob.core.names import CONTROLLER_LABELS, MANAGER

_log = logging.getLogger(__name__)

KEY_BYTES = 32
ENTRY = "key"
"""Of the Secret's data."""


class InvalidKey(Exception):
    """The Secret holds no key."""


@dataclass(frozen=True)
class KeyPlace:
    """Where the key is kept.

    Attributes:
        namespace: the controller's own; whoever reads Secrets there can give orders to every job's agents.
        name: the Secret's.
    """

    namespace: str
    name: str = "trainjob-agent-key"

    def __str__(self) -> str:
        return f"Secret {self.namespace}/{self.name}"


class KeyStore:
    """The Secret at the API server.

    Args:
        api: the API server.
        place: which Secret.
        backoff: how long to wait after failures in a row.
    """

    def __init__(self, api: ApiClient, place: KeyPlace, backoff: Backoff | None = None) -> None:
        self._api = api
        self._place = place
        self._backoff = backoff or Backoff()

    async def need(self) -> bytes:
        """Return the key, made now if there is none; whatever keeps the API server from answering is sat out.

        Raises:
            InvalidKey: the Secret is there and holds something else.
        """
        while True:
            try:
                return _key_of(await self._find_or_make(), self._place)
            except (NotFound, AlreadyExists):
                await asyncio.sleep(self._backoff.next())  # made or deleted just now: look again
            except ClusterError as error:
                wait = self._backoff.next(error.retry_after if isinstance(error, Unavailable) else None)
                _log.warning("%s: %s; trying again in %.1f s", self._place, error, wait)
                await asyncio.sleep(wait)

    async def _find_or_make(self) -> Manifest:
        try:
            return await self._api.get(SECRETS, self._place.namespace, self._place.name)
        except NotFound:
            made = await self._api.create(SECRETS, _build_secret(self._place))
            _log.info("Made a new key for agents in %s", self._place)
            return made


def _build_secret(place: KeyPlace) -> Manifest:
    key = base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
    labels = {**CONTROLLER_LABELS, "app.kubernetes.io/managed-by": MANAGER}
    return {
        "apiVersion": SECRETS.api_version,
        "kind": SECRETS.kind,
        "metadata": {"name": place.name, "namespace": place.namespace, "labels": labels},
        "type": "Opaque",
        "immutable": True,
        "data": {ENTRY: key},
    }


def _key_of(secret: Manifest, place: KeyPlace) -> bytes:
    try:
        key = base64.b64decode((secret.get("data") or {})[ENTRY], validate=True)
    except (KeyError, TypeError, ValueError):
        key = b""
    if len(key) < KEY_BYTES:
        raise InvalidKey(
            f"{place} has no entry {ENTRY!r} of at least {KEY_BYTES} bytes: delete it and start the "
            "controller anew, which makes another one"
        )
    return key
