"""What the trainer replaces in TensorFlow, Keras and Horovod, in one table.

A job's import hook (`bootstrap/trainjob_import_hook.py`) makes each replacement right after the import of its
module; `TRAIN_WITHOUT=name,name` leaves rows out. Importing this module imports nothing of TensorFlow's.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from trainjob_trainer.environment import is_without
from trainjob_trainer.reporting.progress import announce

_TRAINER = "keras.src.backend.tensorflow.trainer"
_KERAS = "https://github.com/keras-team/keras/issues/"


@dataclass(frozen=True)
class Patch:
    """One row.

    Attributes:
        name: by which TRAIN_WITHOUT leaves it out.
        targets: what is replaced.
        mends: what is wrong or missing without it.
        functions: of this package, by the module that each takes after its import.
        upstream: the issue where it is reported; empty where it is a job's matter, and no fault.
        fault: by module, a regular expression that shows the fault in the installed source.
        depends_on_job: it runs again when the environment has become a job's; the others run once.
    """

    name: str
    targets: str
    mends: str
    functions: Mapping[str, str]
    upstream: str = ""
    fault: Mapping[str, str] = field(default_factory=dict)
    depends_on_job: bool = False

    def is_needed(self) -> bool | None:
        """Return whether the installed source shows the fault; None if there is none to look for."""
        for module, pattern in self.fault.items():
            spec = importlib.util.find_spec(module.partition(".")[0])
            if spec is None or spec.origin is None:
                return None
            source = Path(spec.origin).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
            if re.search(pattern, source.read_text()) is None:
                return False
        return True if self.fault else None


PATCHES = (
    Patch(
        "start",
        "sys.excepthook, SIGTERM, glibc's malloc",
        "an error ends a worker with a message and an exit code, and SIGTERM saves what has been reached",
        {"tensorflow.python.eager.context": "session.install_hook"},
        depends_on_job=True,
    ),
    Patch(
        "refusals",
        "tf_keras.Model.fit; keras.config.backend() is checked",
        "with another back end each worker would train a model of its own, and tf_keras would save nothing, "
        "without a warning",
        {
            "keras.src.backend.config": "keras.refusals.refuse_other_backend",
            "tf_keras.src.engine.training": "keras.refusals.refuse_legacy_fit",
        },
        depends_on_job=True,
    ),
    Patch(
        "strategy",
        "MultiWorkerMirroredStrategy and MirroredStrategy (constructors), Context.ensure_initialized, "
        "GradientTape.gradient; that strategy's creation of variables",
        "the job's workers train one model, whatever strategy a script names, and start from one seed; they "
        "wait for worker 0, and compare the values of many new variables at once",
        {
            "tensorflow.python.eager.context": "keras.strategy.build_before_first_operation",
            "tensorflow.python.distribute.collective_all_reduce_strategy": "keras.strategy.prepare_strategy",
            "tensorflow.python.distribute.mirrored_strategy": "keras.strategy.prepare_mirrored",
        },
    ),
    Patch(
        "numbers",
        "DistributedVariable.__float__, __int__",
        "float(model.optimizer.learning_rate) works under a strategy as without one",
        {"tensorflow.python.distribute.values": "keras.strategy.read_as_numbers"},
        fault={"tensorflow.python.distribute.values": r"class DistributedVariable(?![\s\S]*def __float__)"},
    ),
    Patch(
        "iterators",
        "OwnedMultiDeviceIterator.__init__",
        "a data set lives as long as its iterator: otherwise a thread reads freed memory, and the process "
        "crashes",
        {"tensorflow.python.data.ops.multi_device_iterator_ops": "keras.strategy.keep_datasets"},
        fault={
            "tensorflow.python.data.ops.multi_device_iterator_ops": (
                r"class OwnedMultiDeviceIterator(?![\s\S]*self\._dataset = dataset)"
            )
        },
    ),
    Patch(
        "order",
        "tf.data's operations with an argument `deterministic`",
        "workers read the same batches in the same order, also where a map says deterministic=False",
        {
            "tensorflow.python.ops.gen_dataset_ops": "session.refuse_disorder",
            "tensorflow.python.ops.gen_experimental_dataset_ops": "session.refuse_disorder",
        },
    ),
    Patch(
        "reduce",
        "keras.src.backend.tensorflow.trainer.reduce_per_replica",
        "Keras averages scalar metrics over an axis that they don't have, and joins the rows of predict() in "
        "another order than the workers have them in",
        {_TRAINER: "keras.trainer.repair_reduce"},
        upstream=f"{_KERAS}20585",
        fault={_TRAINER: r'strategy\.reduce\("MEAN", v, axis=0\)'},
    ),
    Patch(
        "losses",
        "scale_loss_for_distribution, unscale_loss_for_distribution, reduce_weighted_values, Loss.__call__, "
        "Mean.update_state, Variable.assign, Optimizer.apply and scale_loss, "
        "tf.nn.compute_average_loss, Strategy.num_replicas_in_sync",
        "losses, gradients and metrics count each row once, as in one process; Keras divides by the number "
        "of devices, also what a script's own loss or train_step has computed",
        {_TRAINER: "keras.shares.count_as_in_one_process"},
        fault={"keras.src.losses.loss": r"1\.0 / num_replicas|num_replicas_in_sync"},
    ),
    Patch(
        "fit",
        "TensorFlowTrainer, which is the base class of keras.Model, and TFEpochIterator",
        "fit() trains with several workers, many batches a call, on the rows of one process, resumes where "
        "an earlier attempt left it, and scores checkpoints in the evaluator",
        {_TRAINER: "keras.trainer.replace_classes", "keras.src.models.model": "keras.trainer.replace_base"},
        upstream=f"{_KERAS}20585",
        fault={_TRAINER: r"distribute_strategy\.reduce\("},
    ),
    Patch(
        "random",
        "keras.src.random.seed_generator.global_seed_generator; random and numpy.random are seeded",
        "all workers draw the same random numbers until a script sets a seed; the threads of devices share "
        "one state, which checkpoints hold, where Keras would create a variable within a step",
        {"keras.src.random.seed_generator": "keras.model.share_random_state"},
        fault={"keras.src.random.seed_generator": r"global_state\.get_global_attribute"},
    ),
    Patch(
        "saving",
        "save_model and save_weights of keras.src.saving.saving_api, Model.export, "
        "tf.profiler.experimental.start",
        "no two workers write the same file, and every worker reads back what it has saved; only worker 0 "
        "records a profile, since a profile in another worker sometimes ends its process",
        {
            "tensorflow.python.profiler.profiler_v2": "keras.strategy.record_in_worker_0",
            "keras.src.saving.saving_api": "keras.writers.redirect_saving",
            "keras.src.models.model": "keras.writers.redirect_saving",
        },
    ),
    Patch(
        "horovod",
        "HorovodBasics.init",
        "without a rank hvd.init() would train alone, without a warning",
        {"horovod.common.basics": "horovod.guard_init"},
    ),
)

AWAITED = {module for patch in PATCHES for module in patch.functions}
"""Modules after whose import something is to be done; the import hook has a copy (a test compares them)."""
_done: set[tuple[str, int]] = set()


def prepare(module: ModuleType) -> None:
    """Make what the table says of a module, once; raises what a module of another form causes."""
    for patch in PATCHES:
        path = patch.functions.get(module.__name__)
        key = (patch.name, id(module))
        is_left_out = is_without(patch.name, os.environ) or (key in _done and not patch.depends_on_job)
        if path is None or is_left_out or (_TRAINER in patch.functions and not _has_expected_form()):
            continue
        _done.add(key)
        owner, _, name = path.rpartition(".")
        getattr(importlib.import_module(f"trainjob_trainer.{owner}"), name)(module)


def prepare_loaded() -> None:
    """Prepare the modules that are imported already, before the process was known to train."""
    for name in AWAITED & sys.modules.keys():
        prepare(sys.modules[name])


def fit_class(trainer: Any) -> Any:
    """Return the class of Keras's trainer module that has `fit`; Keras 3.16 renames it."""
    return getattr(trainer, "TensorFlowTrainer", None) or trainer.Trainer


@functools.cache
def _has_expected_form() -> bool:
    """Return whether Keras's trainer has the functions that are replaced; if not, a line says what to do."""
    trainer: Any = sys.modules.get(_TRAINER)
    if trainer is None:  # another back end
        return False
    try:
        kind, epochs = fit_class(trainer), trainer.TFEpochIterator
        expected = {
            kind._maybe_symbolic_build: ["self", "iterator", "data_batch"],
            kind._make_function: ["self", "step_function"],
            kind._get_metrics_result_or_logs: ["self", "logs"],
            epochs._enumerate_iterator: ["self"],
            trainer.reduce_per_replica: ["values", "strategy", "reduction"],
        }
        is_expected = all(list(inspect.signature(one).parameters) == names for one, names in expected.items())
    except (AttributeError, TypeError, ValueError):
        is_expected = False
    if not is_expected:
        announce(
            "this version of Keras differs from those that this release repairs: with several workers `fit` "
            'may end in "ValueError: ... PerReplica". Install a tested version, or a newer trainjob'
        )
    return is_expected
