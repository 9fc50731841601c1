from __future__ import annotations

import subprocess
import sys

from trainjob_trainer import ExitCode, TrainerError, errors


def all_errors(kind: type[TrainerError] = TrainerError) -> list[type[TrainerError]]:
    return [kind] + [error for child in kind.__subclasses__() for error in all_errors(child)]


def test_every_cause_but_success_has_an_error_and_every_error_is_documented() -> None:
    used = {error.exit_code for error in all_errors()}

    assert used == set(ExitCode) - {ExitCode.SUCCESS}
    assert all(error.__name__ in str(errors.__doc__) for error in all_errors())


def test_reasons_are_the_names() -> None:
    assert all(error.reason == error.__name__ for error in all_errors())


def test_the_front_needs_no_tensorflow() -> None:
    program = (
        "import sys, trainjob_trainer as t, trainjob_trainer.checkpoint.store;"
        "t.Task.from_environment({}); print(sorted({'tensorflow', 'keras'} & set(sys.modules)))"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert printed.stdout.strip() == "[]"
