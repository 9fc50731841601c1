"""Keras under several workers, as it is, with one part of the repair, and with all of it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.trainer.plain import SCRIPTS, run_job
from trainjob_trainer.environment import _SWITCHED
from trainjob_trainer.keras.trainer import fixed_batch_trouble
from trainjob_trainer.patches import PATCHES


@pytest.mark.nightly
def test_canary_keras_still_needs_both_repairs(tmp_path: Any) -> None:
    """When this fails, Keras has mended `fit` under several workers: remove the repair."""
    ended = run_job(SCRIPTS / "canary.py", tmp_path, env={"SEEN": str(tmp_path), "PYTHONPATH": ""})
    assert ended["worker-0"].code == 0, ended["worker-0"].log
    seen = json.loads((tmp_path / "worker-0.json").read_text())
    assert re.match("ValueError.*PerReplica", seen["unrepaired"])
    assert seen["without reduce"].startswith("ValueError")
    assert seen["repaired"] == seen["again"] == "trained"


@pytest.mark.parametrize(
    ("fixed", "rows", "words"),
    [
        (None, 16, None),
        (8, None, None),
        (8, 16, None),
        (16, 16, "gets 8 of a batch's 16 rows, .* exactly 16: build it with batch_size=8 "),
        (15, 15, "gets 7.5 of a batch's 15 rows, .* exactly 15: use a batch that 2 divide "),
    ],
)
def test_an_input_of_so_many_rows_is_refused_in_a_sentence(
    fixed: int | None, rows: int | None, words: str | None
) -> None:
    found = fixed_batch_trouble(fixed, rows, 2)
    assert found is None if words is None else re.search(words, found or "")


@pytest.mark.nightly  # that Keras needs them is for another Keras to change
@pytest.mark.parametrize(
    "without",
    [
        "",
        "refusals,numbers,iterators,order,reduce,random,saving,horovod",
        "strategy",
        "losses",
        "fit",
        "start",
    ],
)
def test_what_a_row_of_the_table_mends_is_broken_without_it(without: str, tmp_path: Path) -> None:
    ended = run_job(
        SCRIPTS / "rows_of_the_table.py", tmp_path, env={"SEEN": str(tmp_path), "TRAIN_WITHOUT": without}
    )
    broken = {*without.split(",")} | ({"fit", "losses"} if without in ("fit", "strategy") else set())
    facts = [json.loads((tmp_path / f"worker-{index}.json").read_text()) for index in (0, 1)]
    found = {row: all(one[row] for one in facts) for row in facts[0]}
    found["start"] = ended["worker-0"].progress["state"] == "failed"
    assert found == {one.name: one.name not in broken for one in PATCHES}, ended["worker-0"].log


def test_the_environment_knows_the_names_of_all_rows() -> None:
    assert set(_SWITCHED) == {"memory", "garbage", *(one.name for one in PATCHES)}
