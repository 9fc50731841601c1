"""The options that describe a job: for a script the whole job, for a file changes of it."""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainjob.api import Document, InvalidTrainJob, dump_yaml, parse_strictly, read_documents
from trainjob.api.errors import mapping_at, value_at
from trainjob.cli.documents import (
    RefusedFile,
    UnreadableFile,
    check_valid,
    choose,
    folder_of,
    is_script,
    read_trainjobs,
)
from trainjob.cli.options import file_argument
from trainjob.core.script import (
    InvalidOption,
    InvalidOverride,
    ScriptJob,
    build_job,
    build_smoke_test,
    name_from,
    parse_output,
    replace_arguments,
    set_field,
    wants_evaluator,
)

if TYPE_CHECKING:
    from trainjob.client.code import Packed

RUNS = "runs"
"""The folder of local runs, which never travels."""

INLINE_DEPTH = 3
"""How much of a job's YAML is on one line, as in the examples."""

_ARGUMENTS = "arguments"


# The command line.


class WithArguments(click.Command):
    """A command whose words behind `--` are arguments of the training script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set the parameter `arguments`: None without `--`."""
        own, arguments = args, None
        if "--" in args:
            place = args.index("--")
            own, arguments = args[:place], tuple(args[place + 1 :])
        try:
            rest = super().parse_args(ctx, own)
        except click.NoSuchOption as unknown:
            if arguments is not None:
                raise
            hint = f"Arguments of the script come behind --, as in: -- {unknown.option_name}"
            raise click.UsageError(f"{unknown.format_message()} {hint}", ctx) from unknown
        ctx.params[_ARGUMENTS] = arguments
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Add the arguments to the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- ARGUMENT...]"]


def read_output(_: click.Context, __: click.Parameter, value: str | None) -> Mapping[str, Any] | None:
    """Return `spec.output` for an option's value."""
    try:
        return None if value is None else parse_output(value)
    except InvalidOption as invalid:
        raise click.BadParameter(str(invalid)) from invalid


def _variables(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
    for value in values:
        if not value.partition("=")[0] or "=" not in value:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE")
    return dict(value.split("=", 1) for value in values) or None


_SCRIPT_OPTIONS = (
    click.option("--workers", type=click.IntRange(min=1), help="For a script: how many replicas train (1)."),
    click.option(
        "--evaluator/--no-evaluator",
        default=None,
        help="For a script: whether one more replica scores each checkpoint (it does, but for Horovod).",
    ),
    click.option("--gpus", type=click.IntRange(min=0), help="For a script: GPUs of each worker (0)."),
    click.option("--cpu", metavar="QUANTITY", help="For a script: processors of each replica, such as 2."),
    click.option("--memory", metavar="QUANTITY", help="For a script: memory of each replica, such as 4Gi."),
    click.option("--image", help="For a script: the image for a cluster, any one with TensorFlow."),
    click.option(
        "--output",
        metavar="OUTPUT",
        callback=read_output,
        help="For a script: where results go: claim:NAME, size:10Gi or nfs:SERVER:/FOLDER.",
    ),
    click.option("--queue", help="For a script: the Kueue queue that admits its pods."),
    click.option(
        "--env",
        "variables",
        multiple=True,
        metavar="NAME=VALUE",
        callback=_variables,
        help="For a script: a variable of its environment.",
    ),
    click.option(
        "--code",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="A file or folder that travels to the cluster, as a script does with the Python files beside it;"
        " folders are on PYTHONPATH.",
    ),
    click.option("--name", help="The job's name for a script; of several TrainJobs in FILE, the one meant."),
)


@dataclass(frozen=True)
class ScriptOptions:
    """What the options say; None where they say nothing."""

    workers: int | None
    evaluator: bool | None
    gpus: int | None
    cpu: str | None
    memory: str | None
    image: str | None
    output: Mapping[str, Any] | None
    queue: str | None
    variables: Mapping[str, str] | None
    code: tuple[Path, ...]
    name: str | None

    @property
    def only_for_scripts(self) -> list[str]:
        """Return the given options that describe a whole job."""
        given = {name: value for name, value in vars(self).items() if name not in ("code", "name")}
        return ["--env" if name == "variables" else f"--{name}" for name, v in given.items() if v is not None]


def script_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that describe a script's job; the command gets them as `script`."""

    @functools.wraps(command)
    def with_script(*arguments: Any, **options: Any) -> Any:
        own = {name: options.pop(name) for name in ScriptOptions.__dataclass_fields__}
        return command(*arguments, script=ScriptOptions(**own), **options)

    for option in reversed(_SCRIPT_OPTIONS):
        with_script = option(with_script)
    return with_script


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add FILE, -f, --set and the options for a script; the command gets them as `asked: AskedJobs`."""

    @file_argument
    @click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="FIELD=VALUE",
        help="Change a field of the job, such as spec.worker.replicas=4.",
    )
    @click.option(
        "--smoke",
        is_flag=True,
        help="Try everything once, as the job NAME-smoke: a step, a checkpoint, a batch of each evaluation,"
        " the export.",
    )
    @script_options
    @functools.wraps(command)
    def with_asked(
        *arguments: Any,
        file: str,
        assignments: tuple[str, ...],
        smoke: bool,
        script: ScriptOptions,
        **options: Any,
    ) -> Any:
        asked = AskedJobs(file, script, assignments, options.pop(_ARGUMENTS, None), smoke=smoke)
        return command(*arguments, asked=asked, **options)

    return with_asked


# The jobs that the command line describes.


def root_of(script: str) -> Path:
    """Return the folder in which a script runs: the current one, or its own if that is elsewhere.

    On a cluster the code has the same place below the working directory.
    """
    folder = Path(os.path.abspath(script)).parent  # noqa: PTH100 - a link is where it lies
    return Path() if folder.is_relative_to(Path.cwd()) else folder


@dataclass(frozen=True)
class AskedJobs:
    """A file or script, with what the command line says about it.

    Attributes:
        file: its name, `-` for the standard input.
        script: the options for scripts.
        assignments: the fields to set.
        arguments: of the program; None for those of the file.
        smoke: a smoke test is asked for.
    """

    file: str
    script: ScriptOptions
    assignments: tuple[str, ...] = ()
    arguments: tuple[str, ...] | None = None
    smoke: bool = False

    @property
    def is_script(self) -> bool:
        """Whether it is a script and no file with jobs."""
        return is_script(self.file)

    @property
    def folder(self) -> Path:
        """The working directory of the commands, with which the code's paths begin."""
        return root_of(self.file) if self.is_script else folder_of(self.file)

    def for_this_machine(self) -> Document:
        """Return the one job to run here.

        Raises:
            UnreadableFile, RefusedFile, click.UsageError: it can't be read, or which one isn't clear.
        """
        if self.is_script:
            path = os.environ.get("PYTHONPATH")
            return self._tried(self._from_script(python_path=(path,) if path else ()))
        self._refuse_script_options()
        document = self._changed(choose(read_trainjobs(self.file), self.script.name, self.file))
        config_map = value_at(document.raw, "spec", "code", "configMap")
        if config_map is not None:
            where = f"{document.source}:{document.line_of('spec.code')}"
            raise RefusedFile(
                [
                    f"{where} spec.code: its files are in the ConfigMap {config_map} of a cluster. To run the"
                    " job here, remove spec.code and put the files beside this one, or run the script:"
                    " trainjob run SCRIPT.py"
                ]
            )
        return self._tried(document)

    def for_cluster(self, packed: Packed | None) -> tuple[Document, ...]:
        """Return the jobs to create, all valid, with their code.

        Raises:
            UnreadableFile, RefusedFile, click.UsageError: they can't be read, or are no valid jobs.
        """
        digits = secrets.token_hex(2)
        if self.is_script:
            return (self._tried(self._from_script(packed), digits),)
        self._refuse_script_options()
        documents = read_trainjobs(self.file)
        if self.script.name is not None:
            documents = (choose(documents, self.script.name, self.file),)
        documents = tuple(_with_code(self._changed(document), packed) for document in documents)
        check_valid(documents)
        return tuple(self._tried(document, digits) for document in documents)

    def check_for_cluster(self) -> None:
        """Check what only a cluster needs of a script.

        Raises:
            click.UsageError: there is no image or no output.
        """
        missing = []
        if self.script.image is None:
            missing.append(
                "--image: an image with TensorFlow; your code need not be in it"
                f" (such as --image tensorflow/tensorflow:{_tensorflow_version()})"
            )
        if self.script.output is None:
            missing.append(
                "--output: where checkpoints and results go: claim:NAME (kubectl get pvc shows them),"
                " size:10Gi (a new claim, deleted with the job) or nfs:SERVER:/FOLDER"
            )
        if self.is_script and missing:
            raise click.UsageError("on a cluster a script needs\n  " + "\n  ".join(missing))

    def pack(self) -> tuple[Packed | None, tuple[str, ...]]:
        """Return the code that travels, if any does, and one line about each thing to know.

        Raises:
            RefusedFile: it can't travel.
        """
        # Packing is needed by few commands.
        from trainjob.client.code import UnusableCode, collect, describe, pack  # noqa: PLC0415

        if not self.is_script and not self.script.code:
            return None, ()
        script = Path(self.file) if self.is_script else None
        try:
            code = collect(
                self.folder, self.script.code, script=script, skip=(self.folder / RUNS, Path(RUNS))
            )
            packed = pack(code.files)
        except UnusableCode as unusable:
            raise RefusedFile([str(unusable)]) from unusable
        return packed, (*code.notes, f"the code travels: {describe(code.files, packed)}")

    def script_job(self, python_path: tuple[str, ...] = ()) -> ScriptJob:
        """Return the description of a script's job.

        Args:
            python_path: folders for PYTHONPATH behind those of the code.
        """
        if not Path(self.file).is_file():
            raise UnreadableFile(f"{self.file}: can't be read: there is no such file")
        options = self.script
        program = os.path.relpath(self.file, self.folder)
        variables = dict(options.variables or {})
        folders = [os.path.relpath(path, self.folder) for path in options.code if path.is_dir()]
        if folders:
            more = [variables["PYTHONPATH"]] if "PYTHONPATH" in variables else python_path
            variables["PYTHONPATH"] = ":".join([*folders, *more])
        job = ScriptJob(
            name=options.name or name_from(self.file),
            command=("python", Path(program).as_posix()),
            args=self.arguments or (),
            workers=options.workers or 1,
            evaluator=wants_evaluator(options.evaluator, Path(self.file).read_text(errors="replace")),
            gpus=options.gpus or 0,
            image=options.image,
            queue=options.queue,
            env=variables,
            cpu=options.cpu,
            memory=options.memory,
        )
        return replace(job, output=options.output) if options.output else job

    def build(self, job: ScriptJob) -> dict[str, Any]:
        """Return a script's TrainJob with the fields that --set sets.

        Raises:
            RefusedFile: it isn't valid.
        """
        raw = build_job(job)
        self._assign(raw)
        try:
            parse_strictly(raw, needs_image=False)
        except InvalidTrainJob as invalid:
            raise RefusedFile(f"{self.file}: {error}" for error in invalid.errors) from invalid
        return raw

    def _from_script(self, packed: Packed | None = None, python_path: tuple[str, ...] = ()) -> Document:
        job = self.script_job(python_path)
        raw = self.build(replace(job, code=_reference(job.name, packed)) if packed else job)
        # Lines in later messages are those of what --dry-run prints.
        return read_documents(print_job(raw), source=f"{self.file} (see --dry-run)")[0]

    def _tried(self, document: Document, digits: str = "") -> Document:
        if not self.smoke:
            return document
        try:
            spec = document.parse(needs_image=False).spec
        except InvalidTrainJob:
            return document  # refused with all its mistakes
        return replace(document, raw=build_smoke_test(document.raw, spec, digits))

    def _changed(self, document: Document) -> Document:
        if not self.assignments and self.arguments is None:
            return document
        raw = deepcopy(document.raw)
        if self.arguments is not None:
            replace_arguments(raw, self.arguments)
        self._assign(raw)
        return replace(document, raw=raw)

    def _assign(self, raw: dict[str, Any]) -> None:
        for assignment in self.assignments:
            try:
                set_field(raw, assignment)
            except InvalidOverride as invalid:
                raise click.BadParameter(str(invalid), param_hint="--set") from invalid

    def _refuse_script_options(self) -> None:
        given = self.script.only_for_scripts
        if given:
            raise click.UsageError(
                f"{', '.join(given)}: only for a script; {self.file} says this itself: change it there, or"
                " with --set, such as --set spec.worker.replicas=4"
            )


def print_job(raw: dict[str, Any]) -> str:
    """Return a job as YAML, as --dry-run prints it."""
    return dump_yaml(raw, inline_depth=INLINE_DEPTH)


def _with_code(document: Document, packed: Packed | None) -> Document:
    if packed is None:
        return document
    code = _reference(str(value_at(document.raw, "metadata", "name")), packed)
    return replace(document, raw={**document.raw, "spec": {**mapping_at(document.raw, "spec"), "code": code}})


def _reference(job: str, packed: Packed) -> dict[str, str]:
    from trainjob.client.submission import code_reference  # noqa: PLC0415 - only with code

    return code_reference(job, packed)


def _tensorflow_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - only for a message

    for package in ("tensorflow", "tensorflow-cpu"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "latest"
