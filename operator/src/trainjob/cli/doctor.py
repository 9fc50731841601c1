"""`trainjob doctor`: whether all that training needs is there, and what to do where it isn't."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainjob.cli.ending import Exit, describe_exits, ends_quietly, print_lines
from trainjob.cli.options import Duration, cluster_options
from trainjob.cli.script_options import RUNS
from trainjob.client.connection import ClusterOptions

if TYPE_CHECKING:
    from trainjob.client.doctor import Check

_EXITS = {
    Exit.GOOD: "all that is needed is there; notes are about the rest",
    Exit.FAILED: "there is a problem",
    Exit.INTERRUPTED: "interrupted by Ctrl-C; the pod of --image is deleted",
    Exit.NOBODY_READS: "nobody reads the output any more",
}


@click.command(
    epilog=describe_exits(_EXITS), short_help="Say what is missing for training, here and in a cluster."
)
@click.option("--image", help="Have a pod pull this image, which is deleted again, and say what it has.")
@click.option(
    "--timeout", type=Duration(), default="3m", show_default=True, help="With --image: the time to pull it."
)
@click.option("-o", "--output", type=click.Choice(["json"]), help="How to print it.")
@cluster_options
@ends_quietly
def doctor(image: str | None, timeout: float, output: str | None, where: ClusterOptions) -> None:
    """Say what is missing for training, and what to do about it.

    It looks at this machine (Python, TensorFlow, Keras, GPUs, ports, disk), and at the cluster if there is a
    kubeconfig (versions, controller, permissions, storage for several nodes).

    With -n, --context, --kubeconfig or --image the cluster has to be there, and what is missing on this
    machine is a note. Nothing is changed, but for the pod of --image.
    """
    # Slow to import, as a client of an API server is.
    from trainjob.client.doctor import check_cluster, check_here, is_healthy  # noqa: PLC0415
    from trainjob.client.doctor_looks import look_at_cluster, look_here  # noqa: PLC0415

    here, cluster = look_here(Path(RUNS)), look_at_cluster(where, image, timeout)
    checks = check_here(here, needed=not cluster.asked), check_cluster(cluster, here.own)
    if output == "json":
        click.echo(json.dumps(as_json(*checks), indent=2))
    else:
        width = max(len(check.subject) for section in checks for check in section)
        for title, section in zip(("this machine", "cluster"), checks, strict=True):
            print_lines(describe(title, section, width=width), err=False)
    sys.exit(Exit.GOOD if is_healthy([*checks[0], *checks[1]]) else Exit.FAILED)


def describe(section: str, checks: Iterable[Check], *, width: int) -> Iterator[str]:
    """Yield the lines of a section; a remedy has a line of its own.

    Args:
        section: its title.
        checks: of it.
        width: of the widest subject.
    """
    yield section
    for check in checks:
        yield f"  {check.verdict:<8} {check.subject:<{width}}  {check.found}"
        if check.remedy:
            yield f"  {'':<8} {'':<{width}}  -> {check.remedy}"


def as_json(here: Iterable[Check], cluster: Iterable[Check]) -> list[dict[str, Any]]:
    """Return the checks as plain JSON."""
    sections = (("here", here), ("cluster", cluster))
    return [
        {"where": where, **{name: str(value) for name, value in vars(check).items()}}
        for where, checks in sections
        for check in checks
    ]
