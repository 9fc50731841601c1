"""The programs of the chart's hooks: `python -m trainjob.installation crd|check`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path

import click
import yaml

from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.config import Access, InvalidAccess, from_kubeconfig, in_cluster
from trainjob.cluster.protocol import Manifest
from trainjob.installation.check import check_api, check_ready
from trainjob.installation.crd_update import InstallationFailed, install_crd


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
    _run(_install(access, yaml.safe_load(file.read_text(encoding="utf-8"))))


@main.command()
@click.option("--url", required=True, help="The controller's /readyz.")
@click.option("--namespace", required=True, help="Where TrainJobs are looked after.")
@click.pass_obj
def check(access: Access, url: str, namespace: str) -> None:
    """Exit with 0 if the controller is ready and the API server takes TrainJobs."""
    _run(_check(access, url, namespace))


async def _install(access: Access, wanted: Manifest) -> None:
    async with ApiClient(access, connections=1) as api:
        await install_crd(api, wanted, say=click.echo)


async def _check(access: Access, url: str, namespace: str) -> None:
    await check_ready(url, say=click.echo)
    async with ApiClient(access, connections=1) as api:
        await check_api(api, namespace, say=click.echo)


def _run(work: Coroutine[None, None, None]) -> None:
    try:
        asyncio.run(work)
    except (InstallationFailed, InvalidAccess) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main(prog_name="python -m trainjob.installation")
