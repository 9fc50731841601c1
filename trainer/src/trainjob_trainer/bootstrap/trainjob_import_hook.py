"""Notices the import of a few modules, and has `trainjob_trainer.plain` prepare them right after.

Only what the interpreter has loaded by itself is used until one of them is imported.
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
"""Their imports draw no random numbers from the script's: a warm standby has imported them before. Garbage is
not collected meanwhile: there is next to none, and looking for it takes a tenth of the time. Nor is it looked
for among what has been imported later on, which takes 0.2 s and more each time."""
LAZY = {"keras.wrappers"}
"""Imported with Keras, used by few: scikit-learn, where there is one, would be loaded for it each time."""
PREPARED = {
    "tensorflow.python.eager.context",
    "tensorflow.python.distribute.collective_all_reduce_strategy",
    "keras.src.backend.tensorflow.trainer",
    "keras.src.saving.saving_api",
    "keras.src.models.model",
    "tf_keras.src.engine.training",
}


def install(root: str) -> None:
    """Watch imports from now on; `root` is the folder (or zip) that holds the library.

    It gets no place on sys.path: whatever else lies there must not come before the user's packages.
    """
    # TensorFlow's C++ side tells every step of its start-up otherwise; warnings are still shown.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    sys.meta_path.insert(0, _Finder(root))  # type: ignore[arg-type,unused-ignore]


def job_seed() -> int:
    """The same number as `trainjob_trainer.plain.process.job_seed`, without loading the library."""
    import zlib

    return zlib.crc32(os.environ.get("TRAINJOB_NAME", "").encode())


def renew() -> None:
    """Do again what depends on the environment: it has changed since the modules were imported."""
    for name in _seeded:
        sys.modules[name].seed(job_seed())
    process: Any = sys.modules.get(f"{LIBRARY}.plain.process")
    if process is not None:
        from trainjob_trainer.plain.install import prepare_loaded

        process.forget_environment()
        prepare_loaded()


_seeded: list[str] = []


class _Finder:
    """Finds the library, and wraps the loaders of the modules that are waited for."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._awaited = SEEDED | PREPARED | UNDISTURBED | LAZY

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
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
    """Another loader, followed by the preparation of the module."""

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
        pauses = states is not None and gc.isenabled()
        if pauses:
            gc.disable()
        try:
            self._loader.exec_module(module)
        finally:
            if pauses:
                gc.freeze()
                gc.enable()
        try:
            if states is not None:
                _restore_random_states(states)
            else:
                _prepare(module)
        except Exception as error:
            print(f"trainjob: the script runs without help: {type(error).__name__}: {error}", file=sys.stderr)


class _LazyLoader(_Loader):
    """Another loader that waits until something of the module is asked for.

    importlib's own doesn't wait when somebody looks for the module's file, and `inspect` does so for every
    module that there is.
    """

    def create_module(self, spec: Any) -> Any:
        def first_asked(module: ModuleType, name: str) -> Any:
            return self._load(module, name)

        return type("LazyModule", (type(sys),), {"__getattr__": first_asked})(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Wait until something is asked for."""

    def _load(self, module: ModuleType, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        module.__class__ = type(sys)
        self._loader.exec_module(module)
        return getattr(module, name)


def _random_states() -> dict[str, Any]:
    states: dict[str, Any] = {}
    for name in _seeded:
        module = sys.modules[name]
        states[name] = module.getstate() if name == "random" else module.get_state()
    return states


def _restore_random_states(states: dict[str, Any]) -> None:
    """As before the import; of generators that came with it, as they are at first."""
    for name in _seeded:
        module = sys.modules[name]
        if name not in states:
            module.seed(job_seed())
        elif name == "random":
            module.setstate(states[name])
        else:
            module.set_state(states[name])


def _prepare(module: Any) -> None:
    if module.__name__ in SEEDED:
        module.seed(job_seed())
        _seeded.append(module.__name__)
        return
    from trainjob_trainer.plain.install import prepare

    prepare(module)
