"""The command line: `trainjob run | validate | render | submit | get | logs | wait | convert | controller`.

Each command is imported only when it is called.
"""

from trainjob.cli.commands import main

__all__ = ["main"]
