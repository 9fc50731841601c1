"""SIGTERM, noticed while the main thread is deep inside TensorFlow, where Python's handlers do not run.

TensorFlow installs a SIGTERM handler of its own when a cluster is formed, and never looks at it. So a thread
listens, and puts the handler back when it has been replaced. One gap remains: while TensorFlow waits for
peers that have not come yet it holds the interpreter's lock, and only SIGKILL ends the process.
A process that the script forks has no such thread, and ends by SIGTERM as any other.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

EVALUATOR_STOPPED = 128 + signal.SIGTERM
_SECONDS_BETWEEN_LOOKS = 0.25
_SECONDS_BETWEEN_QUESTIONS = 0.1


class StopRequest:
    """Whether the process has been asked to stop, and the clock that runs from then on."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self.patience_seconds = 0.0
        """How long, from the signal on, the main thread may take to end by itself; training needs some."""
        self.is_futile: Callable[[], bool] = _never
        """Asked meanwhile, from another thread: whether there is nothing to be patient for any more."""

    @property
    def requested(self) -> bool:
        """Asked at every step boundary."""
        return self._requested.is_set()

    def install(self, leave: Callable[[], None]) -> None:
        """Listen for SIGTERM from a thread of its own; elsewhere than in the main thread, do nothing.

        `leave` is called when the signal has come and the patience is over; it must not return.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.signal(signal.SIGTERM, _left_to_the_thread)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        watch = threading.Thread(target=self._watch, args=(reader, leave), name="trainjob-stop", daemon=True)
        watch.start()
        _Fork().watch()

    def _watch(self, reader: int, leave: Callable[[], None]) -> None:
        handler = _SystemHandler()
        while not _came(reader):
            handler.put_back()
        asked = time.monotonic()
        self._requested.set()
        while time.monotonic() - asked < self.patience_seconds and not self.is_futile():
            time.sleep(_SECONDS_BETWEEN_QUESTIONS)
        leave()


def _never() -> bool:
    return False


def is_listening() -> bool:
    """Whether SIGTERM is still ours: a script may have set a handler of its own meanwhile."""
    return signal.getsignal(signal.SIGTERM) is _left_to_the_thread


def _left_to_the_thread(number: int, frame: FrameType | None) -> None:
    """Without a handler the process would end at once."""


class _Fork:
    """Gives a forked child SIGTERM as any process has it.

    Otherwise it would ignore the signal, and tell it to its parent: they share the pipe. The signal is held
    back meanwhile, for a child that is ended before it has got that far.
    """

    def __init__(self) -> None:
        self._mask = threading.local()

    def watch(self) -> None:
        os.register_at_fork(before=self._hold, after_in_parent=self._release, after_in_child=self._forget)

    def _hold(self) -> None:
        self._mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _release(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask.before)

    def _forget(self) -> None:
        if is_listening():
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._release()


class _SystemHandler:
    """The C function that the system calls for SIGTERM.

    Any thread may set it; Python's own API wants the main thread, which is busy just then.
    """

    def __init__(self) -> None:
        self._get = ctypes.pythonapi.PyOS_getsig
        self._set = ctypes.pythonapi.PyOS_setsig
        self._get.argtypes, self._get.restype = [ctypes.c_int], ctypes.c_void_p
        self._set.argtypes, self._set.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
        self._ours = self._get(signal.SIGTERM)

    def put_back(self) -> None:
        if self._get(signal.SIGTERM) != self._ours:
            self._set(signal.SIGTERM, self._ours)


def _came(reader: int) -> bool:
    """Wait a moment for SIGTERM; other signals wake the pipe too."""
    readable, _, _ = select.select([reader], [], [], _SECONDS_BETWEEN_LOOKS)
    return bool(readable) and signal.SIGTERM in os.read(reader, 64)
