"""Changes to modules of TensorFlow and Keras, made right after their import.

Each change is made once, and is safe in a script that uses the library explicitly.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

PREPARATIONS = {
    "tensorflow.python.eager.context": ("process.install_hook", "strategy.build_before_first_operation"),
    "tensorflow.python.distribute.collective_all_reduce_strategy": ("strategy.prepare_strategy",),
    "tensorflow.python.distribute.mirrored_strategy": ("strategy.prepare_mirrored",),
    "tensorflow.python.ops.gen_dataset_ops": ("process.refuse_disorder",),
    "tensorflow.python.ops.gen_experimental_dataset_ops": ("process.refuse_disorder",),
    "keras.src.backend.config": ("fit.refuse_other_backend",),
    "keras.src.backend.tensorflow.trainer": (
        "keras_repair.repair_keras",
        "batches.share_batches",
        "calls.take_many_batches",
        "fit.manage_fit",
    ),
    "keras.src.saving.saving_api": ("writers.redirect_saving",),
    "keras.src.models.model": ("writers.redirect_export",),
    "tf_keras.src.engine.training": ("fit.refuse_legacy_fit",),
    "horovod.common.basics": ("horovod.guard_init",),
}
"""Functions beside this module, which take a module of this name after its import.

`bootstrap/trainjob_import_hook.py` waits for the same modules (a test compares them).
"""


def prepare(module: ModuleType) -> None:
    """Prepare a module that the import hook waits for; leave any other module alone."""
    for path in PREPARATIONS.get(module.__name__, ()):
        owner, _, name = path.partition(".")
        getattr(importlib.import_module(f"{__package__}.{owner}"), name)(module)


def prepare_loaded() -> None:
    """Prepare the modules that are already imported, since the environment has changed."""
    for name in PREPARATIONS:
        if name in sys.modules:
            prepare(sys.modules[name])


def prepare_fit() -> None:
    """Prepare only Keras's `fit` and what its callbacks save, for a process that is set up in another way."""
    for name in ("keras.src.backend.tensorflow.trainer", "keras.src.saving.saving_api"):
        prepare(importlib.import_module(name))
