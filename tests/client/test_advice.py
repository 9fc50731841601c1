from __future__ import annotations

import pytest

from support.golden import Golden
from trainjob.client.presenter import HERE, ON_CLUSTER, Advice
from trainjob_trainer.contract.exits import EXITS

NO_PANDAS = "ModuleNotFoundError: No module named 'pandas'"


@pytest.mark.parametrize(
    ("place", "reason", "code", "log"),
    [
        (HERE, "OutputFinished", 81, ""),
        (HERE, "PortInUse", 84, ""),
        (HERE, "Crashed", 1, "ModuleNotFoundError: No module named 'pandas'"),
        (HERE, "Crashed", 1, "ModuleNotFoundError: No module named 'tensorflow'"),
        (HERE, "Crashed", 1, "ModuleNotFoundError: No module named 'keras.layers'"),
        (HERE, "Crashed", 1, "ModuleNotFoundError: No module named 'keras_hub'"),
        (HERE, "Crashed", 1, "ModuleNotFoundError: No module named 'horovod'"),
        (HERE, "Crashed", 2, "python: can't open file '/x/train.py': [Errno 2]"),
        (HERE, "Crashed", 127, "trainjob: can't start 'foo'"),
        (HERE, "Crashed", 1, "OSError: [Errno 28] No space left on device"),
        (HERE, "Killed", 137, ""),
        (HERE, "Crashed", 1, "ValueError: boom"),
        (ON_CLUSTER, "OutOfMemory", 137, ""),
        (ON_CLUSTER, "Crashed", 1, "ModuleNotFoundError: No module named 'pandas'"),
        (ON_CLUSTER, "Crashed", 2, "python: can't open file '/app/x.py': [Errno 2]"),
        (ON_CLUSTER, "Crashed", 127, ""),
        (ON_CLUSTER, "Crashed", 1, "OSError: [Errno 28] No space left on device"),
        (ON_CLUSTER, "Killed", 137, ""),
        (ON_CLUSTER, "Crashed", 1, "ValueError"),
        (ON_CLUSTER, "OutputFinished", 81, ""),
    ],
)
def test_what_to_do(place: Advice, reason: str, code: int, log: str, golden: Golden) -> None:
    advice = place.on(reason, code, log)
    golden(advice)
    assert place is HERE or "--fresh" not in advice  # an option of `trainjob run`


@pytest.mark.parametrize("place", [HERE, ON_CLUSTER])
@pytest.mark.parametrize("code", [code for code in EXITS if code != 86])
def test_every_exit_code_of_the_trainer_has_its_own_advice(place: Advice, code: int) -> None:
    assert place.on(EXITS[code].name, code, "") != place.on("Crashed", 1, "")
