"""The command line: `trainjob validate | render | run`. Each command is imported only when it is called."""

from trainjob.cli.commands import main

__all__ = ["main"]
