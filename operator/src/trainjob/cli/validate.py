"""`trainjob validate`: every mistake of every file, each with its line and field."""

import click

from trainjob.api import InvalidTrainJob, TrainJob
from trainjob.cli.files import RefusedFile, UnreadableFile, read_trainjobs
from trainjob.core.resources import count_gpus
from trainjob.core.roles import role_template
from trainjob.core.topology import replica_counts


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def validate(files: tuple[str, ...]) -> None:
    """Check the TrainJobs of FILEs without a cluster; `-` reads the standard input.

    Every mistake is one line on stderr. The exit code is 1 after mistakes, 2 when a file can't be read.
    """
    valid: list[TrainJob] = []
    code = 0
    for file in files:
        try:
            valid += _check(file)
        except (RefusedFile, UnreadableFile) as problem:
            problem.show()
            code = max(code, problem.exit_code)
    for job in valid:
        name = f"{job.metadata.name}: " if len(valid) > 1 or code else ""
        click.echo(f"{name}valid: {describe_size(job)}")
    if code:
        raise SystemExit(code)


def describe_size(job: TrainJob) -> str:
    """Return what the job takes, such as `3 pods, 0 GPUs`."""
    counts = replica_counts(job.spec)
    gpus = sum(count * count_gpus(role_template(job.spec, role)) for role, count in counts.items())
    return f"{_counted(sum(counts.values()), 'pod')}, {_counted(gpus, 'GPU')}"


def _check(file: str) -> list[TrainJob]:
    jobs, lines = [], list[str]()
    for document in read_trainjobs(file):
        try:
            jobs.append(document.parse())
        except InvalidTrainJob as invalid:
            lines += [str(error) for error in invalid.errors]
    if lines:
        raise RefusedFile(lines)
    return jobs


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
