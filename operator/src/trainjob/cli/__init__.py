"""The command line: `trainjob run`, `validate`, `submit` and the other commands of `commands.py`.

Each command is imported only when it is called.
"""

from trainjob.cli.commands import main

__all__ = ["main"]
