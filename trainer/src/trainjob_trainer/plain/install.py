"""Changes to modules of TensorFlow and Keras, made right after their import.

Each change is made once, and is safe in a script that uses the library explicitly.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType


def prepare(module: ModuleType) -> None:
    """Prepare a module that the import hook waits for; leave any other module alone."""
    preparation = PREPARATIONS.get(module.__name__)
    if preparation is not None:
        preparation(module)


def prepare_loaded() -> None:
    """Prepare the modules that are already imported, since the environment has changed."""
    for name in PREPARATIONS:
        module = sys.modules.get(name)
        if module is not None:
            prepare(module)


def prepare_fit() -> None:
    """Prepare only Keras's `fit` and what its callbacks save, for a process that is set up in another way."""
    for name in ("keras.src.backend.tensorflow.trainer", "keras.src.saving.saving_api"):
        prepare(importlib.import_module(name))


def _tensorflow_context(module: ModuleType) -> None:
    from trainjob_trainer.plain.process import install_hook  # noqa: PLC0415 - only when it is used
    from trainjob_trainer.plain.strategy import build_before_first_operation  # noqa: PLC0415
    from trainjob_trainer.reporting.machine import keep_freed_memory  # noqa: PLC0415

    install_hook()
    os.environ.setdefault("NCCL_DEBUG", "WARN")
    # Several processes share a laptop's GPU: TensorFlow would reserve all of it for the first one.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    build_before_first_operation(module)
    keep_freed_memory()


def _strategy(module: ModuleType) -> None:
    from trainjob_trainer.plain.strategy import prepare_strategy  # noqa: PLC0415

    prepare_strategy(module)


def _mirrored_strategy(module: ModuleType) -> None:
    from trainjob_trainer.plain.strategy import prepare_mirrored  # noqa: PLC0415

    prepare_mirrored(module)


def _keras_backend(module: ModuleType) -> None:
    from trainjob_trainer.plain.fit import refuse_other_backend  # noqa: PLC0415

    refuse_other_backend(module)


def _keras_trainer(module: ModuleType) -> None:
    from trainjob_trainer.plain.batches import share_batches  # noqa: PLC0415
    from trainjob_trainer.plain.calls import take_many_batches  # noqa: PLC0415
    from trainjob_trainer.plain.fit import manage_fit  # noqa: PLC0415
    from trainjob_trainer.plain.keras_repair import repair_keras  # noqa: PLC0415

    repair_keras(module)
    share_batches(module)
    take_many_batches(module)
    manage_fit(module)


def _keras_saving(module: ModuleType) -> None:
    from trainjob_trainer.plain.writers import redirect_saving  # noqa: PLC0415

    redirect_saving(module, "save_model", "save_weights")


def _keras_model(module: ModuleType) -> None:
    from trainjob_trainer.plain.writers import redirect_saving  # noqa: PLC0415

    redirect_saving(module.Model, "export")


def _legacy_keras(module: ModuleType) -> None:
    from trainjob_trainer.plain.fit import refuse_legacy_fit  # noqa: PLC0415

    refuse_legacy_fit(module)


def _horovod(module: ModuleType) -> None:
    from trainjob_trainer.plain.horovod import guard_init  # noqa: PLC0415

    guard_init(module)


PREPARATIONS: Mapping[str, Callable[[ModuleType], None]] = {
    "tensorflow.python.eager.context": _tensorflow_context,
    "tensorflow.python.distribute.collective_all_reduce_strategy": _strategy,
    "tensorflow.python.distribute.mirrored_strategy": _mirrored_strategy,
    "keras.src.backend.config": _keras_backend,
    "keras.src.backend.tensorflow.trainer": _keras_trainer,
    "keras.src.saving.saving_api": _keras_saving,
    "keras.src.models.model": _keras_model,
    "tf_keras.src.engine.training": _legacy_keras,
    "horovod.common.basics": _horovod,
}
"""By module name; `bootstrap/trainjob_import_hook.py` waits for the same modules (a test compares them)."""
