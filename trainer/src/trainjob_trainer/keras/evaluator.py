"""`fit` in the evaluator: it scores checkpoints on its validation data, and never returns.

The code after `fit` in the script is for the training replicas, so the process ends instead.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NoReturn

import keras

from trainjob_trainer.checkpoint.store import Checkpoint
from trainjob_trainer.evaluation import Scoring, evaluate_checkpoints, wait_for_training
from trainjob_trainer.identity import Identity, find_site, key_of
from trainjob_trainer.keras.metrics import scalars
from trainjob_trainer.keras.model import variable_groups
from trainjob_trainer.keras.restoring import data_of
from trainjob_trainer.keras.strategy import end_evaluator
from trainjob_trainer.reporting.progress import notice
from trainjob_trainer.session import Session

_ARRAYS = ("x", "y", "sample_weight")


def follow_training(session: Session, model: Any, arguments: Mapping[str, Any]) -> NoReturn:
    """Evaluate each new checkpoint of the job, including the final one, and end the process with code 0.

    The data is what `fit` itself would pass to `evaluate`.
    """
    validation = arguments["validation_data"]
    if validation is None and arguments["validation_split"]:
        slicing = importlib.import_module("keras.src.trainers.data_adapters.array_slicing")
        _, validation = slicing.train_validation_split(
            tuple(arguments[name] for name in _ARRAYS), validation_split=arguments["validation_split"]
        )
    if validation is None:
        notice(
            "fit() has neither validation_data nor validation_split: the evaluator has nothing to score, and "
            "ends. Pass validation_data=..., or leave the evaluator out with `evaluator: {replicas: 0}`"
        )
        end_evaluator(session)
    told = {
        **dict(zip(_ARRAYS, keras.utils.unpack_x_y_sample_weight(validation))),
        "batch_size": arguments["validation_batch_size"] or arguments["batch_size"],
        "steps": arguments["validation_steps"],
        "callbacks": [Scoring(session.progress)],
    }
    if not model.built:
        model.evaluate(**{**told, "steps": 1}, verbose=0)
    site, trainings = find_site(), session.trainings
    call = Identity(*key_of(site, model), particulars={**site.variables, **data_of(arguments)})
    store = trainings.store(wait_for_training(trainings, call))

    def score(checkpoint: Checkpoint) -> Mapping[str, float]:
        store.load(checkpoint, variable_groups(model, with_optimizer=False))
        return scalars(model.evaluate(**told, verbose=0, return_dict=True))

    evaluate_checkpoints(session, store, score)
    end_evaluator(session)
