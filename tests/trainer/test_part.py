from __future__ import annotations

import pytest

from trainjob_trainer import Part, Task
from trainjob_trainer.keras.pipelines import part_of

WORKERS = {"worker": ("a:1", "b:1", "c:1"), "evaluator": ("e:1",)}
WITH_CHIEF = {"chief": ("a:1",), "worker": ("b:1", "c:1")}
SERVED = {**WITH_CHIEF, "ps": ("d:1",)}


def test_parts_hold_every_item_once() -> None:
    items = list("abcdefg")

    parts = [Part(index, 3).of(items) for index in range(3)]

    assert parts == [["a", "d", "g"], ["b", "e"], ["c", "f"]]
    assert Part().of(items) == items


@pytest.mark.parametrize(
    ("task", "part"),
    [
        (Task("worker", 0, {}), Part(0, 1)),
        (Task("worker", 2, WORKERS), Part(2, 3)),
        (Task("evaluator", 0, WORKERS), Part(0, 1)),
        (Task("chief", 0, WITH_CHIEF), Part(0, 3)),
        (Task("worker", 1, WITH_CHIEF), Part(2, 3)),
        (Task("chief", 0, SERVED), Part(0, 1)),
    ],
)
def test_a_process_reads_the_part_of_its_rank(task: Task, part: Part) -> None:
    assert part_of(task) == part
