"""Runs forms one after the other: those of the request that its only argument is, in JSON.

The named pipe `news` gets the name of each form that has come to its end.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parents[2]), str(Path(__file__).parents[3] / "testbed")]  # as pytest has it

from support.trainer.forms import Failure, write_pickle


def run(request: dict[str, Any]) -> None:
    """Run a session, and wait to be killed: who leaves takes the other workers along."""
    folder = Path(request["folder"])
    news = os.open(folder / "news", os.O_WRONLY)
    try:
        if os.environ.get("FORMS_KILL") == folder.name:
            _die_within_the_second_epoch()
        scope = _scope(request["devices"], collective="TF_CONFIG" in os.environ)
        spec = importlib.util.spec_from_file_location("forms", request["file"])
        assert spec is not None
        assert spec.loader is not None
        forms = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(forms)
        for name in request["forms"]:
            result = _outcome(getattr(forms, name.partition("-")[0]), scope, Path(request["files"]) / name)
            write_pickle(folder / f"{name}.pickle", result)
            os.write(news, f"{name}\n".encode())
            if isinstance(result, Failure) and "TF_CONFIG" in os.environ:
                break
        while True:
            signal.pause()
    except BaseException:  # noqa: BLE001 - the log is all that there is to tell
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)


def _die_within_the_second_epoch() -> None:
    """By SIGKILL, when the checkpoint of its first batch has been written; of one batch, at its end."""
    callbacks: Any = sys.modules["keras"].callbacks.CallbackList
    begin_epoch, begin_batch = callbacks.on_epoch_begin, callbacks.on_train_batch_begin

    def die_from(epoch: int) -> None:
        from trainjob_trainer.session import current_session  # noqa: PLC0415 - only in a job

        call = current_session().call
        if call is not None and call.epoch >= epoch:
            call.record.writer.settle()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch_begin(self: Any, epoch: int, logs: Any = None) -> None:
        die_from(2)
        begin_epoch(self, epoch, logs)

    def on_train_batch_begin(self: Any, batch: int, logs: Any = None) -> None:
        if batch:
            die_from(1)
        begin_batch(self, batch, logs)

    callbacks.on_epoch_begin, callbacks.on_train_batch_begin = on_epoch_begin, on_train_batch_begin


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
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    print(f"form {form.__name__}", flush=True)
    began = time.process_time()
    try:
        outcome = form(scope)
    except BaseException as error:  # noqa: BLE001 - sys.exit() and the like are outcomes too
        words = " ".join(f"{type(error).__name__}: {error}".split())
        told = words if len(words) <= 900 else f"{words[:600]} … {words[-300:]}"  # TensorFlow's cause is last
        return Failure(told, traceback.format_exc()[-3000:])
    print(f"took {time.process_time() - began:.1f} s of CPU", flush=True)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return {"files": [name for name in files if "tfevents" not in name], **outcome}


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
