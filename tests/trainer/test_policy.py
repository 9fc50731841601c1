from __future__ import annotations

from typing import Any

import pytest

from trainjob_trainer.data.source import Policy
from trainjob_trainer.recipe import TrainingPlan

WHOLE = {
    "workers": 2,
    "sizes": [1437],
    "takes_part": False,
    "shuffles": True,
    "window": None,
}
PLAN = TrainingPlan(440, 22, 22, 64)
AMOUNT = "1,437 examples, 22 steps of 64 an epoch"
ANEW = "shuffled anew each epoch"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {},
            f"{AMOUNT}; each of 2 workers reads all of it and takes one example in 2; {ANEW}",
        ),
        (
            {"workers": 1, "window": 100},
            f"{AMOUNT}; {ANEW}, 100 at a time",
        ),
        (
            {"sizes": [718, 719], "takes_part": True, "shuffles": False},
            f"{AMOUNT}; each of 2 workers reads a part of its own; in the order of train()",
        ),
        (
            {"sizes": [437, 1000], "takes_part": True},
            f"{AMOUNT}; the parts hold 437 to 1,000 examples, so each of 2 workers reads all of them in "
            f"turn, and every example comes equally often; {ANEW}",
        ),
        (
            {"workers": 3, "takes_part": True},  # a chief that reads for all of them
            f"{AMOUNT}; each of 3 workers reads all of it and takes one example in 3; {ANEW}",
        ),
        (
            {"sizes": None, "takes_part": True},
            "endless, 64 examples a step; each of 2 workers reads a part of its own; in the order of train()",
        ),
    ],
)
def test_the_policy_in_force_is_said(changes: dict[str, Any], sentence: str) -> None:
    assert Policy(**{**WHOLE, **changes}).sentence(PLAN) == f"training data: {sentence}"
