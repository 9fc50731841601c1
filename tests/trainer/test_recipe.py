"""Where a setting comes from, and what is refused."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from trainjob_trainer import ExitCode, InvalidConfiguration, Recipe
from trainjob_trainer.recipe import check, recipe_of, variable_of

GOOD = Recipe(epochs=2, global_batch=8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": None}, "either epochs=... or steps"),
        ({"steps": 5}, "either epochs=... or steps"),
        ({"epochs": 0}, "epochs: must be a number of at least 1, got 0"),
        ({"epochs": 1.5}, "epochs: must be a number of at least 1, got 1.5"),
        ({"epochs": True}, "epochs: must be a number of at least 1, got True"),
        ({"global_batch": None}, "global_batch: must be given"),
        ({"global_batch": 0}, "global_batch: must be"),
        ({"checkpoint_every": -1}, "checkpoint_every"),
        ({"keep": 0}, "keep"),
        ({"warmup_steps": -1}, "warmup_steps: must be a number of at least 0"),
        ({"seed": "x"}, "seed: must be a whole number, got 'x'"),
        ({"shuffle": 1}, "shuffle: must be True or False, got 1"),
        ({"on_nan": "skipp"}, "on_nan: must be one of 'stop', 'skip', 'ignore', got 'skipp'"),
        ({"mode": "down"}, "mode: must be one of 'auto', 'min', 'max', got 'down'"),
        ({"patience": 0}, "patience: must be a number of at least 1, got 0"),
        ({"min_delta": -0.1}, "min_delta: must be a number of at least 0, got -0.1"),
        ({"min_delta": float("nan")}, "min_delta: must be a number of at least 0, got nan"),
        ({"seed": True}, "seed: must be a whole number, got True"),
        ({"initial_weights": 7}, "initial_weights: must be a text, got 7"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    check(GOOD)
    with pytest.raises(InvalidConfiguration, match=words):
        check(dataclasses.replace(GOOD, **changes))


def test_a_setting_that_does_not_exist_is_named_with_the_one_that_is_meant() -> None:
    with pytest.raises(InvalidConfiguration, match=r"no setting 'epoch'; did you mean 'epochs'\?"):
        recipe_of(GOOD, {"epoch": 3})
    with pytest.raises(InvalidConfiguration, match=r"there is no setting 'colour'$"):
        recipe_of(None, {"colour": 3})


def test_arguments_count_more_than_the_environment_and_that_more_than_the_code() -> None:
    env = {"TRAIN_EPOCHS": "4", "TRAIN_KEEP": "5", "TRAIN_EXPORT": "no", "TRAINING": "?"}
    recipe = Recipe.from_command_line(["--epochs", "7", "--no-shuffle"], env, epochs=2, global_batch=64)
    assert recipe == Recipe(epochs=7, global_batch=64, keep=5, export=False, shuffle=False)


def test_a_notebooks_kernel_has_arguments_that_are_not_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/lib/ipykernel_launcher.py", "-f", "/run/kernel-1.json"])
    assert Recipe.from_command_line(None, {}, epochs=2, global_batch=8) == GOOD


def test_code_may_replace_settings_of_a_recipe() -> None:
    assert recipe_of(GOOD, {"keep": 1}) == Recipe(epochs=2, global_batch=8, keep=1)


def test_help_lists_every_setting_with_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        Recipe.from_command_line(["--help"], {}, global_batch=64)
    assert left.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    for field in dataclasses.fields(Recipe):
        assert f"--{field.name.replace('_', '-')}" in printed
        assert f"[{variable_of(field.name)}]" in printed
        assert field.metadata["help"] in printed
    assert "(here: 64)" in printed


@pytest.mark.parametrize(
    ("arguments", "env", "words"),
    [
        (["--epochs", "many"], {}, "argument --epochs: invalid int value: 'many'"),
        (["--colour"], {}, "unrecognized arguments: --colour"),
        ([], {"TRAIN_MIN_DELTA": "some"}, "TRAIN_MIN_DELTA: must be a number, got 'some'"),
        ([], {"TRAIN_EPOCHS": "many"}, "TRAIN_EPOCHS: must be a number, got 'many'"),
        ([], {"TRAIN_EXPORT": "maybe"}, "TRAIN_EXPORT: must be true or false, got 'maybe'"),
    ],
)
def test_what_cannot_be_read_ends_the_process_as_any_invalid_configuration(
    arguments: list[str], env: dict[str, str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        Recipe.from_command_line(arguments, env, epochs=1, global_batch=8)
    assert left.value.code == ExitCode.INVALID_CONFIGURATION
    assert f"trainjob: InvalidConfiguration: {words}" in capsys.readouterr().err


def test_a_parser_of_the_scripts_own_can_have_the_settings_too() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=3)
    Recipe.add_arguments(parser, {}, epochs=1, global_batch=8)
    parsed = parser.parse_args(["--width", "5", "--seed", "1"])
    assert Recipe.from_arguments(parsed) == Recipe(epochs=1, global_batch=8, seed=1)
    assert parsed.width == 5


def test_the_documentation_lists_every_setting() -> None:
    page = (Path(__file__).parents[2] / "docs" / "train-and-evaluate.md").read_text(encoding="utf-8")
    for field in dataclasses.fields(Recipe):
        assert f"| `{field.name}` | {field.metadata['help']} |" in page


def test_a_number_may_be_a_whole_one() -> None:
    check(dataclasses.replace(GOOD, min_delta=1))
