"""What a real API server says of objects that it only has to judge, many at once."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
from testbed import Cluster

from trainjob.cluster.kube.config import build_tls, from_kubeconfig
from trainjob.cluster.kube.resources import BY_KIND

Manifest = dict[str, Any]

_AT_ONCE = 16
_DRY = "dryRun=All&fieldValidation=Strict"
_INCOMPLETE = "some validation rules were not checked"
_VALUE = re.compile(r'Invalid value: (?:(?:"(?:[^"\\]|\\.)*"|true|false|-?[\d.]+): )?')
"""Before 1.37 the value's type in quotation marks; since then a scalar itself, and of an object nothing."""

_ROOT = "<nil>"


@dataclass(frozen=True)
class Verdict:
    """The answer about one object: as it would be stored, defaults included, or a `Status`."""

    accepted: bool
    answer: Manifest

    @property
    def causes(self) -> Iterator[tuple[str, str]]:
        """Field and sentence of each mistake, without what the server puts before a rule's sentence."""
        for cause in self.answer.get("details", {}).get("causes", ()):
            field, message = cause.get("field", ""), cause["message"]
            if _INCOMPLETE in message:
                continue
            said = _VALUE.sub("", message, count=1)
            if field == _ROOT:  # of a rule about the whole object, which names the field itself
                field, _, said = said.partition(": ")
            yield field, said


async def judge_creations(cluster: Cluster, objects: Iterable[Manifest]) -> list[Verdict]:
    """Have the server judge the creation of each, in the namespace that it names or else in `default`."""
    return await _judge(cluster, [("POST", _place(item), item) for item in objects])


async def judge_changes(cluster: Cluster, namespace: str, objects: Iterable[Manifest]) -> list[Verdict]:
    """Have the server judge each in the place of the object that has its name now."""
    places = [(BY_KIND[item["kind"]].path(namespace, item["metadata"]["name"]), item) for item in objects]
    return await _judge(cluster, [("PUT", place, item) for place, item in places])


def _place(item: Manifest) -> str:
    # What isn't the kind of anything is meant as a TrainJob.
    resource = BY_KIND.get(str(item.get("kind")), BY_KIND["TrainJob"])
    metadata = item.get("metadata")
    namespace = metadata.get("namespace") if isinstance(metadata, dict) else None
    known = isinstance(namespace, str) and re.fullmatch(r"[a-z0-9-]+", namespace)
    return resource.path(namespace if known else "default")


async def _judge(cluster: Cluster, requests: list[tuple[str, str, Manifest]]) -> list[Verdict]:
    access = from_kubeconfig(cluster.kubeconfig)
    limit = asyncio.Semaphore(_AT_ONCE)
    connector = aiohttp.TCPConnector(ssl=build_tls(access))
    async with aiohttp.ClientSession(connector=connector) as session:

        async def ask(method: str, path: str, item: Manifest) -> Verdict:
            url = f"{access.server}{path}?{_DRY}"
            headers = {"Content-Type": "application/json"}
            async with (
                limit,
                session.request(method, url, data=json.dumps(item), headers=headers) as response,
            ):
                return Verdict(response.ok, await response.json(content_type=None))

        return list(await asyncio.gather(*(ask(*request) for request in requests)))
