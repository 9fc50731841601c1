"""The program: `trainjob.pyz -- COMMAND [ARGUMENT...]`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from trainjob_trainer.agent.agent import run_agent
from trainjob_trainer.agent.budget import Ledger
from trainjob_trainer.agent.failure import Failure, is_permanent, reason_of
from trainjob_trainer.agent.listener import PortTaken
from trainjob_trainer.agent.log import log
from trainjob_trainer.agent.settings import InvalidSettings, read_settings
from trainjob_trainer.agent.termination import write_termination
from trainjob_trainer.errors import ExitCode


def main() -> NoReturn:
    """Run the agent, and end the process with its exit code."""
    # The first process of a container ignores what it has no handler for: keep it until there is one.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    program = Path(sys.argv[0]).absolute()
    arguments = sys.argv[1:]
    command = arguments[1:] if arguments[:1] == ["--"] else arguments
    code = _run(command, os.environ, program.parent)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)  # a thread may still wait for a name server


def _run(command: Sequence[str], env: Mapping[str, str], bundle: Path) -> int:
    try:
        # The process ends right after: there is no need to close the loop, which would wait for its tasks.
        return asyncio.new_event_loop().run_until_complete(
            run_agent(read_settings(command, dict(env), bundle))
        )
    except InvalidSettings as error:
        return _refuse(ExitCode.INVALID_CONFIGURATION, str(error), env)
    except PortTaken as error:
        return _refuse(ExitCode.PORT_IN_USE, str(error), env)


def _refuse(code: ExitCode, message: str, env: Mapping[str, str]) -> int:
    log(message)
    path = env.get("TRAINJOB_TERMINATION_LOG")
    if path:
        reason = reason_of(int(code))
        failure = Failure("", "", 0, 0, reason, int(code), message=message, permanent=is_permanent(int(code)))
        write_termination(
            Path(path),
            gave_up=False,
            failure=failure.to_json(),
            ledger=Ledger().to_json(),
            report=None,
        )
    return int(code)
