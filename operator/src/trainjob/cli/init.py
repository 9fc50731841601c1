"""`trainjob init`: the file of a script's job, with a comment on each field."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from trainjob.api import read_documents
from trainjob.cli.documents import RefusedFile
from trainjob.cli.ending import command
from trainjob.cli.script_options import (
    JobSource,
    WithArguments,
    known_image,
    print_job,
    script_options,
)

_CONTAINER = "spec.template.spec.containers[0]"

_COMMENTS = {
    "metadata": "Pods and the output's folder get this name. A Kueue queue is a label:\n"
    "{{name: ..., labels: {{kueue.x-k8s.io/queue-name: research}}}}",
    "spec.worker": "How many replicas train. minReplicas lets training continue with fewer.",
    "spec.evaluator": "One more replica scores each checkpoint, without GPUs; 0 for none.",
    "spec.output": "Where checkpoints, logs and the model go. On this machine: a folder below runs/.\n"
    "On a cluster all replicas write there: a claim that exists (claimName), a new one (size: 10Gi),\n"
    "nfs: {{server: nfs.example.com, path: /exports/training}}, or a bucket (uri: s3://results/training).\n"
    "resume: Never starts over in a new folder.",
    "spec.template": "A pod template as in a Job; further volumes, node selectors and tolerations go here.",
    "spec.template.spec.securityContext": "The restricted Pod Security standard, with a user for images"
    " that run as root.",
}
_OF_CONTAINER = {
    "image": "For a cluster, any one with TensorFlow and Python 3.9 or newer; not used on this machine.",
    "command": "Relative to this file's folder. The folder's code need not be in the image:\n"
    "trainjob submit {file} --code {folder} sends it with the job.",
    "args": "Replaced by what follows -- on the command line.",
    "env": "TF_CONFIG and TRAINJOB_* are added.",
    "resources": "For each replica; a GPU is the limit nvidia.com/gpu.",
}
_RESOURCES = 'resources: {requests: {cpu: "2", memory: 4Gi}, limits: {memory: 4Gi, nvidia.com/gpu: "1"}}'
_END = (
    "More fields: maxRestarts (3), activeDeadlineSeconds, stallTimeoutSeconds, ttlSecondsAfterFinished and"
    " others: kubectl explain tj.spec"
)


@command("Write the file of a script's job, with comments.", cls=WithArguments)
@script_options
def init(source: JobSource) -> None:
    """Write the job of SCRIPT as a file with the script's name, for `run`, `submit` and kubectl.

    The options are those of `trainjob run`. An existing file is not overwritten.
    """
    if not source.is_script:
        raise click.UsageError(f"{source.file} is no Python script: its name doesn't end with .py")
    job = replace(source, script=replace(source.script, image=source.script.image or known_image())).build()
    file = source.folder / f"{Path(source.file).stem}.yaml"
    try:
        with file.open("x", encoding="utf-8") as written:
            written.write(_commented(job, file))
    except FileExistsError:
        raise RefusedFile(f"{file} exists already; nothing was written: move it away first") from None
    except OSError as error:
        raise RefusedFile(f"{file} can't be written: {error.strerror}") from error
    shown, folder = shlex.quote(str(file)), shlex.quote(str(file.parent))
    click.echo(
        f"wrote {file}; here: trainjob run {shown}; on a cluster: trainjob submit {shown} --code {folder}"
    )


def _commented(job: dict[str, Any], file: Path) -> str:
    """Return a script's job as YAML, with a comment above each field."""
    text = print_job(job)
    document = read_documents(text, source=str(file))[0]
    container = job["spec"]["template"]["spec"]["containers"][0]
    given = {f"{_CONTAINER}.{field}": hint for field, hint in _OF_CONTAINER.items() if field in container}
    above = {
        document.line_of(path): comment.format(file=file, folder=file.parent).splitlines()
        for path, comment in {**_COMMENTS, **given}.items()
    }
    if "resources" not in container:
        above[document.line_of(f"{_CONTAINER}.securityContext")] = [_RESOURCES]
    made = [
        "# Made by `trainjob init`.",
        f"#   here:           trainjob run {file}",
        f"#   on a cluster:   trainjob submit {file} --code {file.parent}",
    ]
    for number, line in enumerate(text.splitlines(), 1):
        indent = " " * (len(line) - len(line.lstrip(" -")))
        made += [f"{indent}# {comment}" for comment in above.get(number, ())]
        made.append(line)
    return "\n".join([*made, f"# {_END}"]) + "\n"
