"""The options that describe a job: for a script the whole job, for a file changes of it."""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from trainjob.api import Document, InvalidTrainJob, dump_yaml, parse_strictly, read_documents
from trainjob.api.errors import value_at
from trainjob.cli.documents import (
    STDIN,
    RefusedFile,
    UnreadableFile,
    check_valid,
    choose,
    is_script,
    read_trainjobs,
)
from trainjob.cli.options import FILE, gathered, one_file
from trainjob.core.script import (
    InvalidOption,
    ScriptJob,
    build_job,
    build_smoke_test,
    name_from,
    replace_arguments,
    set_field,
    wants_evaluator,
)

if TYPE_CHECKING:
    from trainjob.client.submission import Packed

RUNS = "runs"
"""The folder of local runs, which never travels."""

_ARGUMENTS = "trainjob.arguments"


class WithArguments(click.Command):
    """A command whose words behind `--` are arguments of the training script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the arguments for `_read_source`: None without `--`."""
        own, arguments = args, None
        if "--" in args:
            place = args.index("--")
            own, arguments = args[:place], tuple(args[place + 1 :])
        ctx.meta[_ARGUMENTS] = arguments
        try:
            return super().parse_args(ctx, own)
        except click.NoSuchOption as unknown:
            if arguments is not None:
                raise
            hint = f"Put the script's arguments after --, as in: -- {unknown.option_name}"
            raise click.UsageError(f"{unknown.format_message()} {hint}", ctx) from unknown

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Add the arguments to the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- ARGUMENT...]"]


def reader(read: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return the callback of an option whose values are read by this function of `core.script`."""

    def callback(_: click.Context, __: click.Parameter, value: Any) -> Any:
        try:
            return None if value in (None, ()) else read(value)
        except InvalidOption as invalid:
            raise click.BadParameter(str(invalid)) from invalid

    return callback


def _script_option(field: dataclasses.Field[Any]) -> click.Option:
    settings = {"default": field.default, **field.metadata}
    flag = f"--{field.name}"
    if field.type == "int":
        settings["type"] = click.IntRange(min=settings.pop("minimum"))
    elif field.type == "bool | None":
        flag += f"/--no-{field.name}"
    elif field.type == "Sequence[Path]":
        settings["type"] = click.Path(path_type=Path)
    if "read" in settings:
        settings["callback"] = reader(settings.pop("read"))
    return click.Option([flag], **settings)


_SCRIPT_OPTIONS = {
    field.name: _script_option(field) for field in dataclasses.fields(ScriptJob) if field.metadata
}


def _read_source(
    files: tuple[str, ...],
    more: tuple[str, ...] = (),
    assignments: tuple[str, ...] = (),
    smoke: bool = False,
    **options: Any,
) -> JobSource:
    context = click.get_current_context()
    given = tuple(
        f"--{name}" for name in options if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    )
    arguments = context.meta[_ARGUMENTS]
    return JobSource(
        one_file(files, more), ScriptJob(**options), given, assignments, arguments=arguments, smoke=smoke
    )


script_options = gathered(
    "source",
    lambda script, **options: _read_source((script,), **options),
    click.Argument(["script"], metavar="SCRIPT"),
    *_SCRIPT_OPTIONS.values(),
)
"""Adds SCRIPT and the options that describe its job; the command gets them as `source: JobSource`."""

job_options = gathered(
    "source",
    _read_source,
    *FILE,
    click.Option(
        ["--set", "assignments"],
        multiple=True,
        metavar="FIELD=VALUE",
        help="Change a field of the job, such as spec.worker.replicas=4.",
    ),
    click.Option(
        ["--smoke"],
        is_flag=True,
        help="Try everything once, as the job NAME-smoke: a step, a checkpoint, a batch of each evaluation,"
        " the export.",
    ),
    *_SCRIPT_OPTIONS.values(),
)
"""Adds FILE, -f, --set, --smoke and the options for a script; as `script_options`."""


@dataclass(frozen=True)
class JobSource:
    """A file or script, with what the command line says about it.

    Attributes:
        file: its name, `-` for the standard input.
        script: the options for scripts.
        given: those of them that are on the command line.
        assignments: the fields to set.
        arguments: of the program; None for those of the file.
        smoke: whether it is to be a smoke test.
    """

    file: str
    script: ScriptJob
    given: tuple[str, ...]
    assignments: tuple[str, ...] = ()
    arguments: tuple[str, ...] | None = None
    smoke: bool = False

    @property
    def is_script(self) -> bool:
        """Whether it is a script and no file with jobs."""
        return is_script(self.file)

    @property
    def folder(self) -> Path:
        """The working directory of the commands, with which the code's paths begin.

        A script runs in the current folder, or in its own if that is elsewhere. On a cluster the code has the
        same place below the working directory.
        """
        if not self.is_script:
            return Path() if self.file == STDIN else Path(self.file).parent
        folder = Path(os.path.abspath(self.file)).parent  # noqa: PTH100 - a link is where it lies
        return Path() if folder.is_relative_to(Path.cwd()) else folder

    def for_this_machine(self) -> Document:
        """Return the one job to run here.

        Raises:
            UnreadableFile, RefusedFile, click.UsageError: it can't be read, or which one isn't clear.
        """
        if self.is_script:
            document = self._from_script(python_path=os.environ.get("PYTHONPATH", ""))
        else:
            document = self._changed(choose(self._read(), self.script.name or None, self.file))
        config_map = value_at(document.raw, "spec", "code", "configMap")
        if config_map is not None:
            where = f"{document.source}:{document.line_of('spec.code')}"
            raise RefusedFile(
                f"{where} spec.code: its files are in the ConfigMap {config_map} of a cluster. To run the"
                " job here, remove spec.code and put the files beside this one, or run the script:"
                " trainjob run SCRIPT.py"
            )
        return self._tried(document)

    def for_cluster(self) -> tuple[tuple[Document, ...], Packed | None, tuple[str, ...]]:
        """Return the jobs to create, all valid, the code that travels, and lines about it.

        Raises:
            UnreadableFile, RefusedFile, click.UsageError: they can't be read, or are no valid jobs, or the
                code can't travel.
        """
        # Packing is needed by few commands.
        from trainjob.client.submission import (  # noqa: PLC0415
            UnusableCode,
            collect,
            describe,
            pack,
            with_code,
        )

        self._check_for_cluster()
        packed, notes = None, tuple[str, ...]()
        if self.is_script or self.script.code:
            script = Path(self.file) if self.is_script else None
            skip = (self.folder / RUNS, Path(RUNS))
            try:
                code = collect(self.folder, self.script.code, script=script, skip=skip)
                packed = pack(code.files)
            except UnusableCode as unusable:
                raise RefusedFile(str(unusable)) from unusable
            notes = (*code.notes, f"the code travels: {describe(code.files, packed)}")
        if self.is_script:
            documents: tuple[Document, ...] = (self._from_script(packed),)
        else:
            documents = self._read()
            if self.script.name:
                documents = (choose(documents, self.script.name, self.file),)
            documents = tuple(map(self._changed, documents))
            check_valid(documents)
            if packed is not None:
                documents = tuple(replace(each, raw=with_code(each.raw, packed)) for each in documents)
        digits = secrets.token_hex(2)
        return tuple(self._tried(document, digits) for document in documents), packed, notes

    def build(self, python_path: str = "") -> dict[str, Any]:
        """Return a script's TrainJob with the fields that --set sets.

        Args:
            python_path: folders for PYTHONPATH behind those of the code.

        Raises:
            UnreadableFile, RefusedFile: it can't be read, or isn't valid.
        """
        if not Path(self.file).is_file():
            raise UnreadableFile(f"{self.file}: can't be read: there is no such file")
        script, env = self.script, dict(self.script.env or {})
        folders = [os.path.relpath(path, self.folder) for path in script.code if path.is_dir()]
        if folders:
            more = env.get("PYTHONPATH", python_path)
            env["PYTHONPATH"] = ":".join([*folders, more] if more else folders)
        raw = build_job(
            replace(
                script,
                name=script.name or name_from(self.file),
                command=("python", Path(os.path.relpath(self.file, self.folder)).as_posix()),
                args=self.arguments or (),
                evaluator=wants_evaluator(script.evaluator, Path(self.file).read_text(errors="replace")),
                env=env,
            )
        )
        self._assign(raw)
        try:
            parse_strictly(raw, needs_image=False)
        except InvalidTrainJob as invalid:
            raise RefusedFile(*(f"{self.file}: {error}" for error in invalid.errors)) from invalid
        return raw

    def _check_for_cluster(self) -> None:
        """Check what only a cluster needs of a script."""
        missing = []
        if self.script.image is None:
            missing.append(
                "--image: an image with TensorFlow; your code need not be in it"
                f" (such as --image {known_image()})"
            )
        if self.script.output is None:
            missing.append(
                "--output: where checkpoints and results go: claim:NAME (kubectl get pvc shows them),"
                " size:10Gi (a new claim, deleted with the job), nfs:SERVER:/FOLDER or s3://BUCKET/FOLDER"
            )
        if self.is_script and missing:
            raise click.UsageError("on a cluster a script needs\n  " + "\n  ".join(missing))

    def _from_script(self, packed: Packed | None = None, python_path: str = "") -> Document:
        raw = self.build(python_path)
        if packed is not None:
            from trainjob.client.submission import with_code  # noqa: PLC0415 - not for runs here

            raw = with_code(raw, packed)
        # Lines in later messages are those of what --dry-run prints.
        return read_documents(print_job(raw), source=f"{self.file} (see --dry-run)")[0]

    def _read(self) -> tuple[Document, ...]:
        whole = [option for option in self.given if option not in ("--code", "--name")]
        if whole:
            raise click.UsageError(
                f"{', '.join(whole)}: only for scripts; for {self.file} change the field in the file, or "
                "with --set, such as --set spec.worker.replicas=4"
            )
        return read_trainjobs(self.file)

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
            except InvalidOption as invalid:
                raise click.BadParameter(str(invalid), param_hint="--set") from invalid


def print_job(raw: Mapping[str, Any]) -> str:
    """Return a job as YAML, as --dry-run prints it; as in the examples, three levels are on one line."""
    return dump_yaml(dict(raw), inline_depth=3)


def known_image() -> str:
    """Return TensorFlow's own image, of the version that is installed here."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - few commands need it

    for package in ("tensorflow", "tensorflow-cpu"):
        with suppress(PackageNotFoundError):
            return f"tensorflow/tensorflow:{version(package)}"
    return "tensorflow/tensorflow:latest"
