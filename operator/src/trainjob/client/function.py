"""Packs a function with what it needs to run in another process: "Functions" in docs/contract.md."""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import io
import json
import linecache
import os
import pickle
import sys
import sysconfig
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import cloudpickle

from trainjob_trainer.contract.files import (
    FUNCTION,
    FUNCTION_FOLDER,
    FUNCTION_FORMAT,
    FUNCTION_HEADER,
    python_version,
)

COMMAND = ("python", "-m", "trainjob_trainer.function", f"{FUNCTION_FOLDER}/{FUNCTION_HEADER}")

LARGEST = 4 << 20
"""Bytes of a pickled function before compression."""
LARGEST_PACKED = 700_000
"""Bytes after compression: cloudpickle and the sources travel in the same 900 kB."""
LARGEST_SOURCE = 200_000
"""Characters of source text, for tracebacks; more is left out."""

_OURS = ("trainjob", "trainjob_trainer", "cloudpickle")
_INSTALLED = ("stdlib", "purelib", "platlib")
_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")


class CannotPack(ValueError):
    """A function can't travel to other processes; the message says what to write instead."""


def pack_function(
    function: Callable[..., Any], arguments: Mapping[str, Any], *, as_files: Collection[Path] = ()
) -> dict[str, bytes]:
    """Return the files of a function, by path in the job's code.

    Args:
        function: what every replica calls.
        arguments: by name.
        as_files: files and folders in the working directory, which becomes that of the replicas, that travel
            by themselves: their modules are imported. All other modules of the project travel by value.

    Raises:
        CannotPack: it can't be packed, or is too large.
    """
    if not callable(function):
        raise CannotPack(f"a {type(function).__qualname__} is no function")
    inner = getattr(function, "func", function)  # of functools.partial
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    if (module := getattr(inner, "__module__", None)) not in (None, "__main__"):
        name = f"{module}.{name}"
    if inspect.iscoroutinefunction(function):
        raise CannotPack(f"{name} is asynchronous: pass a plain function that calls asyncio.run")
    folder = Path.cwd().resolve()
    as_files = tuple(Path(path).resolve() for path in as_files)
    own = _own_modules(_find_root(function).resolve(), as_files)
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        payload, files = _pickle(function, arguments, name)
        identity = _identify(function, arguments)
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)
    sources = {file: "".join(linecache.getlines(file)) for file in sorted(files)}
    # Where Python finds what travels as files.
    entries = [Path(entry or ".").resolve() for entry in sys.path]
    found = [entry for entry in entries if any(file.is_relative_to(entry) for file in as_files)]
    header = {
        "format": FUNCTION_FORMAT,
        "python": python_version(),
        "cloudpickle": cloudpickle.__version__,
        "sha256": hashlib.sha256(payload).hexdigest(),
        "entry": name,
        "identity": identity,
        "path": [entry.relative_to(folder).as_posix() for entry in found if folder in entry.parents],
        "sources": {file: text for file, text in sources.items() if 0 < len(text) <= LARGEST_SOURCE},
    }
    parts = sorted(Path(cloudpickle.__file__).parent.glob("*.py"))
    return {
        f"{FUNCTION_FOLDER}/{FUNCTION_HEADER}": json.dumps(header, indent=1).encode(),
        f"{FUNCTION_FOLDER}/{FUNCTION}": payload,
        **{f"{FUNCTION_FOLDER}/cloudpickle/{path.name}": path.read_bytes() for path in parts},
    }


def _find_root(function: Callable[..., Any]) -> Path:
    """Return the folder of the function's project; that of a notebook is found from the working directory."""
    code = getattr(inspect.unwrap(getattr(function, "func", function)), "__code__", None)
    file = Path(code.co_filename) if code is not None else Path()
    # A notebook's cells have file names in a temporary folder.
    is_module = getattr(function, "__module__", "__main__") != "__main__" and file.is_file()
    start = file.parent.resolve() if is_module else Path.cwd()
    folders = (start, *start.parents)
    return next((each for each in folders if any((each / mark).exists() for mark in _MARKS)), start)


def _own_modules(root: Path, as_files: Collection[Path]) -> list[ModuleType]:
    """Return the project's modules that travel by value: none that is installed or travels as a file."""
    others = [*as_files, *(Path(sysconfig.get_path(kind)).resolve() for kind in _INSTALLED)]
    already = cloudpickle.list_registry_pickle_by_value()

    def is_own(name: str) -> bool:
        path = Path(name).resolve()
        if not path.is_relative_to(root) or {"site-packages", "dist-packages"}.intersection(path.parts):
            return False
        return not any(path.is_relative_to(other) for other in others)

    # Of thousands of modules, as TensorFlow has, most lie in few folders: each folder is looked at once.
    is_own_folder, own = cache(is_own), list[ModuleType]()
    for module in list(sys.modules.values()):
        name, file = getattr(module, "__name__", ""), getattr(module, "__file__", None)
        if not isinstance(module, ModuleType) or sys.modules.get(name) is not module or name in already:
            continue
        if not file or name.split(".")[0] in (*_OURS, "__main__"):
            continue
        if is_own_folder(os.path.dirname(file)) and is_own(file):  # noqa: PTH120 - ten times as fast
            own.append(module)
    return own


_DATASET = (
    "a tf.data data set can't be sent with a job: create it inside the function, from files or arrays that "
    "each replica can read"
)
_STRATEGY = (
    "a strategy can't be sent with a job: create it inside the function, as its first line; "
    "train_and_evaluate needs none"
)
_REFUSED = {
    ("tensorflow.python.data.", "DatasetV2"): _DATASET,
    ("tensorflow.python.data.", "OwnedIterator"): _DATASET,
    ("tensorflow.python.distribute.", "DistributedDatasetInterface"): _DATASET,
    ("tensorflow.python.distribute.", "StrategyBase"): _STRATEGY,
}
"""By module and name of a class or one of its base classes: TensorFlow is not imported for this."""


class _TooLarge(CannotPack):
    """More bytes than a function may have."""


class _Limited(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > LARGEST:
            raise _TooLarge(f"more than {LARGEST >> 20} MB")
        return super().write(data)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Cloudpickle's pickler, with refusals; collects the files of the functions that travel by value."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.files: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        """Return how to pickle an object."""
        for base in type(obj).__mro__:
            for (module, name), words in _REFUSED.items():
                if base.__name__ == name and base.__module__.startswith(module):
                    raise CannotPack(words)
        reduced = super().reducer_override(obj)
        if isinstance(obj, FunctionType) and reduced is not NotImplemented:
            self.files.add(obj.__code__.co_filename)
        return reduced


def _pickle(function: Callable[..., Any], arguments: Mapping[str, Any], name: str) -> tuple[bytes, set[str]]:
    file = _Limited()
    pickler = _Pickler(file)
    try:
        pickler.dump((function, dict(arguments)))
        if len(zlib.compress(file.getvalue())) > LARGEST_PACKED:
            raise _TooLarge(f"more than {LARGEST_PACKED:,} bytes when compressed")
    except _TooLarge as large:
        _, largest = _blame(function, arguments)
        used = f"; it uses {largest}" if largest else ""
        raise CannotPack(
            f"{name} is too large to send with a job ({large}){used}: load such data inside the function, "
            "from files that each replica can read (a volume, a package)"
        ) from None
    except CannotPack as refused:
        culprit, _ = _blame(function, arguments)
        raise CannotPack(f"{name}{culprit and f' uses {culprit}'}: {refused}") from None
    except (TypeError, AttributeError, ValueError, RuntimeError, pickle.PicklingError) as error:
        culprit, _ = _blame(function, arguments)
        problem = f"{name}{culprit and f' uses {culprit}'}: {error}: create it inside the function instead"
        raise CannotPack(problem) from error
    return file.getvalue(), pickler.files


def _blame(function: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[str, str]:
    """Return the first value that can't be pickled, and the largest other one: `'x' (in f), a list`."""
    culprit, sizes = "", [(0, "")]
    for where, value in _values(function, arguments):
        file, what = _Limited(), f"{where}, a {type(value).__qualname__}"
        try:
            _Pickler(file).dump(value)
            sizes.append((len(file.getvalue()), what))
        except _TooLarge:
            sizes.append((LARGEST, what))
        except Exception:  # noqa: BLE001 - classes may raise anything
            culprit = culprit or what
    return culprit, max(sizes)[1]


def _values(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the values that travel with a function, each with its name and that of its user."""
    yield from ((f"the argument {name!r}", value) for name, value in arguments.items())
    waiting: list[Any] = [inspect.unwrap(getattr(function, "func", function))]
    seen = {id(waiting[0])}
    while waiting:
        user = waiting.pop(0)
        for name, value in _used_by(user):
            if id(value) in seen:
                continue
            seen.add(id(value))
            travels = isinstance(value, FunctionType | ModuleType | type) and not _is_imported(value)
            if travels:
                waiting.append(value)
            elif not isinstance(value, FunctionType | ModuleType | type):
                yield f"{name!r} (in {getattr(user, '__qualname__', user.__name__)})", value


def _is_imported(value: Any) -> bool:
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "__main__")
    registered = cloudpickle.list_registry_pickle_by_value()
    own = any(module == name or str(module).startswith(f"{name}.") for name in registered)
    return module != "__main__" and not own and module in sys.modules


def _used_by(user: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(user, ModuleType | type):
        for name, value in vars(user).items():
            is_special = name.startswith("__") and not isinstance(value, (FunctionType, *_PARTS))
            if not is_special and not isinstance(value, MemberDescriptorType) and name != "_abc_impl":
                yield name, value
        return
    code = getattr(user, "__code__", None)
    if code is None:
        return
    for name, cell in zip(code.co_freevars, user.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    scope = user.__globals__
    yield from ((name, scope[name]) for name in dict.fromkeys(_names(code)) if name in scope)


def _names(code: CodeType) -> Iterator[str]:
    """Yield the global names that code uses; `co_names` has those of attributes, too."""
    yield from (
        each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    )
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


# What a function is, the same in each process. Its pickle isn't: it has the names of a notebook's temporary
# files, random names of classes, and sets in any order.


_LONGEST_VALUE = 80
_PARTS: Mapping[type, tuple[str, ...]] = {
    functools.partial: ("func", "args", "keywords"),
    MethodType: ("__func__", "__self__"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
}


def _identify(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a digest of the function with all that it uses, and its arguments: short JSON, or a digest."""
    shown: dict[str, Any] = {}
    for name, value in arguments.items():
        shown[name] = _Identity().digest(value)
        with suppress(TypeError, ValueError, RecursionError):
            text = json.dumps(value, allow_nan=False)
            if len(text) <= _LONGEST_VALUE and json.loads(text) == value:
                shown[name] = value
    return {"function": _Identity().digest(function), "kwargs": shown}


class _Identity:
    """Hashes values by what they are, and functions, classes and modules that travel by what is in them."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._seen: dict[int, int] = {}

    def digest(self, value: Any) -> str:
        """Return the digest of one value, in hex."""
        with suppress(RecursionError):  # a list that holds itself
            self._add(value)
        return self._hash.hexdigest()

    def _add(self, value: Any) -> None:
        self._hash.update(f"{type(value).__qualname__}(".encode())
        if isinstance(value, FunctionType | ModuleType | type):
            self._add_definition(value)
        elif isinstance(value, CodeType):
            # Lines and file names don't count: a cell that is run again has others.
            self._add_all(
                (value.co_code, value.co_names, value.co_varnames, value.co_freevars, value.co_flags)
            )
            self._add_all((value.co_argcount, value.co_kwonlyargcount, value.co_posonlyargcount))
            self._add(value.co_consts)
        elif type(value) is dict:
            self._add_all(part for item in value.items() for part in item)
        elif type(value) in (list, tuple):
            self._add_all(value)
        elif isinstance(value, set | frozenset):
            self._add_all(sorted(_Identity().digest(each) for each in value))
        elif parts := _PARTS.get(type(value)):
            self._add_all(getattr(value, part) for part in parts)
        elif not _is_imported(type(value)):
            self._add_all((type(value), getattr(value, "__dict__", repr(value))))
        else:
            file = _Limited()
            try:
                _Pickler(file).dump(value)
                self._hash.update(file.getvalue())
            except Exception:  # noqa: BLE001 - classes may raise anything; what can't travel is refused elsewhere
                self._hash.update(type(value).__qualname__.encode())
        self._hash.update(b")")

    def _add_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self._add(value)

    def _add_definition(self, value: Any) -> None:
        if id(value) in self._seen or _is_imported(value):
            name = getattr(value, "__qualname__", value.__name__)
            number = self._seen.get(id(value), "")
            self._hash.update(f"{getattr(value, '__module__', '')} {name} {number}".encode())
            return
        self._seen[id(value)] = len(self._seen)
        if isinstance(value, FunctionType):
            self._add_all((value.__code__, value.__defaults__, value.__kwdefaults__))
        elif isinstance(value, type):
            self._add_all((value.__bases__, value.__qualname__))
        own = sorted(_used_by(value), key=lambda item: item[0])
        self._add_all(part for item in own for part in item)
