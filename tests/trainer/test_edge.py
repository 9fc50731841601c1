from __future__ import annotations

import errno
import os
import re
import socket
import sys
import tempfile
from email.message import Message
from pathlib import Path
from urllib.error import HTTPError, URLError

import pytest

from trainjob_trainer import OutputFull, PeerLost, Preempted, Task
from trainjob_trainer.edge import (
    StopRequest,
    describe,
    exit_now,
    explain_failure,
    install_edge,
    private_name,
)
from trainjob_trainer.errors import StorageUnavailable
from trainjob_trainer.reporting.progress import ProgressFile

CLUSTER = {"worker": ("a:1", "b:1"), "evaluator": ("c:1",)}
ONE_OF_TWO = Task("worker", 0, CLUSTER)


def tensorflow_error(name: str, message: str) -> Exception:
    kind = type(name, (Exception,), {"__module__": "tensorflow.python.framework.errors_impl"})
    error: Exception = kind(message)
    return error


def test_our_own_errors_stand_for_themselves() -> None:
    error = OutputFull("no space")

    assert explain_failure(error, ONE_OF_TWO, StopRequest()) is error


@pytest.mark.parametrize(
    ("name", "message", "lost"),
    [
        ("UnavailableError", "Socket closed", True),
        (
            "UnknownError",
            "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt",
            True,
        ),
        ("AbortedError", "Collective ops is aborted by: ...", True),
        ("InternalError", "/job:worker/replica:0/task:1: heartbeat timeout", True),
        ("AbortedError", "queue closed", False),
        ("InvalidArgumentError", "shapes differ in a collective", False),
    ],
)
def test_what_a_lost_peer_looks_like(name: str, message: str, lost: bool) -> None:
    explained = explain_failure(tensorflow_error(name, message), ONE_OF_TWO, StopRequest())

    assert isinstance(explained, PeerLost) is lost


@pytest.mark.parametrize(
    ("cause", "is_own"),
    [
        ("invalid usage", True),
        ("unhandled system error (run with NCCL_DEBUG=INFO for details)", True),
        ("remote process exited or there was a network error", False),
    ],
)
def test_an_error_of_nccls_own_is_no_lost_peer(cause: str, is_own: bool) -> None:
    text = f"Collective ops is aborted by: NCCL: {cause}. Set NCCL_DEBUG=WARN for detail."
    explained = explain_failure(tensorflow_error("InternalError", text), ONE_OF_TWO, StopRequest())

    assert explained is not None
    assert (explained.exit_code, explained.reason) == ((93, "NcclFailed") if is_own else (85, "PeerLost"))
    assert ("NCCL_SOCKET_IFNAME" in str(explained)) is is_own


def test_an_error_of_nccls_own_names_the_interfaces_and_the_shared_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("socket.if_nameindex", lambda: [(1, "lo"), (2, "eth0"), (3, "ib0")])
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    error = tensorflow_error("InternalError", "NCCL: unhandled system error. Set NCCL_DEBUG=WARN")
    said = str(explain_failure(error, ONE_OF_TWO, StopRequest()))
    assert "interface (eth0, ib0 here; NCCL_SOCKET_IFNAME isn't set)" in said
    assert re.search(r"the size of /dev/shm \(\d+ MiB\)", said)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth1")
    assert "NCCL_SOCKET_IFNAME=eth1" in str(explain_failure(error, ONE_OF_TWO, StopRequest()))


def test_too_little_memory_of_a_gpu_says_what_to_do() -> None:
    error = tensorflow_error("ResourceExhaustedError", "OOM when allocating tensor with shape[256,224]")
    assert "gradient_accumulation_steps=2" in describe(error, None)


@pytest.mark.parametrize("task", [Task("worker", 0, {"worker": ("a:1",)}), Task("evaluator", 0, CLUSTER)])
def test_without_peers_none_can_be_lost(task: Task) -> None:
    error = tensorflow_error("UnavailableError", "Socket closed")

    assert isinstance(explain_failure(error, task, StopRequest()), StorageUnavailable)


def in_python(text: str) -> Exception:
    """As TensorFlow raises an error of Python's that a pipeline has called."""
    trace = 'Traceback (most recent call last):\n\n  File "train.py", line 21, in read\n    open(path)\n\n'
    node = "\t [[{{node PyFunc}}]] [Op:IteratorGetNext]"
    return tensorflow_error("UnknownError", f"{text}\n{trace}{text}\n\n\n\n{node}")


def caused_by(cause: Exception) -> Exception:
    error = RuntimeError("can't read shard 7")
    error.__cause__ = cause
    return error


AWAY = [
    *(OSError(number, "x") for number in (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ECONNREFUSED)),
    *(ConnectionError("reset"), TimeoutError("timed out"), socket.gaierror(socket.EAI_AGAIN, "x")),
    *(URLError(OSError(errno.EHOSTUNREACH, "x")), URLError(TimeoutError("timed out"))),
    *(HTTPError("http://data", code, "x", Message(), None) for code in (500, 503, 429)),
    type("ConnectTimeout", (type("Timeout", (OSError,), {}),), {})("as of requests"),
    tensorflow_error("UnknownError", "{{function_node x}} /data/a; Input/output error [Op:IteratorGetNext]"),
    tensorflow_error("AbortedError", "/data/a; Stale file handle\n\t [[{{node IteratorGetNext}}]] [Op:f]"),
    tensorflow_error("FailedPreconditionError", "/data/a; Transport endpoint is not connected"),
    *(in_python("OSError: [Errno 5] Input/output error: '/data/a'"), in_python("TimeoutError: timed out")),
    caused_by(OSError(errno.EIO, "x")),
]
MISTAKES = [
    *(FileNotFoundError(errno.ENOENT, "x"), PermissionError(errno.EACCES, "x"), OSError("no image")),
    *(OSError(errno.EMFILE, "x"), OSError(errno.EROFS, "x"), BrokenPipeError(errno.EPIPE, "x")),
    *(socket.gaierror(socket.EAI_NONAME, "x"), URLError("unknown url type: data")),
    *(HTTPError("http://data", code, "x", Message(), None) for code in (401, 403, 404)),
    *(in_python("KeyError: 'a'"), in_python("OSError: [Errno 13] Permission denied: '/data/a'")),
    *(tensorflow_error("ResourceExhaustedError", "OOM"), tensorflow_error("AbortedError", "queue closed")),
    tensorflow_error("NotFoundError", "/data/a; No such file or directory [Op:IteratorGetNext]"),
    tensorflow_error("UnknownError", "Failed to get convolution algorithm; cuDNN has failed"),
    *(ValueError("x"), MemoryError(), caused_by(ValueError("x"))),
]


@pytest.mark.parametrize("error", AWAY, ids=repr)
def test_data_that_is_away_is_waited_for(error: Exception) -> None:
    explained = explain_failure(error, Task("worker", 0, {}), StopRequest())
    assert isinstance(explained, StorageUnavailable)
    assert type(error).__name__ in str(explained)


@pytest.mark.parametrize("error", MISTAKES, ids=repr)
def test_another_error_is_the_programs_own(error: Exception) -> None:
    assert explain_failure(error, Task("worker", 0, {}), StopRequest()) is None


def test_a_chief_loses_its_server_even_with_one_worker() -> None:
    task = Task("chief", 0, {"chief": ("a:1",), "worker": ("b:1",), "ps": ("c:1",)})
    kind = type(tensorflow_error("UnavailableError", ""))
    lost = type("PSUnavailableError", (kind,), {"__module__": "tensorflow.python.distribute.coordinator"})

    explained = explain_failure(lost("/job:ps/replica:0/task:0: Socket closed"), task, StopRequest())

    assert isinstance(explained, PeerLost)
    assert "lost ps-0" in str(explained)


def test_a_peer_that_goes_while_all_are_asked_to_stop_is_no_failure() -> None:
    stop = StopRequest()
    stop._requested.set()

    explained = explain_failure(tensorflow_error("UnavailableError", "x"), ONE_OF_TWO, stop)

    assert isinstance(explained, Preempted)


def test_the_users_own_errors_stay_theirs() -> None:
    assert explain_failure(ValueError("mine"), ONE_OF_TWO, StopRequest()) is None


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (
            "Graph execution error:\nDetected at node x\nCollective ops is aborted by: Error reported from "
            "/job:worker/task:1: The following tasks are unhealthy (stopped sending heartbeats):\n"
            "/job:worker/replica:0/task:1\nThe tasks have crashed.",
            "worker-0 lost worker-1, which ended or can't be reached (TensorFlow: Error reported from "
            "/job:worker/task:1: The following tasks are unhealthy (stopped sending heartbeats): "
            "/job:worker/replica:0/task:1)",
        ),
        (
            "Collective ops is aborted by: Socket closed\nAdditional GRPC error information from "
            "remote target /job:worker/replica:0/task:1 while calling",
            "worker-0 lost worker-1, which ended or can't be reached (TensorFlow: Socket closed)",
        ),
        ("Socket closed", "worker-0 lost another worker, which ended or can't be reached"),
    ],
)
def test_the_lost_peer_is_named(message: str, sentence: str) -> None:
    explained = explain_failure(tensorflow_error("UnavailableError", message), ONE_OF_TWO, StopRequest())

    assert str(explained) == sentence


def test_a_failure_is_reported_with_the_line_of_the_users_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    progress = ProgressFile(None)
    install_edge(None, progress, StopRequest())
    with pytest.raises(ValueError, match="boom") as caught:
        exec(compile("\n\nraise ValueError('boom')", "/work/train.py", "exec"))  # noqa: S102
    trace = caught.tb.tb_next
    sys.excepthook(caught.type, caught.value, trace)
    assert progress.last.error == {"reason": "ValueError", "message": "train.py:3: ValueError: boom"}


def test_the_failure_of_a_forked_process_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    install_edge(ONE_OF_TWO, ProgressFile(tmp_path / "progress.json"), StopRequest())
    pid = os.fork()
    if pid == 0:
        sys.excepthook(ValueError, ValueError("boom"), None)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert not (tmp_path / "progress.json").exists()


def test_an_end_at_once_leaves_no_private_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "trainjob-private-other-1-x").mkdir()
    pid = os.fork()
    if pid == 0:
        tempfile.mkdtemp(prefix=private_name())
        exit_now(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert [path.name for path in tmp_path.iterdir()] == ["trainjob-private-other-1-x"]


def test_a_full_disk_is_named_by_the_output_where_the_error_has_no_file() -> None:
    error = OSError(errno.ENOSPC, "No space left on device")
    assert "/work/output" in str(explain_failure(error, ONE_OF_TWO, StopRequest(), Path("/work/output")))
