import pytest

from trainjob.client.presenter import HERE, ON_CLUSTER, Advice
from trainjob.core.exits import EXITS


@pytest.mark.parametrize(
    ("reason", "code", "log", "expected"),
    [
        ("OutputFinished", 81, "", "--fresh"),
        ("PortInUse", 84, "", "--base-port"),
        ("Crashed", 1, "ModuleNotFoundError: No module named 'pandas'", "install the package of 'pandas'"),
        ("Crashed", 1, "ModuleNotFoundError: No module named 'tensorflow'", "'trainjob-trainer[cpu]'"),
        ("Crashed", 1, "ModuleNotFoundError: No module named 'keras.layers'", "'trainjob-trainer[cpu]'"),
        ("Crashed", 1, "ModuleNotFoundError: No module named 'keras_hub'", "package of 'keras_hub'"),
        ("Crashed", 2, "python: can't open file '/x/train.py': [Errno 2]", "there is no /x/train.py"),
        ("Crashed", 127, "trainjob: can't start 'foo'", "check the command"),
        ("Crashed", 1, "OSError: [Errno 28] No space left on device", "free some disk space"),
        ("Killed", 137, "", "out of memory"),
        ("Crashed", 1, "ValueError: boom", "run the same command again"),
    ],
)
def test_what_to_do(reason: str, code: int, log: str, expected: str) -> None:
    assert expected in HERE.on(reason, code, log)


@pytest.mark.parametrize("place", [HERE, ON_CLUSTER])
@pytest.mark.parametrize("code", [code for code in EXITS if code != 86])
def test_every_exit_code_of_the_trainer_has_its_own_advice(place: Advice, code: int) -> None:
    assert place.on(EXITS[code].name, code, "") != place.on("Crashed", 1, "")
