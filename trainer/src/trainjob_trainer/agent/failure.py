"""The failure of a training process that has ended badly."""

from __future__ import annotations

import re
from signal import SIGKILL, SIGTERM
from typing import TYPE_CHECKING

from trainjob_trainer.contract.exits import ExitCode, find_exception, meaning_of
from trainjob_trainer.contract.reports import OUT_OF_MEMORY, Failure
from trainjob_trainer.errors import AWAY, FULL

if TYPE_CHECKING:
    from trainjob_trainer.agent.child import ChildExit

_SENT = frozenset([SIGKILL, SIGTERM])
"""They come from outside: the last output does not explain them."""

_ERRNO = re.compile(r"\[Errno (\d+)\]")
"""How Python begins the text of a system's error."""


def describe_exit(ended: ChildExit, *, replica: str, pod: str, incarnation: int, attempt: int) -> Failure:
    """Return the failure of a training process that ended badly."""
    code = _explained_code(ended)
    meaning = meaning_of(code)
    out_of_memory = ended.out_of_memory
    return Failure(
        replica=replica,
        pod=pod,
        incarnation=incarnation,
        attempt=attempt,
        reason=OUT_OF_MEMORY if out_of_memory else meaning.name,
        exit_code=code,
        signal=ended.signal,
        message="" if ended.signal in _SENT and not ended.reason else ended.message,
        log_tail=ended.log_tail,
        replicas=ended.replicas,
        step=ended.step,
        counted=meaning.counted,
        permanent=meaning.permanent,
        time=ended.time,
        memory=ended.memory if ended.out_of_memory else None,
    ).bounded()


def _explained_code(ended: ChildExit) -> int:
    """Return the exit code; that of an outage if Python has failed by one before the trainer could say so."""
    raised = find_exception(ended.code, ended.log_tail)
    number = _ERRNO.match(raised.text) if raised is not None else None
    if number is None or int(number[1]) not in FULL | AWAY:
        return ended.code
    return int(ExitCode.OUTPUT_FULL if int(number[1]) in FULL else ExitCode.STORAGE_UNAVAILABLE)
