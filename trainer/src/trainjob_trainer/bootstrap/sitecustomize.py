"""Entry into an unmodified script: Python runs this file at its start if this folder is on PYTHONPATH.

The program that starts a replica puts the folder there. Every Python process of a job runs this file, so it
is small, and without TF_CONFIG does little but run the next `sitecustomize`.
"""

# ruff: noqa: PTH100, PTH120, BLE001 - pathlib is not loaded yet, and nothing may break the interpreter
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
# An image may have another version of this folder on PYTHONPATH too: the first one does the work, and each
# runs only once, or they would run each other forever.
HAD_THEIR_TURN = vars(sys).setdefault("_trainjob_bootstraps", [])
IS_FIRST = not HAD_THEIR_TURN
IS_NEW = HERE not in HAD_THEIR_TURN
HAD_THEIR_TURN.append(HERE)
IS_STANDBY = os.environ.pop("TRAINJOB_STANDBY", "") != ""
SUPERVISED = "TRAINJOB_SUPERVISED"

IS_SCRIPTS_OWN = os.environ.get("TRAINJOB_PID", str(os.getpid())) != str(os.getpid())
"""The training process has started this one: nothing here is changed but where the library is found."""
STARTED_WITH = dict(os.environ) if IS_STANDBY else {}


def show_stacks() -> None:
    """Print the stacks of all threads when native code crashes, and on a signal that a watchdog sends.

    `agent/process_tree.py` sends it.
    """
    is_job = IS_STANDBY or os.environ.get("TF_CONFIG", "").strip() or os.environ.get("TRAINJOB_PROGRESS_FILE")
    if not IS_FIRST or IS_SCRIPTS_OWN or not is_job:
        return
    import _signal  # type: ignore[import-not-found]  # noqa: PLC0415 - `signal` would load `enum` into every process
    import faulthandler  # noqa: PLC0415

    faulthandler.enable()
    if hasattr(_signal, "SIGRTMIN"):
        faulthandler.register(_signal.SIGRTMIN + 5, all_threads=True)


def watch_imports() -> None:
    """Install the import hook."""
    if IS_FIRST and os.environ.get("TF_CONFIG", "").strip():
        import trainjob_import_hook  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415

        trainjob_import_hook.install(os.path.dirname(os.path.dirname(HERE)), is_scripts_own=IS_SCRIPTS_OWN)


def note_the_end() -> None:
    """Supervise the process if it writes a job's checkpoints, and no agent will see its exit code."""
    is_writers = os.environ.get("TRAINJOB_GENERATION") and "TRAINJOB_STATE_DIR" not in os.environ
    if not IS_FIRST or not is_writers or os.environ.get(SUPERVISED):
        return
    os.environ[SUPERVISED] = "yes"  # what it starts is the script's own
    import json  # noqa: PLC0415 - only where it is used

    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    first = "chief" if config.get("cluster", {}).get("chief") else "worker"
    if config.get("task") == {"type": first, "index": 0}:
        from trainjob_trainer.agent.ending import supervise  # noqa: PLC0415

        supervise()
        os.environ.pop("TRAINJOB_PID", None)  # its parent imported this


def run_the_next_sitecustomize() -> None:
    """Run it: Python imports only the first one, and a distribution or the user's image may have its own."""
    if not IS_NEW:
        return
    finder = next(one for one in sys.meta_path if getattr(one, "__name__", "") == "PathFinder")
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) not in HAD_THEIR_TURN]
    spec = finder.find_spec("sitecustomize", elsewhere)
    if spec is None or spec.loader is None:
        return
    module = type(sys)(spec.name)
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


for step, without in (
    (show_stacks, "no stacks of threads"),
    (watch_imports, "the script runs without the trainer's help"),
    (note_the_end, "the end of training won't be recorded"),
    (run_the_next_sitecustomize, "another sitecustomize failed"),
):
    try:
        step()
    except Exception as error:
        print(f"trainjob: {without}: {type(error).__name__}: {error}", file=sys.stderr)

if IS_STANDBY:
    try:
        import trainjob_standby  # type: ignore[import-not-found,unused-ignore]

        trainjob_standby.wait(STARTED_WITH)  # until the agent activates this process
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
