"""`trainjob ui`: a web page with all jobs, for this machine only."""

from __future__ import annotations

import asyncio
import threading
import webbrowser
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from trainjob.cli.ending import command
from trainjob.cli.options import cluster_options
from trainjob.client.connection import ClusterOptions, connected

_REDIRECT = (
    '<!DOCTYPE html><meta name="referrer" content="no-referrer">'
    '<meta http-equiv="refresh" content="0;url={0}"><a href="{0}">TrainJob</a>\n'
)


@command(
    "Show all jobs on a web page, for this machine only.",
    usage="the command line is wrong, or the port is in use",
    no_cluster="with options for a cluster: there is no such kubeconfig or context",
    interrupted="ended by Ctrl-C",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="The port on 127.0.0.1; default: any free one."
)
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@click.option("-A", "--all-namespaces", is_flag=True, help="The cluster's jobs of all namespaces.")
@cluster_options
def ui(port: int, opens: bool, all_namespaces: bool, where: ClusterOptions) -> None:
    """Serve a page with the runs on this machine and the jobs of the cluster, until Ctrl-C.

    The page shows state, metrics, curves, events and logs as they change; it is read-only. Only this machine
    can reach it, and only with a printed address. Each address opens the page once; then the next one is
    printed.
    """
    # The server is slow to import: not for --help.
    from trainjob.client.web.live_jobs import LiveJobs  # noqa: PLC0415
    from trainjob.client.web.server import serve  # noqa: PLC0415

    def on_opened(following: str) -> None:
        click.echo(f"The page is open. To open it once more: {following}")

    async def work() -> None:
        jobs = LiveJobs(where, all_namespaces=all_namespaces)
        async with AsyncExitStack() as stack:
            if where != ClusterOptions() or all_namespaces:
                await stack.enter_async_context(connected(where))  # a wrong name ends the command
            try:
                address = await stack.enter_async_context(serve(jobs, port, on_opened))
            except OSError as error:
                raise click.UsageError(f"port {port} of 127.0.0.1 can't be used: {error.strerror}") from error
            click.echo(f"{address}\nCtrl-C ends the page; the jobs continue.")
            if opens:
                # All users can read a browser's command line, so it has no address, but this user's file.
                file = Path(stack.enter_context(TemporaryDirectory(prefix="trainjob-"))) / "open.html"
                file.touch(0o600)
                file.write_text(_REDIRECT.format(address))
                # Some commands for a browser last as long as the page is open.
                threading.Thread(target=webbrowser.open, args=[file.as_uri()], daemon=True).start()
            await jobs.run()

    asyncio.run(work())
