"""The programs of the chart's hooks: `python -m trainjob.installation crd|check|workloads`.

`crd` updates the CRD. `helm test` runs `check`: the controller is ready, and TrainJobs can be created. After
an uninstall `workloads` takes Kueue's finalizer off the Workloads of jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import click
import yaml

from trainjob.api.constants import API_VERSION, KIND, TRAINER_CONTAINER
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.config import Access, InvalidAccess, from_kubeconfig, in_cluster
from trainjob.cluster.kube.informer import Scope, Seen, list_all
from trainjob.cluster.kube.resources import TRAINJOBS, Resource
from trainjob.cluster.protocol import ClusterError, Conflict, NotFound
from trainjob.core.integrations.kueue import Kueue
from trainjob.core.names import LABEL_JOB
from trainjob.installation.crd_update import InstallationFailed, install_crd

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
    answer = "no answer"
    limits = aiohttp.ClientTimeout(total=_REQUEST_SECONDS)
    try:
        async with asyncio.timeout(patience_seconds), aiohttp.ClientSession(timeout=limits) as session:
            while True:
                try:
                    async with session.get(url) as response:
                        if response.ok:
                            break
                        text = (await response.content.read(_LONGEST_ANSWER)).decode(errors="replace")
                        answer = f"{response.status} {text}"
                except (aiohttp.ClientError, OSError) as error:
                    answer = str(error) or type(error).__name__
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


async def _take_off(api: ApiClient, scope: Scope, finalizer: str) -> set[str]:
    """Take the finalizer off all objects of the scope, and return their uids."""
    done = set[str]()
    while True:
        seen = [each async for each in list_all(api, scope, metadata_only=True) if isinstance(each, Seen)]
        metas = [each.manifest["metadata"] for each in seen]
        left = [meta for meta in metas if finalizer in meta.get("finalizers", ())]
        if not left:
            return done
        for meta in left:
            kept = {key: meta[key] for key in ("uid", "resourceVersion")}
            others = [each for each in meta["finalizers"] if each != finalizer]
            patch = {"metadata": {**kept, "finalizers": others}}
            with suppress(NotFound, Conflict):  # the next list shows what is left
                await api.patch(scope.resource, meta["namespace"], meta["name"], patch)
                done.add(meta["uid"])


async def release_workloads(
    api: ApiClient, namespace: str | None, *, say: Callable[[str], None], patience_seconds: float = 60
) -> None:
    """Take Kueue's finalizer off the Workloads of jobs, so that jobs and namespaces can be deleted.

    Raises:
        InstallationFailed: the API server refuses it or can't be reached, or something puts it on again.
    """
    (kind,) = (kind for kind in Kueue.KINDS if kind.finalizer)
    released = set[str]()
    try:
        async with asyncio.timeout(patience_seconds):
            for version in kind.versions:
                resource = Resource(kind.group, version, kind.plural, kind.kind)
                try:
                    released |= await _take_off(api, Scope(resource, namespace, LABEL_JOB), kind.finalizer)
                except ClusterError as error:
                    if error.failure.code != 404:  # this version isn't served
                        raise
    except (ClusterError, TimeoutError) as error:
        why = str(error) or "something puts it on again and again"
        raise InstallationFailed(f"Workloads of TrainJobs still have {kind.finalizer}: {why}") from error
    say(f"took {kind.finalizer} off {len(released)} Workloads of TrainJobs")


@click.group()
@click.option(
    "--kubeconfig", type=click.Path(path_type=Path), help="Outside of a pod: where the API server is."
)
@click.pass_context
def main(context: click.Context, kubeconfig: Path | None) -> None:
    """What the chart's own pods run."""
    try:
        context.obj = from_kubeconfig(kubeconfig) if kubeconfig else in_cluster()
    except InvalidAccess as error:
        raise click.ClickException(str(error)) from error


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_obj
def crd(access: Access, file: Path) -> None:
    """Bring the CRD in the cluster to that of FILE, unless it is newer already."""
    manifest = yaml.safe_load(file.read_text(encoding="utf-8"))

    async def install() -> None:
        async with ApiClient(access, connections=1) as api:
            await install_crd(api, manifest, say=click.echo)

    _run(install())


@main.command()
@click.option("--url", required=True, help="The controller's /readyz.")
@click.option("--namespace", required=True, help="The namespace of the controller's TrainJobs.")
@click.pass_obj
def check(access: Access, url: str, namespace: str) -> None:
    """Exit with 0 if the controller is ready and the API server accepts TrainJobs."""

    async def check_both() -> None:
        await check_ready(url, say=click.echo)
        async with ApiClient(access, connections=1) as api:
            await check_api(api, namespace, say=click.echo)

    _run(check_both())


@main.command()
@click.option("--namespace", help="The namespace of the controller's TrainJobs; every namespace without it.")
@click.pass_obj
def workloads(access: Access, namespace: str | None) -> None:
    """Take Kueue's finalizer off the Workloads of TrainJobs: without a controller nobody else does."""

    async def release() -> None:
        async with ApiClient(access, connections=1) as api:
            await release_workloads(api, namespace, say=click.echo)

    _run(release())


def _run(work: Coroutine[None, None, None]) -> None:
    try:
        asyncio.run(work)
    except (InstallationFailed, InvalidAccess) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main(prog_name="python -m trainjob.installation")
