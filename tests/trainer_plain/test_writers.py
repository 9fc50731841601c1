"""What a replica reads at a path after it has saved there, and who has written that; without TensorFlow."""

import contextlib
import errno
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.trainer.plain import SCRIPTS, run_job
from trainjob_trainer import Fenced
from trainjob_trainer.keras import writers
from trainjob_trainer.keras.writers import Saves, forget_saves, written


class Replicas:
    """A writer and another replica, which run the same lines one after the other."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        file = folder / "checkpoints" / ".saves-1.jsonl"
        self.saves = {
            "worker-0": Saves(file),
            "worker-1": Saves(file),
            "evaluator-0": Saves(file, is_evaluator=True),
        }
        self._name = threading.local()
        monkeypatch.setattr(writers, "current_session", self._process)
        monkeypatch.setattr(writers, "_saves", lambda process: self.saves[process.name])
        monkeypatch.setattr(writers, "WAIT_SECONDS", 0.0)

    def _process(self) -> Any:
        name = self._name.value
        environment = SimpleNamespace(output_dir=self._folder)
        return SimpleNamespace(
            is_writer=name == "worker-0", name=name, claim_output=lambda: None, environment=environment
        )

    def run(self, name: str, save: Callable[[str], None]) -> None:
        self._name.value = name
        save(name)

    def all(self, save: Callable[[str], None], names: tuple[str, ...] = ("worker-0", "worker-1")) -> None:
        for name in names:
            self.run(name, save)


@pytest.fixture
def replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Replicas:
    return Replicas(tmp_path, monkeypatch)


def put(path: Path, content: str) -> None:
    with written(str(path)) as place:
        Path(place).write_text(content, encoding="utf-8")


def test_one_path_is_the_writers_file(replicas: Replicas, tmp_path: Path) -> None:
    for turn in "123":
        replicas.all(lambda name, turn=turn: put(tmp_path / "m.keras", name + turn))  # type: ignore[misc]
        assert (tmp_path / "m.keras").read_text() == f"worker-0{turn}"


def test_a_path_of_its_own_holds_its_own(replicas: Replicas, tmp_path: Path) -> None:
    for turn in "12":
        replicas.all(lambda name, turn=turn: put(tmp_path / name, name + turn))  # type: ignore[misc]
        assert [(tmp_path / name).read_text() for name in ("worker-0", "worker-1")] == [
            f"worker-0{turn}",
            f"worker-1{turn}",
        ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "worker-0", "worker-1"]


def test_the_same_path_on_another_disk_holds_its_own(replicas: Replicas, tmp_path: Path) -> None:
    path = tmp_path / "m.keras"

    def save(name: str) -> None:
        if name == "worker-1":
            path.write_text("on this disk", encoding="utf-8")
        put(path, name)

    for _ in range(2):
        replicas.all(save)
        assert path.read_text() == "worker-1"


def test_a_save_that_only_one_makes_is_its_own(
    replicas: Replicas, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def save(name: str) -> None:
        if name == "worker-0":
            put(tmp_path / "writers", name)
        else:
            put(tmp_path / "others", name)

    for _ in range(2):
        replicas.all(save)
    assert (tmp_path / "others").read_text() == "worker-1"
    assert capsys.readouterr().err.count("worker 0 has saved nothing at the same line") == 1


def test_lines_are_known_by_what_leads_to_them(replicas: Replicas, tmp_path: Path) -> None:
    def save(name: str) -> None:
        if name == "worker-0":
            put(tmp_path / "more", name)
        put(tmp_path / "m.keras", name)

    replicas.all(save)
    assert (tmp_path / "m.keras").read_text() == "worker-0"


def test_a_folder_with_what_it_holds(replicas: Replicas, tmp_path: Path) -> None:
    def save(name: str) -> None:
        with written(str(tmp_path / name / "export")) as place:
            (Path(place) / "variables").mkdir(parents=True)
            (Path(place) / "variables" / "data").write_text(name, encoding="utf-8")

    (tmp_path / "worker-0").mkdir()
    (tmp_path / "worker-1" / "export" / "variables").mkdir(parents=True)
    (tmp_path / "worker-1" / "export" / "variables" / "data").write_text("before", encoding="utf-8")
    replicas.all(save)
    assert (tmp_path / "worker-1" / "export" / "variables" / "data").read_text() == "worker-1"


def test_it_waits_until_the_writers_file_is_whole(replicas: Replicas, tmp_path: Path) -> None:
    path, has_begun, has_looked, order = tmp_path / "m.keras", threading.Event(), threading.Event(), []
    other, looks = replicas.saves["worker-1"], itertools.count(1)
    read = other._read

    def look() -> None:
        read()
        if next(looks) == 3:
            has_looked.set()

    other._read = look  # type: ignore[method-assign]

    def save(name: str) -> None:
        with written(str(path)) as place:
            Path(place).write_text(name, encoding="utf-8")
            if name == "worker-0":
                has_begun.set()
                has_looked.wait(60)
                Path(place).write_text("whole", encoding="utf-8")
                order.append(name)
        if name == "worker-1":
            order.append(path.read_text())

    threads = [threading.Thread(target=replicas.run, args=(name, save)) for name in ("worker-0", "worker-1")]
    threads[0].start()
    assert has_begun.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join(60)
    assert order == ["worker-0", "whole"]


def test_a_replica_of_an_earlier_start_replaces_nothing(replicas: Replicas, tmp_path: Path) -> None:
    replicas.all(lambda name: put(tmp_path / name, name))
    (tmp_path / "checkpoints" / ".saves-1.jsonl").unlink()
    with pytest.raises(Fenced):
        replicas.run("worker-1", lambda name: put(tmp_path / name, "late"))
    assert (tmp_path / "worker-1").read_text() == "worker-1"


def test_a_save_that_fails_on_all_counts_on_all(replicas: Replicas, tmp_path: Path) -> None:
    fails = {"worker-0", "worker-1"}

    def save(name: str) -> None:
        with contextlib.suppress(OSError), written(str(tmp_path / "m.keras")) as place:
            if name in fails:
                fails.discard(name)
                raise OSError("no space")
            Path(place).write_text(name, encoding="utf-8")

    for _ in range(2):
        replicas.all(save)
    assert (tmp_path / "m.keras").read_text() == "worker-0"


def test_where_the_writer_fails_there_is_nothing(replicas: Replicas, tmp_path: Path) -> None:
    def save(name: str) -> None:
        with contextlib.suppress(OSError), written(str(tmp_path / "m.keras")) as place:
            if name == "worker-0":
                raise OSError("no space")
            Path(place).write_text(name, encoding="utf-8")

    replicas.all(save)
    assert not (tmp_path / "m.keras").exists()


@pytest.mark.parametrize(("before", "after"), [("the writer's", "the writer's"), ("", "evaluator-0 2")])
def test_an_evaluator_leaves_what_is_there(
    before: str, after: str, replicas: Replicas, tmp_path: Path
) -> None:
    path = tmp_path / "m.keras"
    if before:
        path.write_text(before, encoding="utf-8")
    for turn in (1, 2):
        replicas.run("evaluator-0", lambda name, turn=turn: put(path, f"{name} {turn}"))  # type: ignore[misc]
    assert path.read_text() == after


def test_a_new_start_forgets_what_earlier_ones_have_saved(tmp_path: Path) -> None:
    for name in (".saves-1.jsonl", ".saves-2.jsonl", "step-00000001"):
        (tmp_path / name).touch()
    environment = SimpleNamespace(checkpoint_dir=tmp_path)
    for is_writer, left in ((False, 3), (True, 1)):
        forget_saves(SimpleNamespace(is_writer=is_writer, environment=environment))  # type: ignore[arg-type]
        assert len(list(tmp_path.iterdir())) == left


def test_a_folder_that_cannot_be_listed_now_ends_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".saves-1.jsonl").touch()
    stale = OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    monkeypatch.setattr(os, "scandir", lambda *_: (_ for _ in ()).throw(stale))
    environment = SimpleNamespace(checkpoint_dir=tmp_path)
    forget_saves(SimpleNamespace(is_writer=True, environment=environment))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "in_a_pod", "says"),
    [
        ("volume/m.keras", True, False),
        ("output/m.keras", True, False),
        ("own/m.keras", True, True),
        ("own/new/folder/m.keras", True, True),
        ("own/m.keras", False, False),
        ("gs://bucket/m.keras", True, False),
        ("code/m.keras", True, True),
        ("temporary/m.keras", True, False),
    ],
)
def test_what_goes_with_the_pod_is_said_once(
    path: str,
    in_a_pod: bool,
    says: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("output", "own", "code", "state", "temporary", "volume"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(writers, "_said", [])
    monkeypatch.setattr(writers.tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv(
        "TRAINJOB_STATE_DIR", str(tmp_path / "state") if path.startswith("code") else "/run/x/y"
    )
    root = str(tmp_path) if path.startswith("own") else "/proc"  # the container's disk is another one
    if in_a_pod:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    else:
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    process: Any = SimpleNamespace(environment=SimpleNamespace(output_dir=tmp_path / "output"))
    for _ in range(2):
        writers._say_if_it_goes(process, writers._whole(path), root)
    assert capsys.readouterr().err.count("save what has to stay in $TRAINJOB_OUTPUT_DIR") == says


def test_each_worker_reads_back_what_keras_has_written(tmp_path: Path) -> None:
    ended = run_job(SCRIPTS / "reads_back.py", tmp_path)
    lines = [line for line in ended["worker-1"].log.splitlines() if line.startswith("read ")]
    assert [replica.code for replica in ended.values()] == [0, 0], ended
    assert lines == [f"read {place} as saved" for place in ("shared", "shared", "own", "apart", "apart")], (
        ended
    )
    assert not list(tmp_path.glob("**/*.1.*"))
