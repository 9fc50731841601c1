"""The trained model as files that need nothing of this package: Keras's own form, and a SavedModel."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainjob_trainer.checkpoint.files import Files
from trainjob_trainer.checkpoint.snapshot import HostGroups, assign
from trainjob_trainer.engine.model_state import variable_groups
from trainjob_trainer.errors import CheckpointMismatch, first_line
from trainjob_trainer.replica import Replica
from trainjob_trainer.reporting.lines import announce

FOLDER = "model"
KERAS_FILE = "model.keras"
SAVED_MODEL = "saved_model"

Build = Callable[[], Any]
"""Builds the compiled Keras model, with its optimizer's variables, outside of any strategy."""


def export_model(replica: Replica, build: Build, trained: HostGroups) -> None:
    """Write `<output>/model` with the final weights; the writer alone does.

    The model is built once more: saving one whose variables are spread over workers would need all of them.
    What this model can't be written as is told and left out; its weights are in the final checkpoint.

    Args:
        replica: the writer.
        build: makes a model like the trained one.
        trained: the final snapshot.

    Raises:
        OutputFull, OutputUnwritable, Fenced, OutputTaken: the folder can't be written.
    """
    with tf.device("CPU:0"):  # a GPU may have no room for a second one
        model = build()
        _assign(model, trained)
    folder = replica.environment.output_dir / FOLDER
    replica.store.publish(folder, lambda place: _fill(place, model))
    written = [path.name for path in (folder / KERAS_FILE, folder / SAVED_MODEL) if path.exists()]
    if written:
        announce(f"the model is in {folder}: {' and '.join(written)}")


def _assign(model: Any, trained: HostGroups) -> None:
    try:
        assign(variable_groups(model), trained)
    except CheckpointMismatch:  # the recipe gave the optimizer another learning rate
        assign({"model": model.variables}, trained)


def _fill(folder: Path, model: Any) -> None:
    _write(folder / KERAS_FILE, model.save)
    _write(folder / SAVED_MODEL, lambda path: model.export(path, verbose=False))


def _write(path: Path, write: Callable[[Path], None]) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Keras's and NumPy's matter, not the user's
            write(path)
    except (OSError, tf.errors.OpError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever a layer of the user's may raise
        Files().remove(path)  # what there is of it
        why = first_line(error)
        announce(f"the model can't be written as {path.name}: {why}")
