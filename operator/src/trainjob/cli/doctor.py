"""`trainjob doctor`: whether all that training needs is there, and what to do where it isn't."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from trainjob.cli.ending import Exit, command, print_lines
from trainjob.cli.options import Duration, cluster_options
from trainjob.cli.script_options import RUNS, reader
from trainjob.client.connection import ClusterOptions
from trainjob.core.script import parse_output
from trainjob_trainer.patches import PATCHES

if TYPE_CHECKING:
    from trainjob.client.doctor import Check


def _read_address(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Return the address of a bucket; it is printed, and so has no credentials."""
    try:
        parts = urlsplit(value or "")
    except ValueError as error:
        raise click.BadParameter(f"is no address of a bucket: {error}") from None
    # Azure's abfss://container@account has a name there.
    if parts.password or parts.query or (parts.username and not parts.scheme.startswith("abfs")):
        raise click.BadParameter("credentials belong in the environment, not in the address")
    return value


@command(
    "Check this machine and the cluster for what training needs.",
    Exit.NOBODY_READS,
    good="everything that is needed is there; there may be notes",
    failed="there is a problem",
    interrupted="interrupted by Ctrl-C; the pod of --image and the job of --gpus are deleted",
)
@click.option(
    "--image",
    help="Pull this image in a pod, print its versions of Python and TensorFlow, and delete the pod.",
)
@click.option(
    "--gpus",
    type=click.IntRange(min=0),
    help="With --image: measure an all-reduce between two workers with this many GPUs each (NCCL); 0: on "
    "CPUs (RING).",
)
@click.option(
    "--job-output",
    metavar="OUTPUT",
    callback=reader(parse_output),
    help="With --gpus: the output of that job, as for submit --output; nothing is left in it.  [default: "
    "the first claim for several nodes]",
)
@click.option(
    "--bucket",
    metavar="URI",
    callback=_read_address,
    help="Try whether checkpoints can be in this bucket, such as s3://results/digits, with the credentials "
    "of this environment; the object that is written there is deleted.",
)
@click.option(
    "--timeout",
    type=Duration(),
    default="3m",
    show_default=True,
    help="With --image: the time limit of the pull, and then of the all-reduce.",
)
@click.option("-o", "--output", type=click.Choice(["json"]), help="The output format.")
@click.option(
    "--patches", is_flag=True, help="Only list what a job replaces in TensorFlow and Keras, and why."
)
@cluster_options
def doctor(
    image: str | None,
    gpus: int | None,
    job_output: Mapping[str, Any] | None,
    bucket: str | None,
    timeout: float,
    output: str | None,
    where: ClusterOptions,
    *,
    patches: bool,
) -> None:
    """Check whether everything that training needs is there, and print how to fix what is missing.

    It checks this machine (Python, TensorFlow, Keras, GPUs, ports, disk) and, if there is a kubeconfig, the
    cluster (versions, controller, permissions, storage for several nodes).

    With -n, --context, --kubeconfig or --image the cluster has to be there, and problems of this machine are
    only notes; what is wrong with the bucket of --bucket is a problem. Nothing is created except the pod of
    --image, the job of --gpus and the object of --bucket.
    """
    if patches:
        print_lines(describe_patches(), err=False)
        return
    if gpus is not None and image is None:
        raise click.UsageError("--gpus needs an --image with TensorFlow for its pods")
    if "uri" in (job_output or {}):
        raise click.UsageError("--job-output needs a volume: of a bucket nothing would be removed")
    # Slow to import, as a client of an API server is.
    from trainjob.client.doctor import Verdict, check_here  # noqa: PLC0415
    from trainjob.client.doctor_cluster import check_cluster  # noqa: PLC0415

    needed = where != ClusterOptions() or image is not None
    here = check_here(Path(RUNS), needed=not needed, bucket=bucket)
    checks = here, check_cluster(where, image, timeout, needed=needed, gpus=gpus, output=job_output)
    if output == "json":
        plain = [
            {"where": where, **{name: str(value) for name, value in vars(check).items()}}
            for where, section in zip(("here", "cluster"), checks, strict=True)
            for check in section
        ]
        click.echo(json.dumps(plain, indent=2))
    else:
        width = max(len(check.subject) for section in checks for check in section)
        for title, section in zip(("this machine", "cluster"), checks, strict=True):
            print_lines(describe(title, section, width=width), err=False)
    has_problem = any(check.verdict is Verdict.PROBLEM for section in checks for check in section)
    sys.exit(Exit.FAILED if has_problem else Exit.GOOD)


def describe(section: str, checks: Iterable[Check], *, width: int) -> Iterator[str]:
    """Yield the lines of a section whose widest subject is so wide; a remedy has a line of its own."""
    yield section
    for check in checks:
        yield f"  {check.verdict:<8} {check.subject:<{width}}  {check.found}"
        if check.remedy:
            yield f"  {'':<8} {'':<{width}}  -> {check.remedy}"


def describe_patches() -> Iterator[str]:
    """Yield the lines of `--patches`: of each row what it replaces, why, and whether it is needed here."""
    shown = {True: "the fault is in the installed source", False: "the installed source has no such fault"}
    for patch in PATCHES:
        found = patch.is_needed()
        yield f"{patch.name}: {patch.targets}"
        yield f"    {patch.mends}"
        if found is not None:
            yield f"    {shown[found]}" + (f" ({patch.upstream})" if patch.upstream else "")
    yield "TRAIN_WITHOUT=name,name in a container's env leaves rows out"
