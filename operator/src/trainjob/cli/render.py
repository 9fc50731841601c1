"""`trainjob render`: the objects that the controller would create in a cluster."""

import re

import click

from trainjob.cli.documents import check_valid, choose, dump_stream, read_trainjobs
from trainjob.cli.ending import command
from trainjob.cli.options import file_argument
from trainjob.cluster.agents.bundle import preview_source
from trainjob.core.manifests import build_objects, share_claims
from trainjob.core.names import Replica, build_tf_config, desired_replicas

_TASK = re.compile(r"(?P<role>[a-z]+)[/-](?P<index>\d+)")


@command("Print the objects that a cluster would get for a job.")
@file_argument
@click.option("--task", metavar="ROLE/INDEX", help="Print only this replica's TF_CONFIG, such as worker/0.")
@click.option("--name", help="Which TrainJob, if FILE has several.")
def render(file: str, task: str | None, name: str | None) -> None:
    """Print, as YAML, the objects that a cluster would get for FILE; `-` reads the standard input."""
    documents = read_trainjobs(file)
    if task is not None or name is not None:
        documents = (choose(documents, name, file),)
    jobs = [document.parse() for document in check_valid(documents)]
    if task is not None:
        found, replicas = _TASK.fullmatch(task), desired_replicas(jobs[0].spec)
        replica = Replica(found["role"], int(found["index"])) if found else None
        if replica is None or replica not in replicas:
            more = ", ..." if len(replicas) > 20 else ""
            known = ", ".join(f"{r.role}/{r.index}" for r in replicas[:20]) + more
            raise click.BadParameter(
                f"{task!r} is no replica of this job; it has {known}", param_hint="--task"
            )
        click.echo(build_tf_config(jobs[0], replica))
        return
    objects = [made for job in jobs for made in build_objects(job, preview_source(job.metadata))]
    click.echo(dump_stream(share_claims(o) if o["kind"] == "Pod" else o for o in objects), nl=False)
