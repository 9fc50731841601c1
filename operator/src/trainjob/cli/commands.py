"""The commands by name, imported on demand: `validate` must not load what only `run` needs."""

import difflib
import errno
import gc
import importlib
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

_MODULES = {
    "run": "trainjob.cli.run",
    "init": "trainjob.cli.init",
    "validate": "trainjob.cli.validate",
    "render": "trainjob.cli.render",
    "submit": "trainjob.cli.submit",
    "list": "trainjob.cli.listing",
    "get": "trainjob.cli.get",
    "compare": "trainjob.cli.compare",
    "logs": "trainjob.cli.following",
    "wait": "trainjob.cli.following",
    "suspend": "trainjob.cli.change",
    "resume": "trainjob.cli.change",
    "scale": "trainjob.cli.change",
    "delete": "trainjob.cli.change",
    "cp": "trainjob.cli.cp",
    "tensorboard": "trainjob.cli.tensorboard",
    "doctor": "trainjob.cli.doctor",
    "ui": "trainjob.cli.ui",
    "convert": "trainjob.cli.convert",
    "controller": "trainjob.cli.controller",
}

_UNWRITABLE = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])


class LazyGroup(click.Group):
    """A group that imports a command when it is called: the function of that name in its own module."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run the program; if the output can't be written (full disk), exit with a one-line message."""
        if Path(sys.argv[0]).name == "kubectl-trainjob":
            options.setdefault("prog_name", "kubectl trainjob")  # as people type it
        try:
            return super().main(*arguments, **options)
        except OSError as error:
            # An error with a file name is about that file, not about the output.
            if error.errno not in _UNWRITABLE or error.filename is not None:
                raise
            with suppress(OSError):
                click.echo(f"the output can't be written: {error.strerror}", err=True)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in (sys.stdout, sys.stderr):  # Python would report it again at exit
                os.dup2(nowhere, stream.fileno())
            sys.exit(2)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is meant; a misspelled one ends in a suggestion."""
        name = args[0]
        if name not in _MODULES and not name.startswith("-"):
            near = difflib.get_close_matches(name, _MODULES)
            if name.endswith((".py", ".yaml", ".yml")):
                near = [f"trainjob run {name}"]
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"No such command {name!r}.{hint}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the help text."""
        del ctx
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        del ctx
        if cmd_name not in _MODULES:
            return None
        # An import makes no garbage; collection takes a twentieth of the half second of `validate`.
        gc.disable()
        try:
            command = getattr(importlib.import_module(_MODULES[cmd_name]), cmd_name)
        finally:
            gc.enable()
        assert isinstance(command, click.Command)  # noqa: S101 - our own modules
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trainjob")
def main() -> None:
    """Distributed TensorFlow from one file, on a laptop or on Kubernetes."""
    # Python sets closed streams to None, and their descriptors would be reused.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - open until the end
