from collections.abc import Iterable

import pytest
from rich.console import Console

from support.cli.program import build_replica, build_run
from trainjob.cli.screen import draw
from trainjob.client.view import JobView
from trainjob.core.agent_reports import EvaluationResult


def _drawn(job: JobView, lines: Iterable[tuple[str, str]] = (), width: int = 80) -> str:
    console = Console(record=True, width=width, file=None, quiet=True, color_system=None)
    console.quiet = False
    with console.capture() as capture:
        console.print(draw(job, lines))
    return capture.get()


FULL = build_run(
    [
        build_replica(
            step=220,
            total_steps=440,
            epoch=10,
            total_epochs=20,
            loss=0.08123,
            examples_per_second=12345.6,
            step_seconds=0.2,
            input_seconds=0.1,
            checkpoint_step=200,
            resumed_from=110,
        ),
        build_replica("evaluator-0", "waiting"),
    ],
    message="training on 2 workers, attempt 2",
    attempt=2,
    restarts={"charged": 1},
    evaluation=EvaluationResult(step=200, metrics={"accuracy": 0.961}),
    stragglers=[{"replica": "worker-2", "workSeconds": 0.041, "medianSeconds": 0.02}],
)


def test_everything_is_shown() -> None:
    text = _drawn(FULL, [("worker-0", "epoch 10 done")])
    for part in (
        "digits  Running  attempt 2  1 restart  1m5s  resumed from step 110",
        "training on 2 workers, attempt 2",
        "220/440",
        "10/20",
        "0.0812",
        "12,346",
        "200",
        "evaluator-0  waiting",
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


def test_it_fits_eighty_columns() -> None:
    text = _drawn(FULL)
    assert all(len(line.rstrip()) <= 80 for line in text.splitlines())
    assert "…" not in text


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
