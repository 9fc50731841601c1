"""Files that both halves use: in a job's output, beside the agent's program, and in the job's code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trainjob_trainer.contract.replicas import EVALUATOR

# In the job's output folder.


@dataclass(frozen=True)
class OutputFolders:
    """The output folders of one replica.

    Attributes:
        own: where this replica may write.
        checkpoints: where the leading replica writes checkpoints and all others read them.
        logs: where this replica writes its TensorBoard logs.
    """

    own: str
    checkpoints: str
    logs: str


def output_folders(root: str, role: str) -> OutputFolders:
    """Return the folders of a replica below the job's; the evaluator's own can't harm the training."""
    if role == EVALUATOR:
        return OutputFolders(f"{root}/{EVALUATOR}", f"{root}/checkpoints", f"{root}/{EVALUATOR}/logs")
    return OutputFolders(root, f"{root}/checkpoints", f"{root}/logs/train")


def find_link(folders: Iterable[str | Path]) -> str:
    """Return what to do about the first of an output's own folders that is a link; empty if none is.

    An output may come from somebody else: what a link names isn't part of it. A folder that can't be
    examined now is left to its first use, which waits for it.
    """
    link = next((folder for folder in folders if os.path.islink(folder)), None)  # noqa: PTH114 - never raises
    if link is None:
        return ""
    return (
        f"{link} is a link, and links in an output are not followed: remove it, or replace it with what it "
        "points to"
    )


APPENDING = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags of `os.open` for a file that grows: a link is not followed, and nobody waits for a pipe's reader."""

FINAL = "final.json"
"""Among the checkpoints, once the writer's process has exited with 0: what had started it writes it."""

HISTORY = "logs/history.jsonl"
EVALUATIONS = "evaluations.jsonl"
"""In the evaluator's folder."""

RESULT = "result.json"
"""What a function has returned."""

# Beside the agent's program.


TOKEN = "token"  # noqa: S105 - the name of a file
CODE = "code.zip"
"""The job's code; also its key in the ConfigMap."""

LARGEST_CODE = 50_000_000
"""Bytes of all files of the code together."""

# In the code of a job that runs a function.


FUNCTION_FORMAT = 1
FUNCTION_FOLDER = ".trainjob"
"""Where the function lies; the name is no package's."""

FUNCTION_HEADER, FUNCTION = "function.json", "function.pickle"


def python_version() -> str:
    """Return this Python's version, such as `3.11`: another one can't load the function."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"
