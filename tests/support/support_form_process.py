"""A process that imports TensorFlow and Keras once, and is forked for each session of forms.

A line of standard input is a request. The fork takes on the request's environment as a warm standby does,
which is how jobs start their processes too, and runs the forms one after the other. What it has to say goes
to the named pipe `news`: its process id, and the name of each form that has come to its end.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support_forms import Failure

for _name in ("tensorflow", "keras"):
    importlib.import_module(_name)


def serve() -> None:
    gc.freeze()  # a collection in a fork looks at what the form has made, not at all of TensorFlow
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    started = []
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            run(json.loads(line))
        started.append(pid)
    for pid in started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def run(request: dict[str, Any]) -> None:
    """Run a session, and wait to be killed: who leaves takes the other workers along."""
    folder = Path(request["folder"])
    _redirect_output(folder / "log")
    news = os.open(folder / "news", os.O_WRONLY)
    os.write(news, f"pid {os.getpid()}\n".encode())
    try:
        os.environ.update(request["env"])
        if "trainjob_import_hook" in sys.modules:
            sys.modules["trainjob_import_hook"].renew()
        if os.environ.get("FORMS_KILL") == folder.name:
            _die_in_the_second_epoch()
        scope = _scope(request["devices"], collective="TF_CONFIG" in os.environ)
        spec = importlib.util.spec_from_file_location("forms", request["file"])
        assert spec is not None
        assert spec.loader is not None
        forms = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(forms)
        for name in request["forms"]:
            result = _outcome(getattr(forms, name), scope, folder / "files" / name)
            _write(folder / f"{name}.pickle", result)
            os.write(news, f"form {name}\n".encode())
            if isinstance(result, Failure) and "TF_CONFIG" in os.environ:
                break
        while True:
            signal.pause()
    except BaseException:  # noqa: BLE001 - the log is all that there is to tell
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)


def _redirect_output(log: Path) -> None:
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, descriptor in ((nothing, 0), (target, 1), (target, 2)):
        os.dup2(source, descriptor)


def _die_in_the_second_epoch() -> None:
    """By SIGKILL, when the first epoch's checkpoint has been written."""
    callbacks: Any = sys.modules["keras"].callbacks.CallbackList
    begin = callbacks.on_epoch_begin

    def on_epoch_begin(self: Any, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        begin(self, epoch, logs)

    callbacks.on_epoch_begin = on_epoch_begin


def _scope(devices: int, *, collective: bool) -> Callable[[], Any]:
    """What a script opens to build its model: that of its strategy, or nothing in one process."""
    tf = sys.modules["tensorflow"]
    tf.config.threading.set_inter_op_parallelism_threads(2)
    if not collective:
        return contextlib.nullcontext
    if devices > 1:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * devices
        )
        _give_devices(devices)
    return tf.distribute.MultiWorkerMirroredStrategy().scope  # type: ignore[no-any-return]


def _give_devices(count: int) -> None:
    """The strategy takes all GPUs of a worker, but only one device of a processor."""
    module = importlib.import_module("tensorflow.python.distribute.collective_all_reduce_strategy")

    def local_devices(self: Any, cluster_resolver: Any, worker_device: str) -> tuple[Any, str]:
        return tuple(f"{worker_device}/device:CPU:{number}" for number in range(count)), "CPU"

    module.CollectiveAllReduceExtended._initialize_local_devices = local_devices


def _outcome(form: Callable[..., Any], scope: Callable[[], Any], folder: Path) -> Any:
    """Run one form from a clean slate, in a folder of its own."""
    keras = sys.modules["keras"]
    keras.utils.clear_session()
    keras.utils.set_random_seed(7)
    gc.collect()
    folder.mkdir(parents=True)
    os.chdir(folder)
    print(f"form {form.__name__}", flush=True)
    began = time.process_time()
    try:
        outcome = form(scope)
    except BaseException as error:  # noqa: BLE001 - sys.exit() and the like are outcomes too
        return Failure(
            " ".join(f"{type(error).__name__}: {error}".split())[:600], traceback.format_exc()[-3000:]
        )
    print(f"took {time.process_time() - began:.1f} s of CPU", flush=True)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return {"files": [name for name in files if "tfevents" not in name], **outcome}


def _write(path: Path, result: Any) -> None:
    partial = path.with_suffix(".partial")
    partial.write_bytes(pickle.dumps(result))
    partial.replace(path)


if __name__ == "__main__":
    serve()
