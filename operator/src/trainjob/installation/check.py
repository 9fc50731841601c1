"""The checks of `helm test`: the controller is ready, and the API server accepts TrainJobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp

from trainjob.api.constants import API_VERSION, KIND, TRAINER_CONTAINER
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.resources import TRAINJOBS
from trainjob.cluster.protocol import ClusterError
from trainjob.installation.crd_update import InstallationFailed

_REQUEST_SECONDS = 10.0
_POLL_SECONDS = 1.0
_LONGEST_ANSWER = 1000

_TRAINER = {"name": TRAINER_CONTAINER, "image": "example.com/job:1", "command": ["python", "train.py"]}
EXAMPLE: dict[str, Any] = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": {"generateName": "helm-test-"},
    "spec": {
        "worker": {"replicas": 2},
        "output": {"claim": {"claimName": "training"}},
        "template": {"spec": {"containers": [_TRAINER]}},
    },
}
"""Sent as a dry run only, so never created."""


async def check_ready(url: str, *, say: Callable[[str], None], patience_seconds: float = 60) -> None:
    """Wait until the controller reports that it is ready.

    Raises:
        InstallationFailed: it isn't ready in time; the message has its last response.
    """
    answer: str | None = "no answer"
    limits = aiohttp.ClientTimeout(total=_REQUEST_SECONDS)
    try:
        async with asyncio.timeout(patience_seconds), aiohttp.ClientSession(timeout=limits) as session:
            while True:
                answer = await _complaint(session, url)
                if answer is None:
                    break
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        raise InstallationFailed(f"{url} is not ready: {answer}") from None
    say(f"{url} says that it is ready")


async def check_api(api: ApiClient, namespace: str, *, say: Callable[[str], None]) -> None:
    """Send a TrainJob as a dry run.

    Raises:
        InstallationFailed: the API server refuses it or can't be reached; the message has the reason.
    """
    job = EXAMPLE | {"metadata": EXAMPLE["metadata"] | {"namespace": namespace}}
    try:
        await api.create(TRAINJOBS, job, dry_run=True)
    except ClusterError as error:
        raise InstallationFailed(f"no TrainJob can be created in {namespace}: {error}") from error
    say(f"the API server accepts TrainJobs in {namespace}")


async def _complaint(session: aiohttp.ClientSession, url: str) -> str | None:
    try:
        async with session.get(url) as response:
            if response.ok:
                return None
            text = (await response.content.read(_LONGEST_ANSWER)).decode(errors="replace")
            return f"{response.status} {text}"
    except (aiohttp.ClientError, OSError) as error:
        return str(error) or type(error).__name__
