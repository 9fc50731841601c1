"""What the trainer uses of Keras and TensorFlow that they don't promise: all of it, as it was when tried.

When a new release changes one of these, the test of that name fails and says which; the package would fail in
a training, or do less than it should, without a word.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras.src import backend
from keras.src.backend.tensorflow import trainer as keras_trainer
from keras.src.losses import loss as losses
from keras.src.random import seed_generator
from keras.src.saving import saving_api
from tensorflow.python.data.ops import multi_device_iterator_ops
from tensorflow.python.distribute import (
    collective_all_reduce_strategy,
    input_lib,
    mirrored_strategy,
    values,
)
from tensorflow.python.distribute.cluster_resolver import tfconfig_cluster_resolver
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager import context
from tensorflow.python.profiler import profiler_v2

import trainjob_trainer
from trainjob_trainer.patches import fit_class

LIBRARY = Path(trainjob_trainer.__file__).parent
Trainer = fit_class(keras_trainer)
Epochs = keras_trainer.TFEpochIterator
Backup = keras.callbacks.BackupAndRestore
LossScale = keras.optimizers.LossScaleOptimizer

FUNCTIONS: dict[str, tuple[Any, str]] = {
    "_aggregate_additional_loss": (Trainer, "(self, loss)"),
    "_autoconvert_optionals": (Trainer, "(self, step_func)"),
    "_common_apply": (LossScale, "(self, grads, trainable_variables=None)"),
    "_compute_loss": (
        keras.Model,
        "(self, x=None, y=None, y_pred=None, sample_weight=None, training=True)",
    ),
    "_create_variable": (mirrored_strategy.MirroredExtended, "(self, next_creator, **kwargs)"),
    "_distributed_tf_update_step": (
        keras.optimizers.Optimizer,
        "(self, distribution, grads_and_vars, learning_rate)",
    ),
    "_enumerate_iterator": (Epochs, "(self)"),
    "_flatten_layers": (keras.Model, "(self, include_self=True, recursive=True)"),
    "_get_file_path": (keras.callbacks.ModelCheckpoint, "(self, epoch, batch, logs)"),
    "_get_iterator": (Epochs, "(self)"),
    "_resolve_auto_jit_compile": (Trainer, "(self)"),
    "_get_metrics_result_or_logs": (Trainer, "(self, logs)"),
    "_get_variable_index": (keras.optimizers.Optimizer, "(self, variable)"),
    "_get_variable_creator_initial_value": (
        collective_all_reduce_strategy.CollectiveAllReduceExtended,
        "(self, replica_id, device, primary_var, **kwargs)",
    ),
    "_initialize": (backend.Variable, "(self, value)"),
    "_in_multi_worker_mode": (
        collective_all_reduce_strategy.CollectiveAllReduceExtended,
        "(self)",
    ),
    "_functions": (tf.data.Dataset, "(self)"),
    "_inputs": (tf.data.Dataset, "(self)"),
    "_interrupted_warning": (Epochs, "(self)"),
    "_load_model": (Backup, "(self)"),
    "_load_tf_config": (tfconfig_cluster_resolver, "()"),
    "_make_function": (Trainer, "(self, step_function)"),
    "_maybe_symbolic_build": (Trainer, "(self, iterator=None, data_batch=None)"),
    "_save_model": (Backup, "(self)"),
    "_symbolic_build": (keras.Model, "(self, iterator=None, data_batch=None)"),
    "_tf_apply": (LossScale, "(self, grads, trainable_variables=None)"),
    "_use_merge_call": (mirrored_strategy.MirroredExtended, "(self)"),
    "get_config_key_value": (context.Context, "(self, key, timeout_in_ms=0)"),
    "reduce_per_replica": (keras_trainer, "(values, strategy, reduction)"),
    "set_config_key_value": (context.Context, "(self, key, value)"),
}
NEWER = {"_autoconvert_optionals"}
"""Not in every Keras that is supported; the package asks whether it is there."""
ATTRIBUTES: dict[str, Any] = {
    "_batches_seen_since_last_saving": keras.callbacks.ModelCheckpoint,
    "_call_has_training_arg": keras.Layer,
    "_cluster": cluster_coordinator.ClusterCoordinator,
    "_component_specs": values.PerReplicaSpec,
    "_batch_size": tf.data.Dataset.range(1).batch(1),
    "_count": tf.data.Dataset.range(1).repeat(1),
    "_current_iterator": Epochs,
    "_dataset": keras.src.trainers.data_adapters.tf_dataset_adapter.TFDatasetAdapter,
    "_drop_remainder": tf.data.Dataset.range(1).batch(1),
    "_device_iterators": multi_device_iterator_ops.OwnedMultiDeviceIterator,
    "_direction": keras.metrics.MeanSquaredError,
    "_distribute_strategy": Trainer,
    "_distributed_dataset": Epochs,
    "_distribution_strategy": keras.optimizers.Optimizer,
    "_ema_weights_in_model": keras.callbacks.SwapEMAWeights,
    "_filenames": tf.data.TextLineDataset([]),
    "_first_batches": keras.src.trainers.data_adapters.generator_data_adapter.GeneratorDataAdapter,
    "_initial_epoch": keras.Model,
    "_initialized": context.Context,
    "_is_default": keras.callbacks.Callback.on_batch_end,
    "_iterations": keras.optimizers.Optimizer,
    "_last_batch_seen": keras.callbacks.ModelCheckpoint,
    "_learning_rate": keras.optimizers.Optimizer,
    "_loss_tracker": keras.Model,
    "_map_func": tf.data.Dataset.range(1).map(lambda one: one, num_parallel_calls=1),
    "_num_batches": keras.src.trainers.epoch_iterator.EpochIterator,
    "_num_workers": collective_all_reduce_strategy.CollectiveAllReduceExtended,
    "_options": input_lib.DistributedDatasetsFromFunction,
    "_primary": values.DistributedVariable,
    "_profiler": profiler_v2,
    "_reshuffle_each_iteration": tf.data.Dataset.range(1).shuffle(1),
    "_shuffle": keras.src.trainers.data_adapters.array_data_adapter.ArrayDataAdapter,
    "_steps_seen": keras.src.trainers.epoch_iterator.EpochIterator,
    "_stop_batch": keras.callbacks.TensorBoard,
    "_tensors": tf.data.Dataset.from_tensors(0),
    "_trainable_variables": keras.optimizers.Optimizer,
    "_type_spec": cluster_coordinator.RemoteValueImpl,
    "_unique_id": values.DistributedVariable,
    "_value": keras.Variable,
    "_weights_path": Backup,
}
"""Attributes of instances, by the class that assigns them, or an object that has them."""
OF_OURS = {
    "_exit",
    "_getframe",
    "_trainjob_bootstraps",
    "_trainjob_isolated",
    "_trainjob_kept",
    "_trainjob_managed",
}
"""Marks that the package leaves on others' objects; `os._exit` and `sys._getframe`, which are documented."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str) -> None:
    owner, signature = FUNCTIONS[name]
    if name in NEWER and not hasattr(owner, name):
        return
    function = getattr(owner, name)
    plain = inspect.signature(inspect.unwrap(function))
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in plain.parameters.values()]
    found = plain.replace(parameters=bare, return_annotation=inspect.Signature.empty)
    assert str(found) == signature, f"{function.__module__}.{function.__qualname__} has changed"


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attribute(name: str) -> None:
    owner = ATTRIBUTES[name]
    is_assigned = inspect.isclass(owner) and any(
        f"self.{name}" in inspect.getsource(kind) for kind in owner.__mro__ if kind is not object
    )
    assert is_assigned or hasattr(owner, name), f"{owner} has no {name} any more"


def test_what_has_no_underscore_and_may_not_be_imported_all_the_same() -> None:
    assert isinstance(seed_generator.global_seed_generator().state, keras.Variable)
    assert callable(saving_api.save_weights)
    assert callable(saving_api.load_weights)
    assert callable(losses.scale_loss_for_distribution)
    assert callable(backend.compute_output_spec)
    configured = inspect.signature(context.Context.configure_coordination_service).parameters
    assert "heartbeat_timeout_in_ms" in configured


def test_every_private_name_of_others_is_in_these_tables() -> None:
    files = [ast.parse(file.read_text()) for file in LIBRARY.rglob("*.py")]
    ours = {name for tree in files for name in _given(tree)}
    used = {name for tree in files for name in _asked_for(tree)}
    private = {name for name in used - ours if name.startswith("_") and not name.startswith("__")}
    assert private - OF_OURS - {"_"} - FUNCTIONS.keys() - ATTRIBUTES.keys() == set()


def _given(tree: ast.AST) -> Iterator[str]:
    """Names that a module defines, or assigns to `self`."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            yield node.attr


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _asked_for(tree: ast.AST) -> Iterator[str]:
    """Names that a module reads of anything, or names in a text of their own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            yield node.value
