"""`Trainer`: a function, a script or a command as a job, here or in a cluster."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from trainjob.api import dump_yaml, parse
from trainjob.client import background
from trainjob.client.connection import ClusterOptions, connected
from trainjob.client.job import Job
from trainjob.client.problems import ClusterProblem
from trainjob.core.names import FUNCTION
from trainjob.core.script import (
    ScriptJob,
    build_job,
    build_smoke_test,
    name_from,
    parse_output,
    wants_evaluator,
)
from trainjob.core.wording import printable

if TYPE_CHECKING:
    from trainjob.client.submission import Packed

RUNS = Path("runs")
"""Where runs on this machine lie, below the working directory; `trainjob run` has the same."""

_SMOKE_IS_FRESH = "smoke=True always starts over, beside the job: leave out fresh=True"


class AsyncTrainer:
    """The asynchronous twins of a trainer's calls, as `trainer.aio`."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    async def run(self, *, fresh: bool = False, smoke: bool = False, new: bool = False) -> Job:
        """Train on this machine; arguments and errors are those of `Trainer.run`."""
        return await (await self._start(fresh=fresh, smoke=smoke, new=new)).aio.wait()

    async def submit(self, *, fresh: bool = False, smoke: bool = False, new: bool = False) -> Job:
        """Create the job in a cluster, unless it is there already, and return it at once.

        Args:
            fresh: start over in a new folder of the output; a finished job of that name is replaced, and its
                output stays.
            new: create what differs from the job of that name as another job, such as `train-2`; without it
                the variable TRAINJOB_NEW decides.
            smoke: try everything once, as in `run`, as the job NAME-smoke-XXXX, which is deleted an hour
                after its end; its output stays.

        Raises:
            ClusterProblem: the cluster refused it, or has another job of that name.
            ValueError: a cluster needs more than was given, or the code can't travel.
        """
        from trainjob.client.submission import AnotherJob, start_over, submit  # noqa: PLC0415 - not for runs here
        from trainjob.client.view import Outcome, read_job  # noqa: PLC0415 - as above

        trainer = self._trainer
        if fresh and smoke:
            raise ValueError(_SMOKE_IS_FRESH)
        manifest, packed = trainer._pack()
        if fresh:
            manifest = start_over(manifest)
        if smoke:
            manifest = build_smoke_test(manifest, parse(manifest).spec, secrets.token_hex(2))
        new = new or os.environ.get("TRAINJOB_NEW", "").lower() in ("1", "true", "yes", "on")
        async with connected(trainer._where) as cluster:
            try:
                job, _ = await submit(cluster.api, cluster.namespace, manifest, packed, new=new, fresh=fresh)
            except AnotherJob as other:
                how = f"Job.attach({other.job.name!r}).delete(), then submit(fresh=True)"
                how = "submit(fresh=True)" if other.job.is_over and not fresh else how
                raise ClusterProblem(
                    f"{other}; start over: {how}; train it separately: name=..., or submit(new=True)"
                ) from other
        view = read_job(job)
        if view.outcome is Outcome.FAILED:
            raise ClusterProblem(
                f"{view.name} has failed before: Job.attach({view.name!r}) has the reason; delete() it, and "
                "submit it again"
            )
        return Job(view, trainer._where)

    async def _start(self, *, fresh: bool, smoke: bool, new: bool) -> Job:
        """Start a run as a process of its own, which outlives a notebook's kernel, until it has a record."""
        from trainjob.client.run_record import read_run_folder  # noqa: PLC0415 - not for clusters

        if fresh and smoke:
            raise ValueError(_SMOKE_IS_FRESH)
        options = ["--plain", "--folder", str(RUNS)]
        flags = {"--fresh": fresh, "--smoke": smoke, "--new": new}
        options += [name for name, is_set in flags.items() if is_set]
        # Its output would fill a pipe without a reader; a file without a name is gone with the process.
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
        with log:
            process, answer = await asyncio.to_thread(_spawn, options, self._trainer._local_manifest(), log)

            def read() -> bytes:
                with answer:
                    return answer.read()  # ends with the process at the latest

            try:
                folder = await asyncio.to_thread(read)
            except asyncio.CancelledError:
                process.terminate()  # Ctrl-C, before anybody knows of it
                raise
            run = read_run_folder(Path(os.fsdecode(folder))) if folder else None
            if run is None:
                log.seek(0)
                words = printable(log.read().decode(errors="replace")).strip()
                raise ClusterProblem(words or f"{self._trainer.name} can't run here")
        if run.record.continued and run.record.pid == process.pid:
            print(f"trainjob: {run.name}: {printable(run.record.continued)}", file=sys.stderr)
        return Job(run.view, ClusterOptions())


class Trainer:
    """Something to train, and with what.

        def train(epochs):
            ...                                     # as in a script: build a model, call fit

        Trainer(train, kwargs={"epochs": 5}, workers=2).run()
        job = Trainer("train.py", workers=4, image="...", output="claim:training").submit()

    A function travels with the helpers, constants and modules of your project that it uses. Installed
    packages don't travel: the image has them. What it returns comes back by `job.result()` if JSON has it;
    anything else it writes into the folder `os.environ["TRAINJOB_OUTPUT_DIR"]`.

    Args:
        train: a function, or the path of a Python script below the working directory.
        kwargs: arguments of the function.
        args: arguments of the script, or of the command.
        command: a program instead of `train`, such as `["python", "-m", "package"]`.
        workers: how many replicas train.
        evaluator: whether one more replica scores each checkpoint; None for one, unless `train` imports
            Horovod.
        gpus: of each worker.
        image: the container's, with TensorFlow and your packages; needed in a cluster.
        output: where checkpoints, logs and the model go in a cluster: `claim:NAME`, `size:10Gi`,
            `nfs:SERVER:/FOLDER` or `s3://BUCKET/FOLDER`.
        code: files and folders below the working directory that travel; a script travels anyway, with the
            Python files beside it.
        queue: the Kueue queue that admits the job.
        name: of the job; without it that of the function or the script.
        env: variables of the processes.
        cpu: processors that each replica requests, as Kubernetes writes them.
        memory: what each replica requests and may use, such as `8Gi`.
        namespace, context, kubeconfig: the cluster; without them those of kubectl.

    Raises:
        ValueError: the arguments don't fit together; the message says which.
    """

    def __init__(
        self,
        train: Callable[..., Any] | str | Path | None = None,
        *,
        kwargs: Mapping[str, Any] | None = None,
        args: Sequence[object] = (),
        command: Sequence[str] = (),
        workers: int = 1,
        evaluator: bool | None = None,
        gpus: int = 0,
        image: str | None = None,
        output: str | None = None,
        code: Sequence[str | Path] = (),
        queue: str | None = None,
        name: str | None = None,
        env: Mapping[str, object] | None = None,
        cpu: str | None = None,
        memory: str | None = None,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | None = None,
    ) -> None:
        self._train, self._kwargs, self._command = train, dict(kwargs or {}), tuple(command)
        self._script = Path(train) if isinstance(train, str | Path) else None
        self._check(command, args)
        self._where = ClusterOptions(namespace, context, kubeconfig)
        self._job = ScriptJob(
            name=name or self._find_name(),
            command=self._command or ("python", str(self._script)),
            args=tuple(map(str, args)),
            workers=workers,
            evaluator=wants_evaluator(evaluator, self._source()),
            gpus=gpus,
            image=image,
            output=parse_output(output) if output is not None else None,
            queue=queue,
            env={key: str(value) for key, value in (env or {}).items()},
            cpu=cpu,
            memory=memory,
            code=[Path(path) for path in (code if not isinstance(code, str | Path) else [code])],
        )
        self.aio = AsyncTrainer(self)
        """The asynchronous twins: `await trainer.aio.run()`."""

    @property
    def name(self) -> str:
        """The job's name."""
        return self._job.name

    def manifest(self) -> dict[str, Any]:
        """Return the TrainJob that it stands for in a cluster; only `submit` also creates its code."""
        return self._pack()[0]

    def run(self, *, fresh: bool = False, smoke: bool = False, new: bool = False) -> Job:
        """Train on this machine: every replica is a process, and no cluster is needed.

        Returns the finished job. If the same has trained before, it continues from the last checkpoint; if it
        has finished, it is returned at once. Another function, or other arguments, under the same name are
        refused. A notebook shows the job meanwhile; Ctrl-C ends the wait, not the job.

        Args:
            fresh: start over; the earlier output is kept beside the new one.
            new: train what differs from the job's runs as a run of its own, such as `train.2`; without it the
                variable TRAINJOB_NEW decides.
            smoke: try everything once, as the job NAME-smoke: one step, a checkpoint, one batch of each
                evaluation, the export.

        Raises:
            JobFailed: it failed; with the first failure.
            ClusterProblem: it can't run here, or the job's run was asked for something else; the message says
                why.
        """
        return background.run(self.aio._start(fresh=fresh, smoke=smoke, new=new)).wait()

    submit = background.blocking(AsyncTrainer.submit)

    def __repr__(self) -> str:
        return f"Trainer({self.name!r}, workers={self._job.workers})"

    def _check(self, command: Sequence[str], args: Sequence[object]) -> None:
        train, kwargs = self._train, self._kwargs
        if (train is None) == (not self._command):
            raise ValueError("name one thing to train: a function, a script's path, or command=[...]")
        if isinstance(command, str) or isinstance(args, str):
            raise ValueError("command= and args= are lists of words, such as ['--epochs', '5']")  # noqa: TRY004
        if self._script is None and train is not None:
            if not callable(train):
                raise ValueError(f"train is a {type(train).__qualname__}: pass a function or a script's path")
            if args:
                raise ValueError("args= are for a script; a function takes kwargs={...}")
        elif kwargs:
            raise ValueError("kwargs= are for a function; a script takes args=[...]")
        if self._script is not None and not self._script.is_file():
            raise ValueError(f"there is no script {self._script} below {Path.cwd()}")

    def _find_name(self) -> str:
        if self._script is not None:
            return name_from(str(self._script))
        if self._command:
            return name_from(self._command[-1])
        inner = getattr(self._train, "func", self._train)
        return name_from(getattr(inner, "__name__", type(inner).__name__).replace("<lambda>", "function"))

    def _source(self) -> str:
        """Return the text of the script or of the function's module; in a notebook that of the function."""
        if self._script is not None:
            return self._script.read_text(errors="replace")
        inner = getattr(self._train, "func", self._train)
        parts: list[Any] = [inspect.getmodule(inner), inner]
        for part in parts:
            with suppress(OSError, TypeError):
                return inspect.getsource(part)
        return ""

    def _pack(self) -> tuple[dict[str, Any], Packed | None]:
        """Return the manifest for a cluster, and the code that travels with it."""
        job = self._job
        if not job.image:
            raise ValueError("image= is missing: name the image that has TensorFlow and your packages")
        if job.output is None:
            raise ValueError("output= is missing: name where results go, such as 'claim:training'")
        from trainjob.client.submission import collect, pack, with_code  # noqa: PLC0415 - not for runs here

        files = dict[str, bytes]()
        if job.code or self._script is not None:
            files = collect(Path.cwd(), job.code, script=self._script, skip=[RUNS]).files
        function = self._pack_function()
        packed = pack(files | function) if files or function else None
        manifest = self._build(function, files=pack(files).digest if files and function else "")
        return (with_code(manifest, packed) if packed is not None else manifest), packed

    def _pack_function(self) -> dict[str, bytes]:
        """Return the files of the function; none of a script or a command."""
        if self._script is not None or self._command:
            return {}
        from trainjob.client.function import pack_function  # noqa: PLC0415 - not for scripts

        assert callable(self._train)  # noqa: S101 - `_check` has seen to it
        return pack_function(self._train, self._kwargs, as_files=self._job.code)

    def _local_manifest(self) -> dict[str, Any]:
        """Return the job for this machine, where scripts and modules lie already; a function is laid out."""
        function = self._pack_function()
        folder = lay_out(function, RUNS.absolute() / ".functions", self.name) if function else Path()
        return self._build(function, folder)

    def _build(self, function: Mapping[str, bytes], folder: Path = Path(), files: str = "") -> dict[str, Any]:
        """Return the job; that of a function says what the function is, since its bytes differ each time."""
        if not function:
            return build_job(self._job)
        from trainjob.client.function import COMMAND  # noqa: PLC0415 - not for scripts

        *words, header = COMMAND
        identity = {**json.loads(function[header])["identity"], "files": files}
        manifest = build_job(replace(self._job, command=(*words, str(folder / header))))
        manifest["metadata"]["annotations"] = {FUNCTION: json.dumps(identity, sort_keys=True)}
        return manifest


# A run on this machine: a process that does what `trainjob run` does.


_MOST_FUNCTIONS = 10


def _spawn(
    options: Sequence[str], manifest: Mapping[str, Any], log: IO[bytes]
) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """Start the process, and return it with the pipe that it writes the run's folder into."""
    answer, pipe = os.pipe()
    command = [sys.executable, "-m", "trainjob", "run", "-", *options, "--caller", str(pipe)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        start_new_session=True,
        env=dict(os.environ),
        pass_fds=[pipe],
    )
    os.close(pipe)
    # Otherwise it stays as a zombie after its end, and Python warns about it.
    threading.Thread(target=process.wait, name="trainjob-run", daemon=True).start()
    assert process.stdin is not None  # noqa: S101 - a pipe
    with suppress(BrokenPipeError), process.stdin as stdin:  # a program that has ended has said why
        stdin.write(dump_yaml(dict(manifest)).encode())
    return process, os.fdopen(answer, "rb")


def lay_out(files: Mapping[str, bytes], parent: Path, name: str) -> Path:
    """Write the files of a function into a folder named by their content, and return it.

    A run may read them again when it restarts, so they never change. The last ten of a job are kept.
    """
    digest = hashlib.sha256(b"".join(files[path] for path in sorted(files))).hexdigest()
    folder = parent / f"{name}-{digest[:12]}"
    parent.mkdir(parents=True, exist_ok=True)
    if not folder.is_dir():
        unfinished = Path(tempfile.mkdtemp(prefix=".", dir=parent))
        for path, content in files.items():
            (unfinished / path).parent.mkdir(parents=True, exist_ok=True)
            (unfinished / path).write_bytes(content)
        with suppress(OSError):  # another call has just made the same folder
            unfinished.rename(folder)
    os.utime(folder)
    latest = sorted(parent.glob(f"{name}-" + 12 * "[0-9a-f]"), key=lambda each: each.stat().st_mtime)
    for old in latest[:-_MOST_FUNCTIONS]:
        shutil.rmtree(old, ignore_errors=True)
    return folder
