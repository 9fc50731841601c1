"""Forms: short functions that use Keras as people do, run by one process and by several, and compared.

One process runs many (`form_process.py`). A form that fails ends its processes, because nothing is
known about the collectives that they have left; the forms behind it go on in new ones. One in which
TensorFlow crashes is run once more.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import json
import os
import pickle
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from testbed.places import cache
from testbed.ports import free_ports

from support.trainer.checkpoints import newest_step
from support.trainer.forking import Forked, fork
from support.trainer.plain import BOOTSTRAP, clean_environment

SCRIPT = Path(__file__).with_name("form_process.py")
TOLERANCE = 1e-5
SILENCE_SECONDS = 300.0
"""Without a word for so long, a form counts as hanging: on a loaded machine some take two minutes."""
GRACE_SECONDS = 60.0
"""What the other workers have to say of a form in which one has failed, they say within this time."""
REFERENCE = "reference"


@dataclass(frozen=True)
class Differs:
    """A difference that tf.distribute doesn't define away, why, and bounds of the largest one of any number.

    Below `at_least` the numbers would be equal, and the statement wrong.
    """

    why: str
    at_most: float
    at_least: float = TOLERANCE


@dataclass(frozen=True)
class Form:
    """One form, as its decorator states it.

    Attributes:
        workers: how many there are beside the one process.
        devices: logical devices of each worker.
        differs: by the outcome's name, what is not equal and why.
        killed: whether it is run once more and killed within its second epoch, to go on in new processes.
        apart: names of what each worker has of its own.
        tolerance: of all that is compared as equal.
        defect: what is wrong in the product, one sentence; then the form must fail.
        shows: what the failure's text must contain, so that it fails for that reason.
        resume_defect: the same of the run that is killed.
        resume_shows: the same of its failure.
        refused: the sentence, or a part of it, with which it ends on every worker; then nothing is compared.
        ends_with_epoch: whose weights it ends with: the last one's, unless a callback puts others back.
        often: what is run for each change, and not only each night: `True` for the form, `killed` for the
            run that is killed as well.
    """

    name: str
    file: Path
    workers: int = 2
    devices: int = 1
    differs: Mapping[str, Differs] = field(default_factory=dict)
    killed: bool = False
    apart: tuple[str, ...] = ()
    tolerance: float = TOLERANCE
    defect: str = ""
    shows: str = ""
    resume_defect: str = ""
    resume_shows: str = ""
    refused: str = ""
    ends_with_epoch: int = -1
    often: bool | str = False

    @property
    def group(self) -> str:
        """Forms of a group share processes."""
        return f"{self.file.stem}/{self.workers}x{self.devices}"


def form(
    *,
    workers: int | tuple[int, ...] = 2,
    devices: int = 1,
    differs: Mapping[str, tuple[Any, ...]] | None = None,
    killed: bool = False,
    apart: tuple[str, ...] = (),
    tolerance: float = TOLERANCE,
    defect: str = "",
    shows: str = "",
    resume_defect: str = "",
    resume_shows: str = "",
    refused: str = "",
    ends_with_epoch: int = -1,
    often: bool | str = False,
    alone: dict[str, tuple[Any, ...]] | None = None,
    only: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """State what is expected of a form; see `Form`. Arguments are literals: they are read, not run.

    With one worker of one device nothing is refused, and nothing differs but what `alone` states. With
    `only`, what several workers do depends on their number, and no other is tried.

    Of several numbers of workers, each makes a form: `name-2` and `name-3`; `killed` and `often` are of the
    largest.
    """
    return lambda function: function


def forms_in(file: Path, workers: tuple[int, ...] = ()) -> list[Form]:
    """The forms of a file, which is parsed and not run: pytest's process needs no TensorFlow.

    `workers` are numbers of workers for all forms, besides those that they state.
    """
    found = []
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
        for call in filter(_is_form, decorators):
            stated = {one.arg: ast.literal_eval(one.value) for one in call.keywords}
            by_several, alone = stated.pop("differs", {}), stated.pop("alone", {})
            refused, killed, often = (stated.pop(name, False) for name in ("refused", "killed", "often"))
            own = stated.pop("workers", 2)
            counts = own if isinstance(own, tuple) else (own,)
            tried = {1} & {*workers} if stated.pop("only", False) else workers
            for count in sorted({*counts, *tried}):
                is_alone = count * stated.get("devices", 1) == 1
                differs = alone if is_alone else by_several
                form_ = Form(
                    node.name if own == count else f"{node.name}-{count}",
                    file,
                    count,
                    differs={name: Differs(*words) for name, words in differs.items()},
                    refused="" if is_alone else refused or "",
                    killed=killed and count == max(counts),
                    often=often if count == max(counts) else False,
                    **stated,
                )
                found.append(form_)
    return found


def _is_form(decorator: ast.expr) -> TypeGuard[ast.Call]:
    call = isinstance(decorator, ast.Call) and decorator.func
    return isinstance(call, ast.Name) and call.id == "form"


class Session:
    """Processes that run forms one after the other, until the last is done or one has failed.

    Results and logs go below `root`, what forms write below `files`.
    """

    def __init__(self, root: Path, files: Path | None = None) -> None:
        self.root = root
        self._files = files or root / "files"
        self._selector = selectors.DefaultSelector()
        self._processes: list[Forked] = []
        self._text: dict[str, bytes] = {}
        self.done: dict[str, list[str]] = {}
        self.ended: set[str] = set()

    def start(
        self, replica: str, forms: Sequence[Form], env: Mapping[str, str] | None = None, *, path: str = ""
    ) -> None:
        """Start a process of that name for forms of one group, with the environment of a job's replica."""
        folder = self.root / replica
        folder.mkdir(parents=True)
        pipe = folder / "news"
        os.mkfifo(pipe)
        self._selector.register(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), selectors.EVENT_READ, replica)
        self._text[replica], self.done[replica] = b"", []
        request = {
            "folder": str(folder),
            "files": str(self._files / replica),
            "file": str(forms[0].file),
            "forms": [one.name for one in forms],
            "devices": forms[0].devices,
        }
        with (folder / "log").open("wb") as log:
            variables = {**clean_environment(), **(env or {})}
            arguments = [json.dumps(request)]
            self._processes.append(fork(SCRIPT, arguments, variables, folder, output=log.fileno(), path=path))

    def read(self, seconds: float) -> bool:
        """Wait for news; False if there are none for so long."""
        events = self._selector.select(seconds)
        for key, _ in events:
            replica, data = key.data, os.read(key.fd, 65536)
            if not data:
                self.ended.add(replica)
                self._close(key.fd)
            *lines, self._text[replica] = (self._text[replica] + data).split(b"\n")
            self.done[replica] += [line.decode() for line in lines]
        return bool(events)

    @property
    def has_crashed(self) -> bool:
        """Whether TensorFlow has ended a process by a bad address, as it does once in a thousand forms."""
        return any(process.poll() == -signal.SIGSEGV for process in self._processes)

    def result(self, replica: str, name: str) -> Any:
        """The outcome, or an exception's text in a `Failure`."""
        file = self.root / replica / f"{name}.pickle"
        if file.exists():
            return pickle.loads(file.read_bytes())  # noqa: S301 - written by a form of ours
        state = "the process ended" if replica in self.ended else "no end within the time"
        log = self.root / replica / "log"
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        return Failure(state, "\n".join(lines[-15:]))

    def end(self) -> None:
        for key in list(self._selector.get_map().values()):
            self._close(key.fd)
        for process in self._processes:
            process.kill()
            process.wait()

    def _close(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)


@dataclass(frozen=True)
class Failure:
    """Instead of an outcome: what a form ended with."""

    error: str
    trace: str


def run_group(forms: Sequence[Form], root: Path) -> dict[str, dict[str, Any]]:
    """Run forms of one group; return the outcomes by form and replica, the reference among them."""
    outcomes: dict[str, dict[str, Any]] = {one.name: {} for one in forms}
    known = {one.name: outcome for one in forms if (outcome := _known(one))}
    unknown = [one for one in forms if one.name not in known]
    with _session(root / REFERENCE) as reference:
        if unknown:
            reference.start(REFERENCE, unknown)
        left, attempt, crashed = list(forms), 0, set[str]()
        while left:
            attempt += 1
            with _session(root / f"workers-{attempt}") as session:
                tried = _run_workers(session, left)
                if session.has_crashed and left[tried - 1].name not in crashed:
                    tried -= 1
                    crashed.add(left[tried].name)
                for one in left[:tried]:
                    outcomes[one.name].update({name: session.result(name, one.name) for name in session.done})
            left = left[tried:]
        while unknown and reference.done[REFERENCE][-1:] != [unknown[-1].name]:
            if REFERENCE in reference.ended or not reference.read(SILENCE_SECONDS):
                break
        for one in forms:
            outcomes[one.name][REFERENCE] = known.get(one.name) or reference.result(REFERENCE, one.name)
    for one in unknown:
        if not one.refused and not differences(one, outcomes[one.name]):
            write_pickle(_kept(one), (_digest(one.file, one.devices), outcomes[one.name][REFERENCE]))
    return outcomes


# The one process's outcomes are kept from run to run: Keras alone decides them.


def _known(one: Form) -> Any:
    """The outcome that is kept, if nothing that it depends on has changed since; else None."""
    file = _kept(one)
    digest, outcome = pickle.loads(file.read_bytes()) if file.exists() else ("", None)  # noqa: S301 - our own
    return outcome if digest == _digest(one.file, one.devices) else None


def _kept(one: Form) -> Path:
    return cache() / "forms" / f"{one.name.partition('-')[0]}.pickle"


@functools.cache
def _digest(file: Path, devices: int) -> str:
    """All that the outcomes of its forms depend on: their source, how they are run, what is installed.

    Of what a decorator states, only the number of devices changes something.
    """
    installed = sorted(f"{one.name} {one.version}" for one in importlib.metadata.distributions())
    forms = ast.parse(file.read_text(encoding="utf-8"))
    for node in forms.body:
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = [one for one in node.decorator_list if not _is_form(one)]
    process = (SCRIPT, SCRIPT.with_name("form_values.py"))
    sources = [ast.unparse(forms), *(each.read_text(encoding="utf-8") for each in process)]
    return hashlib.sha256(repr([sys.version, installed, sources, devices]).encode()).hexdigest()


def write_pickle(file: Path, value: Any) -> None:
    """Write a file that is there as a whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_bytes(pickle.dumps(value))
    partial.replace(file)


def run_killed(one: Form, root: Path) -> dict[str, Any]:
    """Run a form whose first worker is killed within its second epoch; return what the next run sees."""
    files = root / "files"
    with _session(root / "killed", files) as session:
        _start_workers(
            session, [one], root / "output", {"FORMS_KILL": "worker-0", "TRAIN_CHECKPOINT_EVERY": "1"}
        )
        while "worker-0" not in session.ended and session.read(SILENCE_SECONDS):
            pass
        assert not session.done["worker-0"], f"{one.name} was through before it could be killed"
    with _session(root / "again", files) as session:
        _start_workers(session, [one], root / "output", {"TRAINJOB_ATTEMPT": "2"})
        _wait_for(session, 0, one)
        return {name: session.result(name, one.name) for name in session.done}


def evaluator_differences(one: Form, reference: Mapping[str, Any], root: Path) -> list[str]:
    """Where an evaluator's figures aren't those of one process's last validation, if the form has one.

    A metric that isn't one number is none of an evaluator's. `run_killed` has left a whole run's output at
    `root`.
    """
    history = reference.get("history", {})
    if "val_loss" not in history:
        return []
    figures = {name: values[one.ends_with_epoch] for name, values in history.items()}
    expected = {name[4:]: it for name, it in figures.items() if name.startswith("val_") and not it.shape}
    return _unequal("evaluator", expected, _score_last_checkpoint(one, root), one.tolerance)


def _score_last_checkpoint(one: Form, root: Path) -> dict[str, Any]:
    checkpoints, own = root / "output" / "checkpoints", root / "output" / "evaluator"
    last = newest_step(root / "output")
    (checkpoints / "final.json").write_text(json.dumps({"step": last, "jobUid": "uid-1"}))
    cluster = {"worker": ["127.0.0.1:1"], "evaluator": ["127.0.0.1:2"]}  # an evaluator meets nobody
    with _session(root / "scored") as session:
        job = _environment(own, session.root, cluster, 0, role="evaluator")
        session.start(
            "evaluator-0", [one], {**job, "TRAINJOB_CHECKPOINT_DIR": str(checkpoints)}, path=str(BOOTSTRAP)
        )
        while "evaluator-0" not in session.ended and session.read(SILENCE_SECONDS):
            pass
        assert (own / "evaluations.jsonl").exists(), session.result("evaluator-0", one.name)
    scored = json.loads((own / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert scored["step"] == last
    return dict(scored["metrics"])


@contextmanager
def _session(root: Path, files: Path | None = None) -> Iterator[Session]:
    session = Session(root, files)
    try:
        yield session
    finally:
        session.end()


def _run_workers(session: Session, forms: Sequence[Form]) -> int:
    """Run forms until one has failed; return how many have been tried."""
    _start_workers(session, forms, session.root / "output", {})
    for number, one in enumerate(forms):
        if not _wait_for(session, number, one):
            return number + 1
    return len(forms)


def _start_workers(session: Session, forms: Sequence[Form], output: Path, env: Mapping[str, str]) -> None:
    count = forms[0].workers
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(count)]}
    for index in range(count):
        replica = f"worker-{index}"
        job = _environment(output, session.root / replica, cluster, index)
        session.start(replica, forms, {**job, **env}, path=str(BOOTSTRAP))


def _wait_for(session: Session, number: int, one: Form) -> bool:
    """Whether every worker has come to the end of this form without a failure."""
    replicas = list(session.done)
    until = time.monotonic() + SILENCE_SECONDS
    shortened = False
    while waited := [name for name in replicas if len(session.done[name]) <= number]:
        failed = [name for name in replicas if name not in waited and _has_failed(session, name, one)]
        if session.ended.issuperset(waited):
            return False
        if (failed or session.ended) and not shortened:
            until, shortened = time.monotonic() + GRACE_SECONDS, True
        if not session.read(max(0.0, until - time.monotonic())):
            return False
    return not any(_has_failed(session, name, one) for name in replicas)


def _has_failed(session: Session, replica: str, one: Form) -> bool:
    return isinstance(session.result(replica, one.name), Failure)


def _environment(
    output: Path, own: Path, cluster: Mapping[str, Any], index: int, role: str = "worker"
) -> dict[str, str]:
    return {
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": index}}),
        "TRAINJOB_NAME": "forms",
        "TRAINJOB_UID": "uid-1",
        "TRAINJOB_OUTPUT_DIR": str(output),
        "TRAINJOB_CHECKPOINT_DIR": str(output / "checkpoints"),
        "TRAINJOB_PROGRESS_FILE": str(own / "progress.json"),
    }


def differences(form_: Form, outcomes: Mapping[str, Any]) -> list[str]:
    """What isn't as stated, a line each: workers against the one process, and against each other."""
    failures = [
        f"{replica}: {one.error}\n{one.trace}"
        for replica, one in sorted(outcomes.items())
        if isinstance(one, Failure)
    ]
    if form_.refused:
        refusals = [one for one in failures if form_.refused in one]
        return [] if len(refusals) == form_.workers == len(failures) else failures or ["it isn't refused"]
    if failures:
        return failures
    reference, first = outcomes[REFERENCE], outcomes["worker-0"]
    found = _compared(form_, "", reference, first)
    for replica in sorted(set(outcomes) - {REFERENCE, "worker-0"}):
        alone = {name: value for name, value in first.items() if name not in ("files", *form_.apart)}
        other = {name: value for name, value in outcomes[replica].items() if name in alone}
        found += [f"{replica} is not as worker-0: {line}" for line in _unequal("", alone, other, TOLERANCE)]
        # In a folder of its own, what Keras saves is where the script says, as worker 0's is.
        if others := sorted(set(outcomes[replica]["files"]) - set(first["files"])):
            found.append(f"{replica} wrote {others}")
    return found


def _compared(form_: Form, path: str, reference: Mapping[str, Any], seen: Mapping[str, Any]) -> list[str]:
    found = []
    equal = {name: value for name, value in reference.items() if name not in form_.differs}
    found += _unequal(path, equal, {k: v for k, v in seen.items() if k not in form_.differs}, form_.tolerance)
    for name, stated in form_.differs.items():
        lines = _unequal(name, reference[name], seen[name], stated.at_most, relative=0.0)
        found += lines
        if not lines and not _unequal(name, reference[name], seen[name], stated.at_least):
            found.append(f"{name}: equal, though {stated.why}")
    return found


def _unequal(
    path: str, expected: Any, actual: Any, absolute: float, *, relative: float | None = None
) -> list[str]:
    """Lines for all that differs, by its path within an outcome."""
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        if sorted(map(str, expected)) != sorted(map(str, actual)):
            return [f"{path}: names {sorted(map(str, expected))} became {sorted(map(str, actual))}"]
        keys: Any = expected
    elif isinstance(expected, (list, tuple)) and isinstance(actual, (list, tuple)):
        if len(expected) != len(actual):
            return [f"{path}: {_short(expected)} became {_short(actual)}"]
        keys = range(len(expected))
    else:
        return _unequal_values(path, expected, actual, absolute, absolute if relative is None else relative)
    return [
        line
        for key in keys
        for line in _unequal(f"{path}/{key}", expected[key], actual[key], absolute, relative=relative)
    ]


def _unequal_values(path: str, expected: Any, actual: Any, absolute: float, relative: float) -> list[str]:
    one, other = np.asarray(expected), np.asarray(actual)
    if one.dtype.kind not in "fiub" or other.dtype.kind not in "fiub":
        return [] if np.array_equal(one, other) else [f"{path}: {_short(expected)} became {_short(actual)}"]
    if one.shape != other.shape:
        return [f"{path}: shape {one.shape} became {other.shape}"]
    if np.allclose(one, other, rtol=relative, atol=absolute, equal_nan=True):
        return []
    gap = np.max(np.abs(one.astype("float64") - other.astype("float64"))) if one.size else 0.0
    return [f"{path}: off by {gap:.2g}: {_short(expected)} became {_short(actual)}"]


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 120 else text[:117] + "..."
