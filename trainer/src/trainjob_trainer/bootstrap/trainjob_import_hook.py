"""Import hook: `trainjob_trainer.patches` prepares a few modules right after their import.

Until one of them is imported, the hook uses only modules that the interpreter itself has loaded.
"""

# ruff: noqa: BLE001, PLC0415 - nothing may break the user's imports, or load anything before its time
from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

LIBRARY = "trainjob_trainer"
SEEDED = {"random", "numpy.random.mtrand"}
UNDISTURBED = {"tensorflow", "keras", "rich.style"}
"""Their imports leave the script's random numbers unchanged: a warm standby has imported them before. Garbage
collection pauses meanwhile: there is next to no garbage, and the search takes a tenth of the time. Later
collections skip what was imported, which saves 0.2 s and more each time."""
IMPORTING = {"tensorflow", "keras"}
"""Their imports take seconds, and are reported."""
LAZY = {"keras.wrappers"}
"""Imported with Keras, but rarely used: it would load scikit-learn, if installed, each time."""
PREPARED = {
    "tensorflow.python.eager.context",
    "tensorflow.python.distribute.collective_all_reduce_strategy",
    "tensorflow.python.distribute.mirrored_strategy",
    "tensorflow.python.distribute.values",
    "tensorflow.python.data.ops.multi_device_iterator_ops",
    "tensorflow.python.profiler.profiler_v2",
    "tensorflow.python.ops.gen_dataset_ops",
    "tensorflow.python.ops.gen_experimental_dataset_ops",
    "keras.src.backend.config",
    "keras.src.backend.tensorflow.trainer",
    "keras.src.random.seed_generator",
    "keras.src.saving.saving_api",
    "keras.src.models.model",
    "tf_keras.src.engine.training",
    "horovod.common.basics",
}
EXPLAINED = {"horovod.tensorflow"}
"""If their import fails, one sentence says what they need."""
RESOLVER = "tensorflow.python.distribute.cluster_resolver.tfconfig_cluster_resolver"


def install(root: str, *, is_scripts_own: bool = False) -> None:
    """Watch imports from now on; `root` is the folder (or zip) that holds the library.

    It is not added to sys.path: its other contents must not come before the user's packages. A process of the
    script's own only finds the library, and its strategies are of that process alone.
    """
    if is_scripts_own:
        sys.meta_path.insert(0, _Finder(root, {RESOLVER}))  # type: ignore[arg-type,unused-ignore]
        return
    # Otherwise TensorFlow's C++ code logs every step of its start; warnings are still shown.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    _started_with.update(os.environ)
    awaited = SEEDED | PREPARED | UNDISTURBED | LAZY | EXPLAINED
    sys.meta_path.insert(0, _Finder(root, awaited))  # type: ignore[arg-type,unused-ignore]


def job_seed() -> int:
    """Return the same number as `trainjob_trainer.session.job_seed`, without loading the library."""
    import zlib

    return zlib.crc32(os.environ.get("TRAINJOB_NAME", "").encode())


def renew() -> None:
    """Repeat what depends on the environment, which has changed since the modules were imported."""
    os.environ["TRAINJOB_PID"] = str(os.getpid())
    for one in _seeded:
        one.seed(job_seed())
    process: Any = sys.modules.get(f"{LIBRARY}.session")
    if process is not None:
        from trainjob_trainer.patches import prepare_loaded

        process.forget_environment()
        prepare_loaded()


_seeded: list[Any] = []
"""The modules in SEEDED, and what NumPy's unseeded generators take their seeds from."""
_started_with: dict[str, str] = {}


class _Finder:
    """Finds the library, and wraps the loaders of the awaited modules."""

    def __init__(self, root: str, awaited: set[str]) -> None:
        self._root = root
        self._awaited = awaited

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name == LIBRARY or name in IMPORTING:
            # The first process that imports one of them trains; those that it starts inherit the mark.
            os.environ.setdefault("TRAINJOB_PID", str(os.getpid()))
        if name == LIBRARY:
            finder: Any = next(one for one in sys.meta_path if getattr(one, "__name__", "") == "PathFinder")
            return finder.find_spec(name, [self._root])
        if name not in self._awaited:
            return None
        self._awaited.discard(name)
        for finder in list(sys.meta_path):
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _LazyLoader(spec.loader) if name in LAZY else _Loader(spec.loader)
                return spec
        return None


class _Loader:
    """Wraps another loader, and prepares the module after it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        states = _random_states() if module.__name__ in UNDISTURBED else None
        is_without = "garbage" in os.environ.get("TRAIN_WITHOUT", "")
        pauses = states is not None and gc.isenabled() and not is_without
        if module.__name__ in IMPORTING:
            _record_environment()
        reports = module.__name__ in IMPORTING and _report("importing", instead_of="running")
        if pauses:
            gc.disable()
        try:
            self._loader.exec_module(module)
        except Exception as error:
            if module.__name__ in EXPLAINED:
                from trainjob_trainer.horovod import explain_import

                raise explain_import(error) from error
            raise
        finally:
            if pauses:
                gc.freeze()
                gc.enable()
            if reports:
                _report("running", instead_of="importing")
        try:
            if states is not None:
                _restore_random_states(states)
            else:
                _prepare(module)
        except Exception as error:
            print(
                f"trainjob: the script runs without the trainer's help: {type(error).__name__}: {error}",
                file=sys.stderr,
            )


class _LazyLoader(_Loader):
    """Wraps another loader, and delays it until an attribute of the module is read.

    importlib's own lazy loader already loads the module when its `__file__` is read, and `inspect` reads that
    of every module.
    """

    def create_module(self, spec: Any) -> Any:
        def first_asked(module: ModuleType, name: str) -> Any:
            return self._load(module, name)

        return type("LazyModule", (type(sys),), {"__getattr__": first_asked})(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Load nothing: `_load` does so later."""

    def _load(self, module: ModuleType, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        module.__class__ = type(sys)
        self._loader.exec_module(module)
        return getattr(module, name)


def _record_environment() -> None:
    """Record what the script has changed in its environment before it imports TensorFlow, for a standby."""
    folder = os.environ.get("TRAINJOB_STATE_DIR")
    if not folder or "trainjob_standby" in sys.modules:
        return
    names = {*os.environ, *_started_with} - {"TRAINJOB_PID"}
    changed = {
        name: os.environ.get(name) for name in names if os.environ.get(name) != _started_with.get(name)
    }
    try:
        import json

        with open(os.path.join(folder, "environment.json"), "w", encoding="ascii") as file:  # noqa: PTH118, PTH123
            json.dump(changed, file)
    except OSError:
        return


def _report(state: str, *, instead_of: str) -> bool:
    """Report the state of this start if its report is absent or has the other state; return whether it was.

    Only this hook reports these two: the library's reports stay, and of nested imports the outermost counts.
    """
    path = os.environ.get("TRAINJOB_PROGRESS_FILE")
    if not path or "trainjob_standby" in sys.modules:  # a standby must not report for the process that trains
        return False
    try:
        import time

        with open(path, "a+", encoding="ascii") as file:  # noqa: PTH123 - pathlib is not loaded yet
            file.seek(0)
            known = file.read(64)
            if known and not known.startswith(f'{{"state": "{instead_of}"'):
                return False
            file.truncate(0)
            file.write(f'{{"state": "{state}", "time": {time.time()}, "pid": {os.getpid()}}}')
    except (OSError, ValueError):
        return False
    return True


def _random_states() -> list[Any]:
    return [(getattr(one, "getstate", None) or one.get_state)() for one in _seeded]


def _restore_random_states(states: list[Any]) -> None:
    """Restore the states from before the import; seed generators that were imported with it."""
    for one, state in zip(_seeded, states):
        (getattr(one, "setstate", None) or one.set_state)(state)
    for one in _seeded[len(states) :]:
        one.seed(job_seed())


def _seed_generators() -> list[Any]:
    """Give `default_rng()`, `RandomState()` and the like seeds from one sequence, and return what makes it.

    Other threads have a sequence of their own, since they draw at any time. Processes that the training
    process starts must draw other numbers than it does, and keep NumPy's way.
    """
    import random
    import threading

    module, main, pid = sys.modules["numpy.random.bit_generator"], threading.main_thread(), os.getpid()
    here, elsewhere, original = random.Random(), random.Random(), module.randbits  # noqa: S311

    def randbits(count: int) -> int:
        if os.environ.get("TRAINJOB_PID", str(pid)) != str(os.getpid()):
            return int(original(count))
        if threading.current_thread() is main:
            return here.getrandbits(count)
        return elsewhere.getrandbits(count) ^ 1  # another seed than the main thread's

    module.randbits = randbits  # type: ignore[attr-defined]
    return [here, elsewhere]


def _no_cluster() -> dict[str, Any]:
    """Return the TF_CONFIG of a process of the script's own, whose strategy asks for it; say so once."""
    sys.modules[RESOLVER]._load_tf_config = dict  # type: ignore[attr-defined]
    starter = os.environ["TRAINJOB_PID"]
    print(
        f"trainjob: process {os.getpid()} was started by the training process, {starter}: it is not part of "
        "the job, and its strategy is for this process alone",
        file=sys.stderr,
    )
    return {}


def _prepare(module: Any) -> None:
    if module.__name__ == RESOLVER:
        module._load_tf_config = _no_cluster
        return
    if module.__name__ in SEEDED:
        added = [module] if module.__name__ == "random" else [module, *_seed_generators()]
        for one in added:
            one.seed(job_seed())
        _seeded.extend(added)
        return
    from trainjob_trainer.patches import prepare

    prepare(module)
