"""The log of each replica, kept as a file beside what the job puts out."""

from pathlib import Path
from typing import TextIO


def replica_log_path(root: Path, replica: str) -> Path:
    """Return where the log of a replica such as `worker-0` is kept under the job's output folder."""
    return root / "logs" / "replicas" / f"{replica}.log"


class ReplicaLog:
    """Appends lines to a file. A log that can't be written never stops the training: `problem` says why.

    Args:
        path: the file; its folder is created.
        header: a first line that sets this attempt apart from earlier ones.
    """

    def __init__(self, path: Path, header: str) -> None:
        self.path = path
        self.problem: str | None = None
        self._file: TextIO | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8", errors="replace", buffering=1)
        except OSError as error:
            self._give_up(error)
        self.write(header)

    def write(self, line: str) -> None:
        """Append one line."""
        if self._file is None:
            return
        try:
            self._file.write(line + "\n")
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """End the file; more calls do nothing."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self.problem = self.problem or self._sentence(error)

    def _give_up(self, error: OSError) -> None:
        self.problem = self._sentence(error)
        self.close()

    def _sentence(self, error: OSError) -> str:
        return f"the log file {self.path} can't be written ({error.strerror}): its lines are only shown here"
