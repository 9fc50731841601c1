"""A standby interpreter before the user's script: it imports TensorFlow, Keras and the library, and waits.

It waits inside `sitecustomize`, so that Python itself does everything after that (sys.argv, sys.path,
`__main__`, the exit code, atexit), as in any other start. Standard input is a socket to the agent. The
standby reports there when the imports are done. The agent answers with one line of JSON, {"env": {...}}, and
closes the socket when the standby is no longer needed.
"""

# ruff: noqa: PTH112, PTH120, PLC0415 - nothing is loaded before the user's modules that they might not want
from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

IMPORTED = ("tensorflow", "keras")
LIBRARY = "trainjob_trainer.library"
"""It takes a tenth of a second, and most of it is used by every script."""
READY = b"ready\n"


def wait(started_with: Mapping[str, str]) -> None:
    """Return when this process, whose environment was `started_with`, is to become the training process."""
    import json

    _offer_to_the_oom_killer()
    # Some of what the script changes before it imports TensorFlow is read by the import.
    recorded: dict[str, str | None] = {}
    try:
        path = os.path.join(os.environ["TRAINJOB_STATE_DIR"], "environment.json")  # noqa: PTH118
        with open(path, encoding="ascii") as file:  # noqa: PTH123
            recorded.update(json.load(file))
    except (KeyError, OSError, ValueError):
        recorded.clear()
    _change_environment(recorded)
    _import_all()
    _change_environment({name: started_with.get(name) for name in recorded})
    sys.stdout.flush()
    sys.stderr.flush()
    try:  # noqa: SIM105 - contextlib is not loaded yet
        os.write(0, READY)
    except BrokenPipeError:  # the agent has sent its message already and no longer reads
        pass
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 65536)
        if not part:  # the agent has closed the socket: this standby is no longer needed
            os._exit(0)
        line += part
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    _offer_to_the_oom_killer(again=True)
    env = json.loads(line)["env"]
    _change_environment(dict.fromkeys(started_with.keys() - env.keys()))
    # What the imports have set stays, as in a cold start.
    _change_environment({name: value for name, value in env.items() if started_with.get(name) != value})
    hook = sys.modules.get("trainjob_import_hook")
    if hook is not None:
        hook.renew()


def _change_environment(changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _import_all() -> None:
    """Import what the script will import, from where the script would find it."""
    import importlib

    # The entry that Python will put first on sys.path, but has not yet.
    script = sys.argv[0] if sys.argv else ""
    first = os.path.realpath(script)
    if script in ("", "-", "-c", "-m"):
        first = os.getcwd()  # noqa: PTH109
    elif not os.path.isdir(script):
        first = os.path.dirname(first)
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        first = ""
    if first:
        sys.path.insert(0, first)
    try:
        for name in IMPORTED:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name != name:
                    raise
        try:
            importlib.import_module(LIBRARY)
        except Exception:  # noqa: BLE001 - it doesn't fit the image's Keras, or there is none: the script may not need it
            return
    finally:
        if first:
            sys.path.remove(first)
        importlib.invalidate_caches()


_OOM_FILE = "/proc/self/oom_score_adj"
_oom_score: list[str] = []


def _offer_to_the_oom_killer(*, again: bool = False) -> None:
    """Offer this process rather than the one that trains; `again` undoes that once this one trains."""
    try:
        with open(_OOM_FILE, "r+", encoding="ascii") as file:  # noqa: PTH123
            if not again:
                _oom_score.append(file.read().strip())
                file.seek(0)
            file.write(_oom_score[0] if again else "1000")
    except (OSError, IndexError):
        return
