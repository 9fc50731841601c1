"""`trainjob doctor` on this machine: one check for each thing that training needs, in bounded time."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlsplit

from trainjob.client.presenter import format_size
from trainjob.cluster.kube.config import InvalidAccess
from trainjob.cluster.local.machine import PortBook, find_gpus
from trainjob.core.wording import printable


class Verdict(StrEnum):
    """The result of one check."""

    OK = "ok"
    NOTE = "note"
    """Training works without it, or it can't be told."""
    PROBLEM = "problem"


OK, NOTE, PROBLEM = Verdict


@dataclass(frozen=True)
class Check:
    """One line of the answer: what was looked at, the result, what is there, and what to do, if anything."""

    subject: str
    verdict: Verdict
    found: str
    remedy: str = ""


# Looks, which may end without a result: a folder of a network that is away, a credential plugin or a driver
# may never answer.


@dataclass(frozen=True)
class Unknown:
    """A look without a result, and why, in one sentence."""

    why: str


Value = TypeVar("Value")
Found: TypeAlias = Value | Unknown

LOOK_SECONDS = 15.0


def bounded(look: Callable[[], Found[Value]], seconds: float = LOOK_SECONDS) -> Found[Value]:
    """Return what a look finds; Unknown after so many seconds, and for an OSError or an InvalidAccess.

    A look that doesn't end is left behind: its thread doesn't keep the process.
    """
    found: list[Found[Value]] = [Unknown(f"no answer within {seconds:g} s")]

    def run() -> None:
        try:
            found.insert(0, look())
        except OSError as error:
            found.insert(0, Unknown(error.strerror or str(error)))
        except InvalidAccess as error:
            found.insert(0, Unknown(str(error)))

    thread = threading.Thread(target=run, name="trainjob-doctor", daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0]


def run_program(command: Sequence[str], seconds: float) -> Found[str]:
    """Return what a program prints; Unknown if it fails, with its last line, or if it takes longer."""
    # Files: a pipe would be held open by what the program leaves behind.
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=printed, stderr=errors, start_new_session=True
            )
        except OSError as error:
            return Unknown(f"{command[0]}: {error.strerror}")
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return Unknown(f"no answer within {seconds:g} s")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)  # a program that waits for a driver can't be killed
        for file in (printed, errors):
            file.seek(0)
        lines = printable((errors if code else printed).read().decode(errors="replace")).strip()
        return Unknown(lines.splitlines()[-1] if lines else f"exit code {code}") if code else lines


def check_here(
    folder: Path, *, needed: bool, bucket: str | None = None, environ: Mapping[str, str] = os.environ
) -> list[Check]:
    """Return the checks of this machine; unless training here is `needed`, problems are notes.

    Runs would lie in the folder, which isn't created. A problem with the bucket of this address is one in any
    case.
    """
    trainer, requirements = None, list[str]()
    with suppress(PackageNotFoundError):
        trainer, requirements = version("trainjob-trainer"), requires("trainjob-trainer") or []
    python = [sys.executable, "-P"]
    tensorflow, gpus = look_for_tensorflow(python), bounded(lambda: find_gpus(environ))
    devices = len(gpus) if isinstance(gpus, tuple) else 0
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = run_program(query, LOOK_SECONDS) if gpus else ""
    checks = [
        check_python(platform.python_version(), str(metadata("trainjob")["Requires-Python"])),
        check_trainer(version("trainjob"), trainer),
        check_tensorflow(tensorflow, requirements),
        check_keras(tensorflow, requirements),
        check_gpus(tensorflow, devices, driver, is_choosing="CUDA_VISIBLE_DEVICES" in environ),
        check_ports(bounded(_find_ports)),
        check_disk(str(folder), bounded(lambda: _find_room(folder))),
    ]
    shown = [
        replace(check, verdict=NOTE) if check.verdict is PROBLEM and not needed else check
        for check in checks
        if check is not None
    ]
    if bucket:
        shown.append(check_bucket(bucket, name_store(bucket, environ), try_bucket(python, bucket)))
    return shown


def check_python(python: str, bounds: str) -> Check:
    """Whether this Python is one that trainjob is made for, such as `<3.14,>=3.11`."""
    found = f"{python} ({sys.executable})"
    if is_within(python, bounds):
        return Check("Python", OK, found)
    return Check("Python", PROBLEM, found, f"install trainjob with a Python {_in_words(bounds)}")


_INSTALL = "pip install 'trainjob-trainer[cpu]', or [gpu] for NVIDIA GPUs"


def check_trainer(own: str, trainer: str | None) -> Check:
    """Whether operator and trainer are there, of one version."""
    if trainer is None:
        return Check("trainjob", PROBLEM, f"{own}, without trainjob-trainer", _INSTALL)
    if trainer != own:
        found = f"{own}, with trainjob-trainer {trainer}"
        return Check("trainjob", NOTE, found, "install both of one version")
    return Check("trainjob", OK, own)


class TensorFlow(NamedTuple):
    """What a process says that has imported TensorFlow and Keras, in so many seconds.

    It was built for this version of CUDA (empty: for processors alone), and sees these GPUs.
    """

    version: str
    keras: str
    seconds: float
    cuda: str = ""
    gpus: Sequence[str] = ()


_IMPORT_SECONDS = 90.0
_ASK = """
import json, time
begin = time.perf_counter()
import tensorflow as tf
import keras
seconds = time.perf_counter() - begin
built = tf.sysconfig.get_build_info()
gpus = tf.config.list_physical_devices("GPU")
names = [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus]
cuda = built.get("cuda_version", "") if built.get("is_cuda_build") else ""
print(json.dumps([tf.__version__, keras.__version__, seconds, cuda, names]))
"""


def look_for_tensorflow(python: Sequence[str]) -> Found[TensorFlow] | None:
    """Have another process import TensorFlow; None if there is none."""
    if importlib.util.find_spec("tensorflow") is None:
        return None
    output = run_program([*python, "-c", _ASK], _IMPORT_SECONDS)
    if isinstance(output, Unknown):
        return output
    try:
        return TensorFlow(*json.loads(output.splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        return Unknown(f"unexpected output: {output[-100:]!r}")


def check_tensorflow(tensorflow: Found[TensorFlow] | None, requirements: Collection[str]) -> Check:
    """Whether TensorFlow can be imported, and is of a version that is tested.

    `requirements` are those of trainjob-trainer, as its metadata has them.
    """
    if tensorflow is None:
        return Check("TensorFlow", PROBLEM, "not installed in this Python", _INSTALL)
    if isinstance(tensorflow, Unknown):
        remedy = f"repair the installation, or begin with a new environment: {_INSTALL}"
        return Check("TensorFlow", PROBLEM, f"can't be imported: {tensorflow.why}", remedy)
    found = f"{tensorflow.version}, imported in {tensorflow.seconds:.1f} s"
    names = ("tensorflow", "tensorflow-cpu")
    return _check_tested("TensorFlow", found, tensorflow.version, names, requirements)


def check_keras(tensorflow: Found[TensorFlow] | None, requirements: Collection[str]) -> Check | None:
    """Whether Keras is of a version that is tested; None without TensorFlow."""
    if not isinstance(tensorflow, TensorFlow):
        return None
    keras = tensorflow.keras
    if keras.startswith("2."):
        remedy = f"unset TF_USE_LEGACY_KERAS and install Keras 3: {_INSTALL}"
        return Check("Keras", PROBLEM, f"{keras}: Keras 2 trains only in custom training loops", remedy)
    return _check_tested("Keras", keras, keras, ("keras",), requirements)


def _check_tested(
    subject: str, found: str, release: str, names: Collection[str], requirements: Collection[str]
) -> Check:
    bounds = next((text for text in requirements if re.split(r"[^\w-]", text, maxsplit=1)[0] in names), "")
    if is_within(release, bounds):
        return Check(subject, OK, found)
    tested = f"{found}; tested: {_in_words(bounds)}"
    return Check(subject, NOTE, tested, f"if training fails, {_INSTALL}")


def check_gpus(
    tensorflow: Found[TensorFlow] | None, devices: int, driver: Found[str], *, is_choosing: bool
) -> Check | None:
    """Whether TensorFlow sees the GPUs of this machine; None if neither is known.

    The caller may use so many devices, and is choosing where CUDA_VISIBLE_DEVICES is set. The version of the
    driver has a line for each GPU.
    """
    counted = f"{devices} NVIDIA GPU{'' if devices == 1 else 's'}"
    with_driver = f", driver {driver.partition(chr(10))[0]}" if isinstance(driver, str) and driver else ""
    if not isinstance(tensorflow, TensorFlow):
        return Check("GPUs", OK, f"{counted}{with_driver}") if devices else None
    built = f"TensorFlow for CUDA {tensorflow.cuda}" if tensorflow.cuda else "TensorFlow without CUDA"
    if tensorflow.gpus:
        return Check("GPUs", OK, f"{', '.join(tensorflow.gpus)} ({built}{with_driver})")
    if not devices:
        hidden = "none (CUDA_VISIBLE_DEVICES hides them)" if is_choosing else "none"
        return Check("GPUs", OK, f"{hidden}; training uses the processors ({built})")
    found = f"{counted}{with_driver}, and {built}"
    if not tensorflow.cuda:
        remedy = "pip install 'trainjob-trainer[gpu]' in an environment without tensorflow-cpu"
        return Check("GPUs", PROBLEM, found, remedy)
    if isinstance(driver, Unknown):
        remedy = "install or restart NVIDIA's driver: nvidia-smi must list the GPUs"
        return Check("GPUs", PROBLEM, f"{found} sees none; {driver.why}", remedy)
    remedy = "install CUDA's libraries: pip install 'tensorflow[and-cuda]'; its import names those missing"
    return Check("GPUs", PROBLEM, f"{found} sees none", remedy)


def _find_ports() -> int:
    book = PortBook()
    book.give(f"replica-{number}" for number in range(6))
    return 2 * len(book.ports)


def check_ports(ports: Found[int]) -> Check:
    """Whether replicas can listen on this machine."""
    if isinstance(ports, Unknown):
        remedy = "allow programs to listen on 127.0.0.1, or end some that do (ss -ltn lists them)"
        return Check("ports", PROBLEM, ports.why, remedy)
    return Check("ports", OK, f"{ports} free ones found between 15000 and 32000")


def _find_room(folder: Path) -> int:
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    with tempfile.NamedTemporaryFile(dir=there, prefix=".trainjob-"):
        return shutil.disk_usage(there).free


_LITTLE, _SCARCE = 10**9, 10**10


def check_disk(folder: str, free: Found[int]) -> Check:
    """Whether there is room for checkpoints, models and logs: so many bytes are free for this user."""
    if isinstance(free, Unknown):
        remedy = "make it writable, or choose another one: trainjob run --folder"
        return Check("disk", PROBLEM, f"{folder} can't be written: {free.why}", remedy)
    found = f"{format_size(free)} free for {folder}"
    if free >= _SCARCE:
        return Check("disk", OK, found)
    remedy = "free some space, or choose another disk: trainjob run --folder"
    return Check("disk", PROBLEM if free < _LITTLE else NOTE, found, remedy)


class BucketTrial(NamedTuple):
    """What the trainer's `checkpoint.bucket_trial` prints: `Outcome` there has the meanings."""

    step: str = ""
    why: str = ""
    said: str = ""
    left: str = ""


_BUCKET_SECONDS = 90.0


def try_bucket(python: Sequence[str], uri: str) -> Found[BucketTrial]:
    """Have the trainer's client write, list, read and delete an object there."""
    output = run_program([*python, "-m", "trainjob_trainer.checkpoint.bucket_trial", uri], _BUCKET_SECONDS)
    if isinstance(output, Unknown):
        return output
    try:
        return BucketTrial(**json.loads(output.splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        return Unknown(f"unexpected output: {output[-100:]!r}")


_OTHER_STORE = (
    "use a store whose conditional writes are right, such as S3, Google Cloud Storage or Azure Blob"
)
_AGAIN = f"try again; if it fails again, {_OTHER_STORE}"
_AWAY = "check network, endpoint and region, and try again"
_BUCKET_FAULTS = {
    "accepted": (
        "the store accepts a conditional write that it must refuse ({}), so two writers could not be told "
        "from each other",
        _OTHER_STORE,
    ),
    # A client that sends a request twice may be refused because of its first one.
    "refused": ("the store refuses a conditional write that it must accept ({})", _AGAIN),
    "stale": ("the store doesn't show at once what has changed ({})", _OTHER_STORE),
}
_BUCKET_REMEDIES = {
    "EACCES": "check this environment's credentials, what they may do there (read, write, list, delete), and "
    "this machine's clock",
    "EINVAL": "check the address, and the credentials, region and endpoint in this environment",
    "ENOPKG": "pip install 'trainjob-trainer[bucket]'",
}


def check_bucket(uri: str, store: str, trial: Found[BucketTrial]) -> Check:
    """Whether checkpoints can be in the bucket of this address, which is of this store, if that is known."""
    if isinstance(trial, Unknown):
        remedy = "check network, endpoint and credentials, and delete what is left there under .tmp-doctor-"
        return Check("bucket", PROBLEM, f"{uri}: {trial.why}", remedy)
    if not trial.step:
        return Check("bucket", OK, f"{uri}{store and f' ({store})'}: conditional writes are right")
    if trial.why in _BUCKET_FAULTS:
        fault, remedy = _BUCKET_FAULTS[trial.why]
        found = f"{uri}: {fault.format(trial.step)}"
    else:
        found = f"can't {trial.step}: {trial.said}"
        # To open it takes no request.
        other = _BUCKET_REMEDIES["EINVAL"] if trial.step == "open" else _AWAY
        remedy = _BUCKET_REMEDIES.get(trial.why, other)
        if trial.step in ("create", "replace") and trial.why != "EACCES":  # a plain write has succeeded
            remedy = _AGAIN
    return Check("bucket", PROBLEM, found + (f"; {trial.left} is left there" if trial.left else ""), remedy)


_STORES = {
    **dict.fromkeys(("s3", "s3a"), ("AWS", "Amazon S3")),
    "gs": ("GOOGLE", "Google Cloud Storage"),
    **dict.fromkeys(("az", "azure", "adl", "abfs", "abfss"), ("AZURE", "Azure Blob")),
}
_HOSTS = {
    ".amazonaws.com": "Amazon S3",
    ".r2.cloudflarestorage.com": "Cloudflare R2",
    ".blob.core.windows.net": "Azure Blob",
}


def name_store(uri: str, environ: Mapping[str, str]) -> str:
    """Return which store an address is of, if its scheme, its host or the endpoint says so."""
    parts = urlsplit(uri)
    prefix, name = _STORES.get(parts.scheme, ("", ""))
    endpoints = [
        value
        for variable, value in environ.items()
        if prefix and value and re.fullmatch(rf"{prefix}_(\w+_)?(ENDPOINT|EMULATOR)(_\w+)?", variable)
    ]
    if prefix and not endpoints:
        return name
    with suppress(ValueError):  # an endpoint that is no address
        hosts = {urlsplit(endpoint).hostname or "" for endpoint in endpoints or [uri]}
        return next((one for end, one in _HOSTS.items() if all(host.endswith(end) for host in hosts)), "")
    return ""


_BOUND = re.compile(r"(>=|<)\s*([0-9.]+)")


def is_within(release: str, bounds: str) -> bool:
    """Return whether a version is within bounds such as `<3.14,>=3.11`; a candidate counts as its release."""
    numbers = _numbers(release)
    known = _BOUND.findall(bounds.partition(";")[0])
    return bool(numbers) and all((numbers >= _numbers(b)) is (kind == ">=") for kind, b in known)


def _numbers(release: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", release)
    return tuple(map(int, found[0].split("."))) if found else ()


def _in_words(bounds: str) -> str:
    """Return `from 3.11 to below 3.14`."""
    known = dict(_BOUND.findall(bounds.partition(";")[0]))
    return f"from {known.get('>=')} to below {known.get('<')}"
