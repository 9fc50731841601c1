"""Replicas of `trainjob run`: found by the lock on the output folder that they train into."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainjob.cli.cluster.problems import NoJob
from trainjob.cli.profiling import request_files
from trainjob.cli.profiling.desk import Away, read_answer
from trainjob.cluster.local import is_taken

FOLDER = "profile"
_LEVELS = ("", "*/", "*/*/")
"""Volumes lie in the folder of the runs, and jobs in those, perhaps below a `subPath`."""


@dataclass(frozen=True)
class LocalDesk:
    """That of a replica on this machine.

    Attributes:
        output: the job's output folder.
        replica: such as `worker-0`.
    """

    output: Path
    replica: str

    def ask(self, request: Mapping[str, Any]) -> None:
        """Leave a request, instead of any other."""
        try:
            request_files.ask(self.output / FOLDER, self.replica, json.dumps(request))
        except OSError as error:
            raise Away(f"can't write into {self.output / FOLDER}: {error.strerror}") from error

    def answer(self) -> Mapping[str, Any]:
        """Return what has been answered last, empty if nothing has."""
        return read_answer(request_files.answer(self.output / FOLDER, self.replica))

    def withdraw(self, number: str) -> None:
        """Take the request of this id back."""
        request_files.withdraw(self.output / FOLDER, self.replica, number)

    def why_over(self) -> str | None:
        """Return why nothing will be answered any more, in a sentence; None while something may."""
        return None if is_taken(self.output) else f"nothing trains into {self.output} any more"


def find_output(folder: Path, name: str) -> Path:
    """Return the output folder of the job that runs here under this name.

    Args:
        folder: the one that `trainjob run` was given.
        name: of the job.

    Raises:
        NoJob: none runs, or several do.
    """
    fresh = re.compile(rf"{re.escape(name)}(-[0-9a-f]{{8}})?")
    known = [
        path for level in _LEVELS for path in folder.glob(f"{level}{name}*") if fresh.fullmatch(path.name)
    ]
    running = [path for path in known if is_taken(path)]
    if len(running) == 1:
        return running[0]
    if running:
        shown = ", ".join(map(str, sorted(running)))
        raise NoJob(f"several runs of {name} are under way: {shown}; name the folder of one by --folder")
    raise NoJob(
        f"no `trainjob run` trains {name} into {folder}: start it, or name the folder that it was given by "
        "--folder"
    )
