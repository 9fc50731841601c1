from __future__ import annotations

import threading
from pathlib import Path

import pytest

from support.cli.program import GUARD_SECONDS, terminal
from support.cli.requests import Answer, Asked, Break
from support.cli.server import CliServer
from support.cli.stored_jobs import Beside, call, interrupt, let_time_pass, stored_job

FIRST = {"rank": "worker-1", "reason": "Crashed", "exitCode": 1, "logTail": "ValueError: boom"}


@pytest.mark.parametrize(("state", "code"), [("Complete", 0), ("Failed", 1)])
def test_a_job_that_is_over(state: str, code: int, api: CliServer) -> None:
    api.put(stored_job(state, message="so it ended", firstFailure=FIRST))
    result = call("wait", "digits")
    assert result.exit_code == code
    told, other = (result.stdout, result.stderr) if code == 0 else (result.stderr, result.stdout)
    assert f"digits {'is complete' if code == 0 else 'failed'}: so it ended" in told
    assert other == ""
    assert ("ValueError: boom" in told) == (code == 1)


@pytest.mark.parametrize("command", ["wait", "logs"])
def test_an_empty_name_is_no_job(command: str, api: CliServer) -> None:
    api.put(stored_job("Running"))
    result = call(command, "")
    assert (result.exit_code, result.stdout, result.stderr) == (3, "", "the job's name is empty\n")


def test_it_waits_and_reports_progress(api: CliServer) -> None:
    api.put(stored_job("Pending", message="starting 2 workers"))
    waiting = Beside("wait", "digits")
    api.wait_until(lambda: api.count("watch") == 1)
    api.put(stored_job("Running", message="training on 2 workers", progress={"step": 3}))
    api.put(stored_job("Running", message="training on 2 workers", progress={"step": 4}))
    api.put(stored_job("Complete", message="done"))
    result = waiting.finish()
    assert (result.exit_code, result.stdout.splitlines()[0]) == (0, "digits is complete: done")
    # No terminal: one line for each state, none for each step.
    assert result.stderr == "digits: Pending: starting 2 workers\ndigits: Running: training on 2 workers\n"


def test_the_time_is_over(api: CliServer, monkeypatch: pytest.MonkeyPatch) -> None:
    api.put(stored_job("Running", message="training on 2 workers"))
    let_time_pass(5400, lambda: api.count("watch") == 1, monkeypatch)
    result = call("wait", "digits", "--timeout", "1h30m")
    assert result.exit_code == 124
    assert result.stderr.endswith("not over after 5400 s; digits: Running: training on 2 workers\n")


def test_a_job_that_is_deleted_meanwhile(api: CliServer) -> None:
    api.put(stored_job("Running", message="training on 2 workers"))
    waiting = Beside("wait", "digits")
    api.wait_until(lambda: api.count("watch") == 1)
    api.delete("trainjobs", "digits")
    result = waiting.finish()
    assert result.exit_code == 3
    assert "digits was deleted (last seen: Running, training on 2 workers)" in result.stderr


def test_a_job_that_is_replaced_while_the_watch_is_broken_off(api: CliServer) -> None:
    api.put(stored_job("Running"))
    waiting = Beside("wait", "digits")
    api.wait_until(lambda: api.count("watch") == 1)
    api.delete("trainjobs", "digits")
    api.put(stored_job("Pending", uid="another"))
    api.forget_history()
    result = waiting.finish()
    assert result.exit_code == 3
    assert "digits was deleted" in result.stderr


def test_it_outlives_a_restart_of_the_api_server(api: CliServer) -> None:
    api.put(stored_job("Running"))
    waiting = Beside("wait", "digits")
    api.wait_until(lambda: api.count("watch") == 1)
    left: list[Exception] = [Break(), Break(), Answer(503, "ServiceUnavailable", "starting"), Break()]

    def fail(_: Asked) -> None:
        if left:
            raise left.pop(0)
        if api.get("trainjobs", "digits") == running_job:
            api.put(stored_job("Complete"))

    running_job = api.get("trainjobs", "digits")
    api.rules.append(fail)
    api.cut_watches()
    result = waiting.finish()
    assert (result.exit_code, left) == (0, [])
    assert "trying again" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_permission_that_is_revoked(api: CliServer) -> None:
    api.put(stored_job("Running"))
    waiting = Beside("wait", "digits")
    api.wait_until(lambda: api.count("watch") == 1)

    def forbid(_: Asked) -> None:
        raise Answer(403, "Forbidden", "you may not")

    api.rules.append(forbid)
    api.cut_watches()
    result = waiting.finish()
    assert result.exit_code == 4
    assert result.stderr.endswith("the API server doesn't allow it: you may not\n")


def test_a_job_that_is_not_there(api: CliServer) -> None:
    api.put(stored_job("Running"))
    result = call("wait", "digit")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "there is no TrainJob 'digit' in namespace default; did you mean digits?\n"


@pytest.mark.parametrize("command", [("wait",), ("logs", "-f")])
def test_ctrl_c(command: tuple[str, ...], api: CliServer) -> None:
    api.put(stored_job("Running", message="training"))
    with api.once(lambda: api.count("watch") == 1, interrupt):
        result = call(*command, "digits")
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr.removeprefix("trainjob: ") == "digits: Running: training\n"


def test_ctrl_c_while_the_server_does_not_answer(api: CliServer) -> None:
    answers = threading.Event()
    api.rules.append(lambda _: answers.wait(GUARD_SECONDS) and None)
    with api.once(lambda: api.count("get") == 1, interrupt):
        result = call("wait", "digits")
    answers.set()
    assert (result.exit_code, result.output) == (130, "")


def test_on_a_terminal_one_line_is_kept_up_to_date(api: CliServer, tmp_path: Path) -> None:
    api.put(stored_job("Running", message="training", progress={"step": 3, "totalSteps": 9}))
    with terminal("wait", "digits", cwd=tmp_path) as (process, screen):
        screen.read_until("step 3 of 9")
        api.put(stored_job("Running", message="training", progress={"step": 4, "totalSteps": 9}))
        screen.read_until("step 4 of 9")
        api.put(stored_job("Complete", message="done"))
        screen.read_until("digits is complete: done")
        assert process.wait(60) == 0
    assert "\n" not in screen.text[: screen.text.index("digits is complete")]
