"""The identity of a training: which saved one belongs to a call of `fit` or `train_and_evaluate`.

A script runs from its top after a restart, and may then skip what it has done, or be another script. So a
saved training belongs to a call only if the call's place in the script, the shapes of the variables, the
optimizer's class and the number of epochs before it are the same. A result is returned untrained only if its
particulars are the same too: loop variables, arguments, settings, architecture and arrays.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import linecache
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Any

import numpy as np

from trainjob_trainer.checkpoint.fence import Fence
from trainjob_trainer.checkpoint.store import MODEL, TRAINING, CheckpointStore
from trainjob_trainer.edge import is_users
from trainjob_trainer.reporting.progress import notice
from trainjob_trainer.resume import refuse_lost


@dataclass(frozen=True)
class Identity:
    """What a saved training and a call of the script have in common.

    Attributes:
        site: the script's functions that led to the call, as `find_site` names them.
        variables: shapes and types of the model's variables, hashed; empty where they aren't known yet.
        optimizer: its class.
        epochs_before: epochs that the model was trained for by earlier calls.
        particulars: further things that a result depends on, by name.
    """

    site: str
    variables: str = ""
    optimizer: str = ""
    epochs_before: int = 0
    particulars: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, facts: Any) -> Identity:
        """Read what `dataclasses.asdict` has made of one; raises TypeError for anything else."""
        return cls(**facts)

    @property
    def key(self) -> tuple[object, ...]:
        """What must be the same."""
        return self.site, self.variables, self.optimizer, self.epochs_before

    def differences(self, other: Identity) -> list[str]:
        """Return what differs, in the words of a line of the log; `self` is the saved one."""
        names = ("place in the script", "variables", "optimizer", "epochs before")
        found = [name for name, one, two in zip(names, self.key, other.key) if one != two]
        both = sorted({*self.particulars, *other.particulars})
        return found + [one for one in both if self.particulars.get(one) != other.particulars.get(one)]


@dataclass
class SavedTraining:
    """A training on disk: its number, its first call, and whether a call of this process has it."""

    number: int
    identity: Identity
    is_taken: bool = False


def choose(saved: Sequence[SavedTraining], call: Identity) -> SavedTraining | None:
    """Return the saved training that may belong to a call, of those that no other call has taken.

    With other particulars it may only where no other has its key: then what is left of it may be trained, as
    where data or settings have changed, but its result may not be returned.
    """
    alike = [one for one in saved if one.identity.key == call.key]
    exact = [one for one in alike if not one.is_taken and one.identity == call]
    return exact[0] if exact else alike[0] if len(alike) == 1 and not alike[0].is_taken else None


def followed(saved: Sequence[SavedTraining], call: Identity) -> SavedTraining | None:
    """Return the training that an evaluator follows, which has other settings.

    Of several with the same key, it is the one with the most particulars, such as loop variables, in common.
    """
    alike = [one for one in saved if one.identity.key == call.key]
    common = [len(call.particulars.items() & one.identity.particulars.items()) for one in alike]
    return alike[common.index(max(common))] if alike else None


DATA, HELDOUT = "the data", "the held-out data"
"""Names of particulars."""


def has_other_rows(evaluator: Identity, writer: Identity) -> bool:
    """Return whether the evaluator's call is known to score other rows than those that the writer holds out.

    Where one of them is given none, as with `validation_split`, their training data decides.
    """
    own, others = evaluator.particulars, writer.particulars
    name = HELDOUT if HELDOUT in own and HELDOUT in others else DATA
    return name in own and name in others and own[name] != others[name]


# The place of a call in the script.


@dataclass(frozen=True)
class Site:
    """The place of a call: its name, and the variables of the loops and functions around it."""

    name: str
    variables: Mapping[str, str]


_CALLS = {"fit", "train_and_evaluate"}


def find_site(frame: FrameType | None = None) -> Site:
    """Return the place of the call of `fit` under way, such as `train.py:main > train.py:fold:12`.

    A function's name stands for its line where its file calls the inner one at a single place: so lines may
    be added above.
    """
    frames = []
    frame = frame or inspect.currentframe()
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back
    names, variables = [], {}
    for position, one in enumerate(frames):
        file, line = one.f_code.co_filename, one.f_lineno
        inner = {frames[position - 1].f_code.co_name} if position else _CALLS
        source = _parse(file)
        called = [node.func for node in source if isinstance(node, ast.Call)]
        calls = sum(getattr(one, "attr", getattr(one, "id", None)) in inner for one in called)
        place = f"{file.rpartition('/')[2]}:{one.f_code.co_name}"
        names.append(place if calls == 1 or (position and not calls) else f"{place}:{line}")
        values, code = one.f_locals, one.f_code
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        for name in {*_loop_variables(source, line), *arguments} & set(values):
            if (text := _simple(values[name])) is not None:
                variables[name] = text
    return Site(" > ".join(reversed(names)), variables)


@functools.lru_cache(maxsize=64)
def _parse(file: str) -> tuple[ast.AST, ...]:
    try:
        return tuple(ast.walk(ast.parse("".join(linecache.getlines(file)))))
    except (SyntaxError, ValueError):
        return ()


def _loop_variables(source: Iterable[ast.AST], line: int) -> Iterator[str]:
    """Yield the variables of the loops around a line: targets of `for`, and what a `while` tests."""
    for node in source:
        if not getattr(node, "lineno", line + 1) <= line <= (getattr(node, "end_lineno", None) or 0):
            continue
        targets: list[ast.AST] = [one.target for one in getattr(node, "generators", ())]
        targets += [node.target] if isinstance(node, (ast.For, ast.AsyncFor)) else []
        targets += [node.test] if isinstance(node, ast.While) else []
        yield from (one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name))


def _simple(value: Any) -> str | None:
    """Return the text of a number, a text or a short tuple of them; None for other things."""
    if isinstance(value, (list, tuple)):
        parts = [_simple(one) for one in value[:20]]
        return None if None in parts or len(value) > 20 else f"({', '.join(map(str, parts))})"
    return repr(value)[:200] if isinstance(value, (bool, int, float, str, np.number)) else None


def key_of(site: Site, model: Any) -> tuple[str, str, str]:
    """Return the first three parts of the identity of a call of `fit` on a built model."""
    variables = [(list(one.shape), str(one.dtype)) for one in model.variables]
    return site.name, digest(variables), type(model.optimizer).__name__


# What a result depends on besides.


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_COUNTED = re.compile(r"_\d+\b")
_ROWS = 64


def digest(facts: Any) -> str:
    """Return a short hash of facts; of Keras's names without the numbers that it counts within a process."""
    text = json.dumps(facts, sort_keys=True, default=lambda one: _ADDRESS.sub("", repr(one)))
    return f"{zlib.crc32(_COUNTED.sub('', text).encode()):08x}"


def digest_of_arrays(arrays: Iterable[Any]) -> str:
    """Return a short hash of shapes, types and some rows of arrays and tables; of other data, of their kind.

    A tf.data pipeline has the arrays and the names of files that it begins with. Below this replica's own
    output folder a file has the name that it has there: the evaluator's folder is another one.
    """
    own = os.environ.get("TRAINJOB_OUTPUT_DIR", "")
    facts: list[Any] = []
    ahead = list(arrays)
    for one in ahead:  # which grows
        try:
            if hasattr(one, "_inputs"):
                ahead += [*one._inputs(), *getattr(one, "_tensors", ()), getattr(one, "_filenames", None)]
            shape = list(one.shape)
            one = np.asarray(one) if hasattr(one, "numpy") else one  # noqa: PLW2901 - a GPU would slice a tensor
            rows = np.asarray(one[:: max(1, shape[0] // _ROWS)])
            content = rows.tobytes()
            if rows.dtype.hasobject:  # texts
                texts = repr(rows.tolist())
                content = (texts.replace(f"{own}/", "") if own else texts).encode()
            facts.append([shape, str(rows.dtype), zlib.crc32(content)])
        except Exception:  # noqa: BLE001 - it may be of any class
            facts.append(type(one).__name__)
    return digest(facts)


# The trainings of one output folder, as its writer knows them.


class Trainings:
    """The trainings below a folder of checkpoints: the first in the folder itself, others in `model-2`, ....

    Once a call trains from the beginning although others are saved, or beyond what is saved, those that no
    call has taken yet no longer belong to this run of the script (`close`).
    """

    def __init__(self, root: CheckpointStore, fence: Fence | None) -> None:
        self.root = root
        self._fence = fence
        self._stores = {0: root, 1: root}
        self._saved: list[SavedTraining] | None = None
        self._is_open = True

    def store(self, number: int) -> CheckpointStore:
        """Return the store of the training with this number, from 1."""
        if number not in self._stores:
            folder = self.root.directory / f"{MODEL}{number}"
            self._stores[number] = CheckpointStore(
                folder, self.root.keep, files=self.root.files, fence=self._fence
            )
        return self._stores[number]

    def read(self) -> list[SavedTraining]:
        """Return the trainings on disk, by their numbers; raises as `CheckpointStore.read_facts`."""
        numbers = [1, *self.root.further_trainings()]
        found = [(one, self.store(one).read_facts(TRAINING, Identity.from_json)) for one in numbers]
        return [SavedTraining(number, identity) for number, identity in found if identity is not None]

    def find(self, call: Identity, reported: int | None) -> SavedTraining | None:
        """Return the saved training that may belong to a call of the writer.

        The first call claims the folder, and refuses it as `refuse_lost` does; raises as `CheckpointStore`.
        """
        if self._saved is None:
            self.root.prepare()
            refuse_lost(self.root, max(self.root.steps(), default=0), reported)
            self._saved = self.read()
        return choose(self._saved, call) if self._is_open else None

    def begin(self, call: Identity) -> int:
        """Make a place for a training from the beginning, and return its number."""
        assert self._saved is not None  # noqa: S101 - `find` comes first
        others = [one for one in self._saved if not one.is_taken]
        if others and self._is_open:
            differing = ", ".join(others[-1].identity.differences(call))
            notice(
                f"{call.site} trains from the beginning: what is saved in {self.root.directory} belongs to "
                f"another call, which differs in {differing or 'its number'}"
            )
            self.close()
        known, used = self.root.known_steps(), self.root.further_trainings()
        number = max([1, *used]) + 1 if known or self._saved else 1
        store = self.store(number)
        store.prepare()
        store.set_aside(0)  # nothing is there: what comes is this process's, or another one writes here
        store.write_facts(TRAINING, asdict(call))
        self._saved.append(SavedTraining(number, call, is_taken=True))
        return number

    def close(self) -> None:
        """Let no further call have what is saved."""
        self._is_open = False
