from __future__ import annotations

import pytest

from trainjob.client.presenter import HERE, ON_CLUSTER, Advice
from trainjob_trainer.contract.exits import EXITS

NO_PANDAS = "ModuleNotFoundError: No module named 'pandas'"


@pytest.mark.parametrize(
    ("place", "reason", "code", "log", "expected"),
    [
        (HERE, "OutputFinished", 81, "", "--fresh"),
        (HERE, "PortInUse", 84, "", "--base-port"),
        (
            HERE,
            "Crashed",
            1,
            "ModuleNotFoundError: No module named 'pandas'",
            "install the package of 'pandas'",
        ),
        (
            HERE,
            "Crashed",
            1,
            "ModuleNotFoundError: No module named 'tensorflow'",
            "'trainjob-trainer[cpu]'",
        ),
        (
            HERE,
            "Crashed",
            1,
            "ModuleNotFoundError: No module named 'keras.layers'",
            "'trainjob-trainer[cpu]'",
        ),
        (HERE, "Crashed", 1, "ModuleNotFoundError: No module named 'keras_hub'", "package of 'keras_hub'"),
        (
            HERE,
            "Crashed",
            1,
            "ModuleNotFoundError: No module named 'horovod'",
            "TensorFlow 2.12 on Python 3.11",
        ),
        (HERE, "Crashed", 2, "python: can't open file '/x/train.py': [Errno 2]", "there is no /x/train.py"),
        (HERE, "Crashed", 127, "trainjob: can't start 'foo'", "check the command"),
        (HERE, "Crashed", 1, "OSError: [Errno 28] No space left on device", "free some disk space"),
        (HERE, "Killed", 137, "", "out of memory"),
        (HERE, "Crashed", 1, "ValueError: boom", "run the same command again"),
        (ON_CLUSTER, "OutOfMemory", 137, "", "resources.limits.memory"),
        (
            ON_CLUSTER,
            "Crashed",
            1,
            "ModuleNotFoundError: No module named 'pandas'",
            "'pandas' into the image",
        ),
        (
            ON_CLUSTER,
            "Crashed",
            2,
            "python: can't open file '/app/x.py': [Errno 2]",
            "no /app/x.py in the image",
        ),
        (ON_CLUSTER, "Crashed", 127, "", "the image must have it"),
        (ON_CLUSTER, "Crashed", 1, "OSError: [Errno 28] No space left on device", "make room"),
        (ON_CLUSTER, "Killed", 137, "", "for want of memory"),
        (ON_CLUSTER, "Crashed", 1, "ValueError", "submit it again"),
        (ON_CLUSTER, "OutputFinished", 81, "", "spec.output.resume: Never"),
    ],
)
def test_what_to_do(place: Advice, reason: str, code: int, log: str, expected: str) -> None:
    advice = place.on(reason, code, log)
    assert expected in advice
    assert place is HERE or "--fresh" not in advice  # an option of `trainjob run`


@pytest.mark.parametrize("place", [HERE, ON_CLUSTER])
@pytest.mark.parametrize("code", [code for code in EXITS if code != 86])
def test_every_exit_code_of_the_trainer_has_its_own_advice(place: Advice, code: int) -> None:
    assert place.on(EXITS[code].name, code, "") != place.on("Crashed", 1, "")
