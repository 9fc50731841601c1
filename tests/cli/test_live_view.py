from collections.abc import Iterable
from datetime import UTC, datetime

import pytest
from rich.console import Console

from support.cli.program import build_replica, build_run
from trainjob.cli.screen import Detail, PlainScreen, draw
from trainjob.client.log_lines import EqualLines
from trainjob.client.page import JobHistory
from trainjob.client.view import JobView
from trainjob.cluster.protocol import PostedEvent
from trainjob.core.agent_reports import EvaluationResult

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STAMP = AT.astimezone().strftime("%H:%M:%S")
CRASH = "worker 1 crashed (exit code 1) at step 130; restarted in place from step 110 (restart 1 of 3)"


def _drawn(job: JobView, lines: Iterable[tuple[str, str]] = (), width: int = 80) -> str:
    console = Console(width=width, color_system=None)
    history, shown = JobHistory(), EqualLines()
    history.observe(job)
    for replica, text in lines:
        shown.add(replica, text, 0)
    with console.capture() as capture:
        console.print(draw(job, history, shown, width))
    return capture.get().replace("\N{NO-BREAK SPACE}", " ")


FULL = build_run(
    [
        build_replica(
            step=220,
            total_steps=440,
            epoch=10,
            total_epochs=20,
            loss=0.08123,
            examples_per_second=12345.6,
            metrics={"accuracy": "0.97", "val_loss": "0.11"},
            step_seconds=0.2,
            input_seconds=0.1,
            checkpoint_step=200,
            resumed_from=110,
        ),
        build_replica("evaluator-0", "waiting"),
    ],
    checkpoint_step=200,
    events=(PostedEvent(AT, "Warning", "Restarted", CRASH),),
    message="training on 2 workers, attempt 2",
    attempt=2,
    restarts={"counted": 1},
    evaluation=EvaluationResult(step=200, metrics={"accuracy": 0.961}),
    stragglers=[{"replica": "worker-2", "workSeconds": 0.041, "medianSeconds": 0.02}],
)


def test_everything_is_shown() -> None:
    text = _drawn(FULL, [("worker-0", "epoch 10 done")])
    for part in (
        "digits  Running  attempt 2  1 restart  1m5s  resumed from step 110",
        "training on 2 workers, attempt 2",
        "step 220/440  epoch 10/20  12,346 examples/s",
        "saved at 200",
        "loss 0.08123  accuracy 97.0 %  val_loss 0.11",
        "worker-0     training                  220/440  0.0812",
        "evaluator-0  waiting for a checkpoint",
        f"{STAMP} worker 1 crashed (exit code 1) at step 130; restarted in place from ",
        "worker 2 takes 41 ms of work a step, the others 20 ms (median)",
        "worker 0 waits for its data for 50 % of a step",
        "evaluation at step 200: accuracy 96.1 %",
        "worker-0 | epoch 10 done",
    ):
        assert part in text


@pytest.mark.parametrize("state", ["finished", "starting", "waiting", "failed (1)"])
def test_waiting_for_data_is_reported_of_replicas_that_train(state: str) -> None:
    job = build_run([build_replica(state=state, step_seconds=1.0, input_seconds=0.9)])
    assert "waits for its data" not in _drawn(job)


@pytest.mark.parametrize("width", [50, 80, 120, 200])
def test_it_fits(width: int) -> None:
    text = _drawn(FULL, width=width)
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    assert "…" not in text
    together = " ".join(text.split())
    assert CRASH in together
    assert "examples/s saved at 200" in together


def test_nothing_known_yet() -> None:
    text = _drawn(build_run([build_replica(state="pending", pod=None)], state=None))
    assert "digits  Pending" in text
    assert "worker-0" in text
    assert "None" not in text


def test_text_of_the_user_is_only_text() -> None:
    job = build_run(message="[bold]not markup[/bold] {{ 7*7 }}")
    text = _drawn(job, [("worker-0", "[red]log :smile: line[/]"), ("worker-0", "x" * 500)])
    assert "[bold]not markup[/bold] {{ 7*7 }}" in text
    assert "[red]log :smile: line[/]" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def _printed(capsys: pytest.CaptureFixture[str], detail: Detail) -> list[str]:
    """Return what a screen prints about two workers, one of which crashes."""
    screen = PlainScreen(on_gone=lambda: None, detail=detail, clock=lambda: AT)
    screen.note("a difference from a cluster")
    screen.show(build_run([build_replica("worker-0"), build_replica("worker-1")], message="training"))
    for replica in ("worker-0", "worker-1"):
        screen.line(replica, "hello")
    screen.line(
        "worker-0", "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR"
    )
    events = (PostedEvent(AT, "Warning", "Restarted", CRASH), PostedEvent(AT, "Normal", "Started", "goes on"))
    screen.show(
        build_run([build_replica("worker-0"), build_replica("worker-1")], message="training", events=events)
    )
    screen.note("stopping")
    screen.close()
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(f"{STAMP} ") for line in lines)
    return [line.removeprefix(f"{STAMP} ") for line in lines]


def test_plain_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert _printed(capsys, Detail.USUAL) == [
        "trainjob: a difference from a cluster",
        "trainjob: digits: Running: training",
        "trainjob: worker-0: training",
        "trainjob: worker-1: training",
        "worker-0 \N{MULTIPLICATION SIGN}2: hello",
        "trainjob: stopping",
    ]


def test_quiet_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert _printed(capsys, Detail.QUIET) == [f"trainjob: {CRASH}", "trainjob: stopping"]


def test_verbose_output(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _printed(capsys, Detail.VERBOSE)
    assert "worker-0: hello" in lines
    assert "worker-1: hello" in lines
    assert any("absl::InitializeLog" in line for line in lines)
