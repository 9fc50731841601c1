"""Settings of a training, from the code, the environment or the command line, and its plan in steps.

The command line overrides the environment, and the environment overrides the code. A TrainJob changes a
setting without a new image, through its container's `args` or `env`.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from trainjob_trainer.contract.environment import SETTING
from trainjob_trainer.contract.exits import ExitCode
from trainjob_trainer.environment import is_kernel
from trainjob_trainer.errors import InvalidConfiguration

"""Prefix of environment variables, as in `TRAIN_GLOBAL_BATCH=128`; TRAINJOB_ is the controller's."""

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _setting(
    meaning: str, kind: type, default: Any = None, *, least: int | None = None, among: Sequence[str] = ()
) -> Any:
    metadata = {"help": meaning, "kind": kind, "least": least, "among": among}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Recipe:
    """The settings of `train_and_evaluate`; each is also one of its arguments."""

    global_batch: int | None = _setting(
        "examples a step, over all workers, who must divide it; with parameter servers each worker's",
        int,
        least=1,
    )
    epochs: int | None = _setting("passes over the training data; this or steps", int, least=1)
    steps: int | None = _setting("optimizer steps in all, those of earlier starts included", int, least=1)
    seed: int = _setting("of initial weights, dropout and the order of examples", int, 42)
    shuffle: bool = _setting(
        "reshuffle the training data each epoch, unless train() takes the step", bool, True
    )
    checkpoint_every: int | None = _setting(
        "steps between checkpoints; by default those of an epoch, or a tenth of all where data is endless",
        int,
        least=1,
    )
    keep: int = _setting("checkpoints to keep; the final one stays anyway", int, 3, least=1)
    export: bool = _setting(
        "write the trained model to <output>/model, as model.keras and saved_model", bool, True
    )
    base_batch: int | None = _setting(
        "examples a step that the optimizer's learning rate is meant for; it is multiplied by "
        "global_batch / base_batch",
        int,
        least=1,
    )
    warmup_steps: int = _setting("steps in which the learning rate rises from zero", int, 0, least=0)
    on_nan: str = _setting(
        "when a loss or a gradient is NaN or infinite: stop, skip that step on all workers, or ignore it",
        str,
        "stop",
        among=("stop", "skip", "ignore"),
    )
    compare_weights: bool = _setting(
        "before each checkpoint compare the workers' weights, and go back to the last one if they differ",
        bool,
        True,
    )
    compare_data: bool = _setting(
        "compare the first examples of the workers, and end training if they differ; not of train(part)",
        bool,
        True,
    )
    monitor: str = _setting(
        "metric that patience and keep_best go by: of the training (loss, accuracy) or of held-out examples "
        "(val_loss, val_accuracy)",
        str,
        "val_loss",
    )
    mode: str = _setting(
        "whether smaller (min) or larger (max) values of monitor are better; of Keras's metrics auto knows",
        str,
        "auto",
        among=("auto", "min", "max"),
    )
    patience: int | None = _setting(
        "so many values of monitor without an improvement end the training", int, least=1
    )
    min_delta: float = _setting(
        "what a value of monitor has to be better by to be an improvement", float, 0.0, least=0
    )
    keep_best: bool = _setting(
        "keep the best checkpoint by monitor, and hand over that one instead of the last", bool, False
    )
    initial_weights: str | None = _setting(
        "a .keras or .weights.h5 file to begin with, in every replica", str
    )
    output: str | None = _setting(
        "folder for all that is written, ./output/<script> by default; in a job it is the job's", str
    )
    resume: bool = _setting(
        "go on with the training that the output holds; else take a new folder beside it", bool, True
    )
    resume_data: str = _setting(
        "after a restart read again all that the order of the data needs (exact), or at most the epoch under "
        "way (epoch): then its rows are others than without the restart",
        str,
        "exact",
        among=("exact", "epoch"),
    )

    @classmethod
    def from_command_line(
        cls,
        arguments: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> Recipe:
        """Read this process's environment and arguments; `--help` lists all settings and ends the process.

        Args:
            arguments: used instead of the process's own.
            env: used instead of the process's own.
            settings: defaults for settings that neither `env` nor `arguments` contains.

        Raises:
            SystemExit: an argument or a setting doesn't exist, or a value has the wrong type.
        """
        parser = _Parser(description="Train. Every setting can also be given by the environment.")
        try:
            cls.add_arguments(parser, env, **settings)
        except InvalidConfiguration as error:
            parser.error(str(error))
        if arguments is None and is_kernel(sys.argv[0]):
            arguments = ()  # the arguments are those of a notebook's kernel
        return cls.from_arguments(parser.parse_args(arguments))

    @classmethod
    def add_arguments(
        cls, parser: argparse.ArgumentParser, env: Mapping[str, str] | None = None, **settings: Any
    ) -> None:
        """Add the settings to the script's own parser; `from_arguments` builds the recipe from its result.

        Raises:
            InvalidConfiguration: a setting doesn't exist, or a variable's value has the wrong type.
        """
        known = recipe_of(None, settings)
        variables = os.environ if env is None else env
        group = parser.add_argument_group("recipe")
        for field in dataclasses.fields(cls):
            _add(group, field, from_environment(field.name, variables, getattr(known, field.name)))

    @classmethod
    def from_arguments(cls, parsed: argparse.Namespace) -> Recipe:
        """Return the recipe from the result of a parser that `add_arguments` has extended."""
        return cls(**{field.name: getattr(parsed, field.name) for field in dataclasses.fields(cls)})


def recipe_of(recipe: Recipe | None, settings: Mapping[str, Any]) -> Recipe:
    """Return a recipe with some settings replaced; raises InvalidConfiguration if one doesn't exist."""
    names = [field.name for field in dataclasses.fields(Recipe)]
    for name in settings:
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            raise InvalidConfiguration(
                f"there is no setting {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")
            )
    return dataclasses.replace(recipe or Recipe(), **settings)


def check(recipe: Recipe) -> None:
    """Check the values before anything is loaded; raises InvalidConfiguration, which names the setting."""
    if (recipe.epochs is None) == (recipe.steps is None):
        raise InvalidConfiguration("give either epochs=... or steps=..., and not both")
    if recipe.global_batch is None:
        raise InvalidConfiguration("global_batch: must be given, a number of at least 1")
    for field in dataclasses.fields(recipe):
        _check_value(field, getattr(recipe, field.name))


def from_environment(name: str, env: Mapping[str, str], otherwise: Any) -> Any:
    """Return a setting's value from the environment, or `otherwise` if its variable is not set.

    Raises InvalidConfiguration if the value has the wrong type.
    """
    text = env.get(variable_of(name))
    return otherwise if text is None else _parse(variable_of(name), text)


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return SETTING + name.upper()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(int(ExitCode.INVALID_CONFIGURATION), f"trainjob: InvalidConfiguration: {message}\n")


def _add(group: Any, field: dataclasses.Field[Any], default: Any) -> None:
    flag, kind = "--" + field.name.replace("_", "-"), field.metadata["kind"]
    shown = "" if default is None else f" (here: {default})"
    about = {"default": default, "help": f"{field.metadata['help']}{shown} [{variable_of(field.name)}]"}
    if kind is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, **about)
    else:
        group.add_argument(flag, type=kind, metavar=kind.__name__.upper(), **about)


def _parse(variable: str, text: str) -> Any:
    field = next(one for one in dataclasses.fields(Recipe) if variable_of(one.name) == variable)
    kind = field.metadata["kind"]
    if kind is bool:
        if text.lower() in _TRUE + _FALSE:
            return text.lower() in _TRUE
        raise InvalidConfiguration(f"{variable}: must be true or false, got {text!r}")
    among = field.metadata["among"]
    if among and text not in among:
        raise InvalidConfiguration(f"{variable}: must be one of {', '.join(map(repr, among))}, got {text!r}")
    try:
        return kind(text)
    except ValueError:
        raise InvalidConfiguration(f"{variable}: must be a number, got {text!r}") from None


def _check_value(field: dataclasses.Field[Any], value: Any) -> None:
    kind, least = field.metadata["kind"], field.metadata["least"]
    if value is None and field.default is None:
        return
    accepted = (int, float) if kind is float else kind
    is_kind = isinstance(value, accepted) and not (isinstance(value, bool) and kind is not bool)
    if least is not None and not (is_kind and value >= least):
        raise InvalidConfiguration(f"{field.name}: must be a number of at least {least}, got {value!r}")
    if not is_kind:
        wanted = {bool: "True or False", str: "a text", int: "a whole number"}.get(kind, "a number")
        raise InvalidConfiguration(f"{field.name}: must be {wanted}, got {value!r}")
    among = field.metadata["among"]
    if among and value not in among:
        choice = ", ".join(repr(one) for one in among)
        raise InvalidConfiguration(f"{field.name}: must be one of {choice}, got {value!r}")


# The training plan, in steps.


_CHECKPOINTS_OF_ENDLESS_DATA = 10


@dataclass(frozen=True)
class TrainingPlan:
    """A training in steps.

    Attributes:
        epoch_steps: full batches in one pass over the data, or None when the data is endless.
        checkpoint_every: steps between checkpoints.
        global_batch: examples a step, over all workers.
        patience: values without an improvement that end the training, or None.
        keep_best: whether the best checkpoint is handed over.
    """

    total_steps: int
    epoch_steps: int | None
    checkpoint_every: int
    global_batch: int
    patience: int | None = None
    keep_best: bool = False

    @property
    def numbers(self) -> Mapping[str, int]:
        """All values as integers by name, for the workers to compare."""
        return {
            "steps": self.total_steps,
            "steps an epoch": self.epoch_steps or 0,
            "steps between checkpoints": self.checkpoint_every,
            "examples a step": self.global_batch,
            "values without an improvement": self.patience or 0,
            "best checkpoints to keep": int(self.keep_best),
        }

    @property
    def total_epochs(self) -> int | None:
        """Passes over the data, the last one possibly partial; None for endless data."""
        return -(-self.total_steps // self.epoch_steps) if self.epoch_steps else None

    def epoch_at(self, step: int) -> int | None:
        """The current epoch after `step` steps, from 1; None for endless data."""
        if not self.epoch_steps:
            return None
        return min(step // self.epoch_steps + 1, self.total_epochs or 1)

    def is_epoch_end(self, step: int) -> bool:
        """Whether an epoch ends after `step` steps; the last one ends with the training."""
        return step == self.total_steps or step % (self.epoch_steps or step + 1) == 0

    def epochs_done(self, step: int) -> int:
        """Whole epochs in `step` steps."""
        return step // self.epoch_steps if self.epoch_steps else 0


def batch_of_a_device(global_batch: int, devices: int) -> int:
    """Return how many examples of a global batch each training device takes.

    Raises InvalidConfiguration unless `devices` divides it: unequal shares would weigh examples unequally.
    """
    if global_batch % devices:
        below = global_batch - global_batch % devices
        choice = f"{below} or {below + devices}" if below else str(devices)
        raise InvalidConfiguration(
            f"global_batch: {global_batch} examples can't be shared evenly by {devices} workers or devices; "
            f"use {choice}"
        )
    return global_batch // devices


def build_plan(
    *,
    examples: int | None,
    epochs: int | None,
    steps: int | None,
    global_batch: int,
    checkpoint_every: int | None,
    patience: int | None = None,
    keep_best: bool = False,
) -> TrainingPlan:
    """Return the plan in steps. An epoch is as many full batches as the data holds, at least one.

    Raises InvalidConfiguration if `epochs` is given for endless data.
    """
    epoch_steps = None if examples is None else max(1, examples // global_batch)
    if epochs is not None and epoch_steps is None:
        raise InvalidConfiguration(
            "epochs: train() is endless, so there are no epochs; give steps=... instead"
        )
    total = steps if steps is not None else (epochs or 1) * (epoch_steps or 1)
    every = checkpoint_every or epoch_steps or max(1, total // _CHECKPOINTS_OF_ENDLESS_DATA)
    return TrainingPlan(total, epoch_steps, every, global_batch, patience, keep_best)
