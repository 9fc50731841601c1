from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from support.cli.program import GUARD_SECONDS, command, terminal
from support.cli.requests import Answer, Asked, Log
from support.cli.server import CliServer
from support.cli.stored_jobs import RUNNING, Beside, call, condition, ended, stored_job, stored_pod
from support.golden import Golden
from trainjob.cli.screen import LogPrinter

FIRST = {"rank": "worker-1", "reason": "Crashed", "exitCode": 1, "logTail": "Traceback\nValueError: boom"}
HARMLESS = "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR"
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no nodes"}


def at(second: int, text: str, fraction: int = 0) -> str:
    return f"2026-01-02T03:04:{second:02}.{fraction:09}Z {text}"


def put_running(api: CliServer, *replicas: tuple[str, int], incarnation: int = 1) -> None:
    for role, index in replicas:
        api.put(stored_pod(role, index, incarnation, container=RUNNING))


def end(api: CliServer, *replicas: tuple[str, int], incarnation: int = 1, code: int = 0) -> None:
    for role, index in replicas:
        pod = stored_pod(role, index, incarnation, container=ended(code))
        api.put(pod)
        api.write_log(pod["metadata"]["name"], whole=True)


def three_logs(api: CliServer) -> None:
    api.put(stored_job())
    put_running(api, ("worker", 0), ("worker", 1), ("evaluator", 0))
    api.write_log("digits-worker-0-1", at(5, "one"), at(8, "four"))
    api.write_log("digits-worker-1-1", at(6, "two"), at(9, "five"))
    api.write_log("digits-evaluator-0-1", at(6, HARMLESS), at(7, "three"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["worker-0: one", "worker-1: two", "evaluator-0: three", "worker-0: four", "worker-1: five"]),
        (["--role", "worker", "--index", "1"], ["worker-1: two", "worker-1: five"]),
        (["--role", "evaluator"], ["evaluator-0: three"]),
        (["--tail", "1"], ["evaluator-0: three", "worker-0: four", "worker-1: five"]),
        (["--index", "1", "--tail", "0"], []),
        (["--role", "evaluator", "--timestamps"], [f"evaluator-0: {at(7, 'three')}"]),
    ],
)
def test_all_logs_in_the_order_of_time(options: list[str], expected: list[str], api: CliServer) -> None:
    three_logs(api)
    result = call("logs", "digits", *options)
    assert (result.exit_code, result.stdout.splitlines(), result.stderr) == (0, expected, "")


def test_a_stream_that_breaks_off_without_following(api: CliServer) -> None:
    three_logs(api)
    api.logs["digits-worker-0-1"].breaks = [10, 45]
    result = call("logs", "digits", "--role", "worker")
    assert result.stdout.splitlines() == [
        f"worker-{n % 2}: {w}" for n, w in enumerate(("one", "two", "four", "five"))
    ]


def test_what_has_no_log_yet_is_said(api: CliServer, golden: Golden) -> None:
    api.put(stored_job())
    put_running(api, ("worker", 0))
    api.write_log("digits-worker-0-1", at(5, "one"))
    api.put(stored_pod("worker", 1, conditions=[UNSCHEDULABLE]))
    result = call("logs", "digits")
    assert (result.exit_code, result.stdout) == (0, "worker-0: one\n")
    golden(result.stderr)


def test_no_pods_at_all(api: CliServer, golden: Golden) -> None:
    api.put(stored_job("Pending", message="starting 2 workers"))
    golden(call("logs", "digits").stderr, call("logs", "digits", "--role", "ps").stderr)


def test_a_failed_job_ends_with_what_failed(api: CliServer, golden: Golden) -> None:
    three_logs(api)
    api.put(stored_job("Failed", message="worker 1 crashed", firstFailure=FIRST))
    result = call("logs", "digits", "--role", "evaluator")
    assert (result.exit_code, result.stdout) == (0, "evaluator-0: three\n")
    golden(result.stderr)


def test_following_through_a_restart(api: CliServer) -> None:
    api.put(stored_job("Pending", message="starting 1 worker"))
    following = Beside("logs", "digits", "-f", "--tail", "0")  # of pods that are there already
    api.wait_until(lambda: api.count("watch") == api.count("watch", "pods") == 1)
    api.put(stored_pod())
    put_running(api, ("worker", 0))
    api.write_log("digits-worker-0-1", at(5, "one"))
    api.put(stored_job("Running", message="training on 1 worker"))
    api.wait_until(lambda: api.count("log", "pods") == 1)
    api.write_log("digits-worker-0-1", at(6, "two"))
    end(api, ("worker", 0), code=1)
    api.put(stored_job("Restarting", message="worker 0 crashed"))
    api.delete("pods", "digits-worker-0-1")
    put_running(api, ("worker", 0), ("evaluator", 0), incarnation=2)
    api.write_log("digits-worker-0-2", at(9, "again"))
    api.write_log("digits-evaluator-0-2", at(9, "scoring"))
    end(api, ("worker", 0), ("evaluator", 0), incarnation=2)
    api.put(stored_job("Complete", message="training has finished"))
    result = following.finish()
    assert result.exit_code == 0
    *lines, last, _ = result.stdout.splitlines()
    assert [line for line in lines if line.startswith("worker")] == [
        "worker-0: one",
        "worker-0: two",
        "worker-0: again",
    ]
    assert "evaluator-0: scoring" in lines
    assert last == "digits is complete: training has finished"
    told = result.stderr.splitlines()
    assert told[0] == "trainjob: digits: Pending: starting 1 worker"
    assert "trainjob: digits: Restarting: worker 0 crashed" in told


def test_streams_that_break_off_lose_nothing_and_double_nothing(api: CliServer) -> None:
    api.put(stored_job())
    put_running(api, ("worker", 0))
    lines = [at(5 + n // 4, f"line {n}", fraction=n % 4) for n in range(40)]
    api.write_log("digits-worker-0-1", *lines)
    api.logs["digits-worker-0-1"].breaks = [0, 3, 50, 700, 701, 2000, 90]
    following = Beside("logs", "digits", "-f")
    api.wait_until(lambda: api.count("log", "pods") == 8)
    end(api, ("worker", 0))
    api.put(stored_job("Complete"))
    result = following.finish()
    assert [line for line in result.stdout.splitlines() if line.startswith("worker-0")] == [
        f"worker-0: line {n}" for n in range(40)
    ]
    since = [asked.query.get("sinceTime") for asked in api.asked if asked.verb == "log"]
    assert since[0] is None
    assert since[-1] is not None


def test_a_last_line_without_an_end(api: CliServer, golden: Golden) -> None:
    api.put(stored_job())
    put_running(api, ("worker", 0))
    api.write_log("digits-worker-0-1", at(5, "one"))
    api.write_log("digits-worker-0-1", at(5, "Killed"), end="")
    end(api, ("worker", 0), code=137)
    api.put(stored_job("Failed", message="worker 0 was killed"))
    result = call("logs", "digits", "-f")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == ["worker-0: one", "worker-0: Killed"]
    golden(result.stderr)


def test_following_begins_with_the_newest_pods_and_their_tails(api: CliServer) -> None:
    api.put(stored_job())
    end(api, ("worker", 0), incarnation=1, code=1)
    end(api, ("worker", 0), incarnation=2)
    api.logs["digits-worker-0-1"] = Log([at(1, "old\n").encode()], is_whole=True)
    api.logs["digits-worker-0-2"] = Log([at(5, f"{n}\n").encode() for n in range(9)], is_whole=True)
    api.put(stored_job("Complete"))
    result = call("logs", "digits", "-f", "--tail", "2")
    assert result.stdout.splitlines()[:2] == ["worker-0: 7", "worker-0: 8"]
    assert "old" not in result.stdout


def test_what_is_waited_for_is_said_once(
    api: CliServer, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def end_after_two(printer: LogPrinter, text: str) -> None:
        note(printer, text)
        waits.append("waiting for" in text)
        if sum(waits) == 2:
            api.put(stored_job("Failed", message="there were no nodes"))

    note, waits = LogPrinter.note, list[bool]()
    monkeypatch.setattr(LogPrinter, "note", end_after_two)
    api.put(stored_job("Pending"))
    following = Beside("logs", "digits", "-f")
    api.wait_until(lambda: api.count("watch", "pods") == 1)
    for n in (0, 0, 1):
        api.put(stored_pod("worker", n, conditions=[UNSCHEDULABLE]))
    result = following.finish()
    assert result.exit_code == 1
    told = [line for line in result.stderr.splitlines() if "waiting for" in line]
    golden(*told)


def test_a_job_that_is_deleted_while_its_logs_are_followed(api: CliServer) -> None:
    api.put(stored_job(message="training"))
    put_running(api, ("worker", 0))
    api.write_log("digits-worker-0-1", at(5, "one"))
    following = Beside("logs", "digits", "-f")
    api.wait_until(lambda: api.count("log", "pods") == 1 and api.count("watch") == 1)
    api.delete("trainjobs", "digits")
    api.write_log("digits-worker-0-1", at(6, "stopping"), whole=True)
    api.delete("pods", "digits-worker-0-1")
    result = following.finish()
    assert result.exit_code == 3
    assert result.stdout.splitlines() == ["worker-0: one", "worker-0: stopping"]
    assert result.stderr.endswith("digits was deleted (last seen: Running, training)\n")


def test_logs_that_may_not_be_read(api: CliServer) -> None:
    def forbid(asked: Asked) -> None:
        if asked.verb == "log":
            raise Answer(403, "Forbidden", "you may not")

    api.rules.append(forbid)
    three_logs(api)
    for options in ([], ["-f"]):
        result = call("logs", "digits", *options)
        assert result.exit_code == 4
        assert result.stderr.endswith("the API server doesn't allow it: you may not\n")


def test_a_log_that_cannot_be_read_keeps_nothing_else_back(api: CliServer, golden: Golden) -> None:
    def fail(asked: Asked) -> None:
        if asked.verb == "log" and asked.name == "digits-worker-1-1":
            raise Answer(500, "InternalError", "dial tcp: no route to host")

    api.rules.append(fail)
    three_logs(api)
    result = call("logs", "digits")
    assert result.stdout.splitlines() == ["worker-0: one", "evaluator-0: three", "worker-0: four"]
    golden(result.stderr)


def test_the_attempt_before(api: CliServer) -> None:
    api.put(stored_job(attempt=2))
    end(api, ("worker", 0), incarnation=1, code=1)
    put_running(api, ("worker", 0), incarnation=2)
    put_running(api, ("evaluator", 0))
    api.logs["digits-worker-0-1"] = Log([at(5, "ValueError\n").encode()], is_whole=True)
    result = call("logs", "digits", "--previous")
    assert (result.stdout, result.stderr) == ("worker-0: ValueError\n", "")


LEFT = "worker-1: Traceback\nworker-1: ValueError: boom\n"


@pytest.mark.parametrize(
    ("strategy", "status", "stdout"),
    [
        ("Recreate", {"attempt": 2, "firstFailure": FIRST}, LEFT),
        ("InPlace", {"attempt": 2, "firstFailure": {**FIRST, "pod": "digits-worker-1-1"}}, LEFT),
        ("InPlace", {"attempt": 3, "firstFailure": {**FIRST, "pod": "digits-worker-0-2"}}, ""),
        ("Recreate", {"attempt": 2}, ""),
        ("Recreate", {}, ""),
    ],
)
def test_the_attempt_before_is_gone(
    strategy: str, status: dict[str, object], stdout: str, api: CliServer, golden: Golden
) -> None:
    api.put(of_strategy(strategy, stored_job(**status)))
    put_running(api, ("worker", 0), incarnation=2)
    result = call("logs", "digits", "--previous")
    assert (result.exit_code, result.stdout) == (0, stdout)
    golden(result.stderr)


@pytest.mark.parametrize(("strategy", "stdout"), [("InPlace", ""), ("Recreate", "worker-0: one\n")])
def test_a_pod_that_lives_on_is_no_earlier_one(strategy: str, stdout: str, api: CliServer) -> None:
    api.put(of_strategy(strategy, stored_job(attempt=2)))
    put_running(api, ("worker", 0))
    api.logs["digits-worker-0-1"] = Log([at(1, "one\n").encode()], is_whole=True)
    assert call("logs", "digits", "--previous").stdout == stdout


def of_strategy(strategy: str, job: dict[str, Any]) -> dict[str, Any]:
    job["spec"]["restartStrategy"] = strategy
    return job


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["digits", "-f", "--previous"], 2),
        (["digits", "--role", "boss"], 2),
        (["digits", "--index", "-1"], 2),
        (["digit"], 3),
        (["digit", "-f"], 3),
        (["digit", "--previous"], 3),
    ],
)
def test_what_is_wrong(arguments: list[str], code: int, api: CliServer, golden: Golden) -> None:
    api.put(stored_job())
    result = call("logs", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    golden(result.stderr.splitlines()[-1])


def test_the_reader_of_the_output_is_gone(api: CliServer, tmp_path: Path) -> None:
    three_logs(api)
    api.write_log("digits-worker-0-1", *[at(9, "x" * 1000, fraction=n) for n in range(500)])
    with subprocess.Popen(
        command(["logs", "digits"]), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 141)


def test_colours_on_a_terminal_only(api: CliServer, tmp_path: Path) -> None:
    three_logs(api)
    with terminal("logs", "digits", cwd=tmp_path) as (process, screen):
        screen.read_until("worker-1: five")
        assert process.wait(60) == 0
    assert "\x1b[36mworker-0\x1b[0m: one" in screen.text
    assert "\x1b[32mworker-1\x1b[0m: two" in screen.text
    assert "\x1b" not in call("logs", "digits").stdout


def test_a_job_whose_condition_is_there_before_its_pods_are_seen(api: CliServer) -> None:
    """The watch of the job may be ahead of the pods': their logs are read all the same."""
    over = threading.Event()

    def hold_up(asked: Asked) -> None:
        if (asked.verb, asked.plural) == ("watch", "pods"):
            over.wait(GUARD_SECONDS)

    api.rules.append(hold_up)
    api.put(stored_job())
    following = Beside("logs", "digits", "-f")
    api.wait_until(lambda: api.count("watch", "pods") == api.count("watch") == 1)
    api.write_log("digits-worker-0-1", at(5, "one"), whole=True)
    api.put(stored_pod(container=ended(0)))
    api.put(stored_job("Complete", conditions=[condition("Complete", "done")]))
    try:
        assert following.finish().stdout.splitlines()[0] == "worker-0: one"
    finally:
        over.set()
