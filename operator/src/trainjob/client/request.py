"""What was asked for under a job's name: whether two requests are the same, and what differs.

A name stands for one request: command, arguments, environment, code, and every setting that changes what is
computed. A job is continued or its result returned only if the request is the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from trainjob.api import API_VERSION, TRAINER_CONTAINER
from trainjob.api.errors import mapping_at, objects_at
from trainjob.core.names import FUNCTION
from trainjob_trainer.contract.environment import OF_A_JOB, SETTING
from trainjob_trainer.contract.reports import shorten

if TYPE_CHECKING:
    from trainjob.cluster.local import LocalOptions  # needless for a cluster, and slow to import


class Request(BaseModel):
    """What decides on the result of a job.

    Attributes:
        asked: the settings by their names in messages, such as `arguments` and `env RATE`.
        code: digests by file, and of code that travels; None if they can't be known.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    asked: Mapping[str, Any] = Field(default_factory=dict)
    code: Mapping[str, str] | None = None


def describe(request: Request) -> str:
    """Return it as people type it: `train.py --epochs 9 TRAIN_SEED=2`, or `epochs=9` of a function."""
    asked = request.asked
    words = [str(word) for name in ("command", "arguments") for word in asked.get(name) or ()]
    words = [*dropwhile(_INTERPRETER.fullmatch, words)]
    settings = (
        f"{found['whose']}{found['name']}={_shown(value)}"
        for name, value in asked.items()
        if (found := _NAMED.match(name)) and not _CONCEALED.match(name)
    )
    return " ".join((*([] if words == [_OF_FUNCTIONS] else [shlex.join(words)]), *settings))


def describe_environment(request: Request) -> str:
    """Return the names of its other variables, `RATE, TOKEN`: the values may be secret, and aren't kept."""
    found = (_NAMED.match(name) for name in request.asked if _CONCEALED.match(name))
    return ", ".join(f"{name['whose']}{name['name']}" for name in found if name)


_INTERPRETER = re.compile(r"(.*/)?python[\d.]*|-[A-Za-z]")
_OF_FUNCTIONS = "trainjob_trainer.function"
_NAMED = re.compile(r"(?P<whose>(?:.+'s )?)(?:env|kwargs) (?P<name>.+)")
_CONCEALED = re.compile(rf"(.+'s )?env (?!{SETTING})")
"""Variables whose values may be secret."""


@dataclass(frozen=True)
class Differences:
    """What differs between two requests, a phrase each.

    Attributes:
        asked: what no continuation can change.
        longer: more epochs or steps than before: the trainer continues, or refuses.
        code: what an unfinished training may be continued with, since the trainer compares each saved one.
    """

    asked: tuple[str, ...] = ()
    longer: tuple[str, ...] = ()
    code: tuple[str, ...] = ()

    def refused(self, *, finished: bool) -> tuple[str, ...]:
        """Return what keeps the later request from following the earlier one."""
        return (*self.asked, *(self.code if finished else ()))

    @property
    def all(self) -> tuple[str, ...]:
        """Return all phrases."""
        return (*self.asked, *self.longer, *self.code)


def compare(earlier: Request, later: Request) -> Differences:
    """Return what differs: the one place that decides whether two requests are the same."""
    then, lengths_then = _without_lengths(earlier.asked)
    now, lengths_now = _without_lengths(later.asked)
    asked = [_changed(name, then, now) for name in _all(then, now) if then.get(name) != now.get(name)]
    longer: list[str] = []
    for name in _all(lengths_then, lengths_now):
        before, after = lengths_then.get(name), lengths_now.get(name)
        if before != after:
            (longer if _grows(before, after) else asked).append(_changed(name, lengths_then, lengths_now))
    return Differences(tuple(asked), tuple(longer), tuple(_changed_code(earlier.code, later.code)))


_LENGTHS = ("epochs", "steps")
"""The trainer's own words for how long it trains: in arguments, in variables, and of functions."""


def _without_lengths(asked: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    rest, lengths = dict(asked), dict[str, Any]()
    for length in _LENGTHS:
        for name in (f"env TRAIN_{length.upper()}", f"kwargs {length}"):
            if name in rest:
                lengths[name] = rest.pop(name)
    for name in ("command", "arguments"):
        words, kept = iter(rest.pop(name, ())), list[str]()
        for word in words:
            option, separator, value = str(word).partition("=")
            if option.removeprefix("--") in _LENGTHS and option.startswith("--"):
                lengths[option] = value if separator else next(words, "")
            else:
                kept.append(str(word))
        if kept:
            rest[name] = kept
    return rest, lengths


def _grows(before: object, after: object) -> bool:
    """Return whether more is asked for; without a number before, only the script knows."""
    try:
        return int(str(after)) > (0 if before is None else int(str(before)))
    except ValueError:
        return False


def _changed(name: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    before, after = then.get(name), now.get(name)
    if _CONCEALED.match(name):
        return f"{name} ({'not set before' if name not in then else 'changed' if name in now else 'not set'})"
    return f"{name} {_shown(after)} (was {_shown(before)})"


_LONGEST = 80
_MOST_NAMED = 4


def _shown(value: object) -> str:
    if value is None:
        return "not set"
    words: list[Any] = value if isinstance(value, list) else [value]
    is_text = all(isinstance(word, str) for word in words)
    text = shlex.join(words) if is_text else json.dumps(value, sort_keys=True)
    return shorten(text, _LONGEST)


def _changed_code(then: Mapping[str, str] | None, now: Mapping[str, str] | None) -> Iterator[str]:
    if then is None or now is None:
        yield "its code, perhaps (too many files to compare)"
        return
    # A settings file that came later may be what the script itself has written.
    changed = [
        f"{name} ({'new' if name not in then else 'changed' if name in now else 'not used now'})"
        for name in sorted(_all(then, now))
        if then.get(name) != now.get(name) and (name in then or not name.endswith(_SETTINGS))
    ]
    yield from changed[:_MOST_NAMED]
    if len(changed) > _MOST_NAMED:
        yield f"{len(changed) - _MOST_NAMED} more files"


def _all(*mappings: Mapping[str, Any]) -> dict[str, None]:
    return dict.fromkeys(name for mapping in mappings for name in mapping)


# The request of a TrainJob. What isn't named here changes where and how long a job may run, not its result:
# numbers of replicas, resources, restarts, time limits, scheduling.


_ROLES = ("worker", "chief", "ps", "evaluator")
_OF_A_CONTAINER = {
    "command": "command",
    "args": "arguments",
    **{name: name for name in ("workingDir", "envFrom", "volumeMounts")},
}
"""Fields by their names in messages."""
_CHANGE_NOTHING = frozenset(
    ["CUDA_VISIBLE_DEVICES", "TF_CPP_MIN_LOG_LEVEL", "TRAIN_CHECKPOINT_EVERY", "TRAIN_KEEP"]
)
_OF_A_SHELL = frozenset(["OLDPWD", "PATH", "PWD", "TERM", "_"])


def read_request(manifest: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Request:
    """Return what a TrainJob asks for, as it is in a file or as a cluster has it stored.

    Of a run on this machine the caller's environment has what a cluster's objects have.
    """
    spec = mapping_at(manifest, "spec")
    output = {"mountPath": "/output", "resume": "Auto", **mapping_at(spec, "output")}
    if claim := mapping_at(output, "claim"):
        output["claim"] = {"claimName": claim.get("claimName")}
    asked: dict[str, Any] = {"output": output}
    code: dict[str, str] = {}
    if digest := mapping_at(spec, "code").get("digest"):
        code["its code"] = str(digest)
    for role in ("", *_ROLES):
        holder, prefix = (mapping_at(spec, role), f"{role}'s ") if role else (spec, "")
        if role in ("chief", "ps") and role in spec:
            asked[role] = True
        asked |= _variables(holder, prefix, environ)
        pod = mapping_at(holder, "template", "spec")
        if volumes := pod.get("volumes"):
            asked[f"{prefix}volumes"] = volumes
        for kind in ("initContainers", "containers"):
            for _, container in objects_at(pod, kind):
                is_trainer = container.get("name") == TRAINER_CONTAINER
                whose = prefix if is_trainer else f"{prefix}{container.get('name')}'s "
                for field, name in _OF_A_CONTAINER.items():
                    if value := container.get(field):
                        is_word = field in ("command", "args") and not isinstance(value, list)
                        asked[f"{whose}{name}"] = [value] if is_word else value
                asked |= _variables(container, whose, environ)
                if environ is None and (image := container.get("image")):  # here no image is used
                    code[f"{whose}image {image}"] = ""
    # It is no function, or not packed by this client.
    with suppress(KeyError, TypeError, ValueError, AttributeError, RecursionError):
        identity = json.loads(mapping_at(manifest, "metadata", "annotations")[FUNCTION])
        kwargs = {f"kwargs {name}": value for name, value in identity["kwargs"].items()}
        packed = {"the function": str(identity["function"]), "its files": str(identity["files"])}
        asked |= {"command": asked["command"][:-1], **kwargs}  # the last part is a path, another each time
        code = {name: digest for name, digest in code.items() if name != "its code"} | packed
    return Request(asked=asked, code=code)


def _variables(
    holder: Mapping[str, Any], whose: str, environ: Mapping[str, str] | None
) -> Iterator[tuple[str, Any]]:
    for _, entry in objects_at(holder, "env"):
        name, source = str(entry.get("name")), entry.get("valueFrom")
        if name not in _CHANGE_NOTHING:
            value = entry.get("value") or "" if not source else [source, (environ or {}).get(name)]
            yield f"{whose}env {name}", _concealed(name, value)


def _concealed(name: str, value: object) -> object:
    """Return the value of one of the trainer's settings, and of other variables a digest."""
    return value if name.startswith(SETTING) else _digest(json.dumps(value, sort_keys=True).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


# The request of a run on this machine: also the caller's environment, and the files of the code.


_SETTINGS = (".json", ".yaml", ".yml", ".toml", ".ini", ".cfg")
_CODE = (".py", ".sh", *_SETTINGS)
_MOST_SEEN = 50_000
_MOST_FILES = 2000
_MOST_BYTES = 1 << 26
_LARGEST_TEXT = 1 << 20


def read_local_request(
    job: Mapping[str, Any], options: LocalOptions, file: Path | None, environ: Mapping[str, str]
) -> Request:
    """Return what a run on this machine asks for.

    A file in the folders of the job, of its scripts and of PYTHONPATH belongs to the code if the command, or
    other code, names it or its folder. Of the caller's variables those count that are settings of the
    trainer, and those whose names the code has in quotes. The text of the job's own file doesn't count.
    """
    request = read_request(job, environ)
    parts = list(_parts(job["spec"]))
    command = [str(word) for part in parts for name in ("command", "args") for word in part.get(name) or ()]
    code = _Code(options.job_folder.absolute())
    code.read_text(" ".join(command))
    left_out = {options.folder.absolute(), file}
    if FUNCTION in mapping_at(job, "metadata", "annotations"):
        with suppress(OSError, KeyError, TypeError, ValueError):
            for source, text in json.loads(Path(command[-1]).read_text())["sources"].items():
                left_out.add(Path(source))  # what the function uses of it has been packed with it
                code.read_text(text)
    python_path = [part.get("value") for part in parts if part.get("name") == "PYTHONPATH"]
    modules = ":".join([*map(str, python_path), environ.get("PYTHONPATH", "")]).split(":")
    scripts = [(code.folder / word).parent for word in command if word.endswith((".py", ".sh"))]
    found = [code.folder, *scripts, *(code.folder / module for module in modules if module)]
    sources = [path for path in dict.fromkeys(found) if path.is_dir() and os.access(path, os.R_OK)]
    left_out.update(*([source, source / "runs"] for source in sources))
    is_whole = code.read_named(sources, left_out)
    own = {
        f"env {name}": _concealed(name, value)
        for name, value in environ.items()
        if (name.startswith(SETTING) or name in code.quoted)
        and name not in _CHANGE_NOTHING | _OF_A_SHELL
        and not name.startswith(OF_A_JOB)
    }
    files = {**(request.code or {}), **code.digests} if is_whole else None
    return Request(asked={**own, **request.asked}, code=files)


class _Code:
    """The code that has been read, beginning with the command; `quoted` are the words in quotes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.digests: dict[str, str] = {}
        self.quoted, self._words, self._globs = set[str](), set[str](), set[str]()
        self._size = 0

    def read_text(self, text: str) -> None:
        """Add a text's words."""
        self._size += len(text)
        self._words.update(re.findall(r"\w+", text))
        self._globs.update(re.findall(r"\*(\.\w+)", text))
        self.quoted.update(re.findall(r"[\"'](\w+)[\"']", text))

    def read_named(self, sources: Iterable[Path], left_out: Collection[Path | None]) -> bool:
        """Read what in these folders is named by what has been read, until there is no more.

        Returns False if there are too many files.
        """
        waiting = {path for source in sources for path in source.iterdir() if path not in left_out}
        seen = 0
        while named := {path for path in waiting if self._is_named(path)}:
            waiting -= named
            for path in (file for each in named for file in _files(each, left_out)):
                seen += 1
                if path.suffix in _CODE:
                    self._read(path)
                if seen > _MOST_SEEN or len(self.digests) > _MOST_FILES or self._size > _MOST_BYTES:
                    return False
        return True

    def _is_named(self, path: Path) -> bool:
        words = re.findall(r"\w+", path.stem)
        return path.suffix in self._globs or (bool(words) and self._words.issuperset(words))

    def _read(self, path: Path) -> None:
        name = str(path.relative_to(self.folder) if path.is_relative_to(self.folder) else path)
        try:
            facts = path.stat()
            if facts.st_size > _LARGEST_TEXT:
                self.digests[name] = f"{facts.st_size} {facts.st_mtime_ns}"
                return
            content = path.read_bytes()
        except OSError as error:
            self.digests[name] = str(error)
            return
        if path.suffix in (".yaml", ".yml") and API_VERSION.encode() in content:
            return  # a job's file is no script's settings
        self.digests[name] = _digest(content)
        self.read_text(content.decode(errors="replace"))


def _files(path: Path, left_out: Collection[Path | None]) -> Iterator[Path]:
    """Yield a file, or those below a folder: not hidden ones, nor those of an environment of Python."""
    if path.name.startswith(".") or path.name == "__pycache__" or path in left_out:
        return
    if not path.is_dir():
        yield path
    elif os.access(path, os.R_OK) and not (path / "pyvenv.cfg").exists():
        for inner in path.iterdir():
            if not (inner.is_symlink() and inner.is_dir()):  # it may lead back
                yield from _files(inner, left_out)


def _parts(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every object in a part of a manifest."""
    if isinstance(value, Mapping):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _parts(each)
