from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from support.trainer.disk import STALE, StillWaiting, fail_reads, impatient, system_error
from trainjob_trainer import CheckpointUnavailable, CheckpointUnreadable, OutputFinished
from trainjob_trainer.agent.ending import mark_finished
from trainjob_trainer.checkpoint.snapshot import NamedArray
from trainjob_trainer.checkpoint.store import CheckpointStore, FinalMarker
from trainjob_trainer.errors import StorageUnavailable
from trainjob_trainer.reporting.progress import ProgressFile
from trainjob_trainer.resume import (
    ResumePlan,
    choose_start,
    describe_differences,
    end_if_finished,
    plan_of_loop,
    read_agreed,
    refuse_finished,
    refuse_lost,
    settings_in_force,
    settings_of,
)

GROUPS = {"model": [NamedArray("a", np.zeros(2, "float32"))]}


OVER = "start over with --fresh"


def store_with(folder: Path, *steps: int, final: tuple[Any, ...] | None = None) -> CheckpointStore:
    store = CheckpointStore(folder / "checkpoints")
    for step in steps:
        store.save(step, 0, GROUPS, "old")
    if final:
        store.mark_final(FinalMarker(*final))
    return store


@pytest.mark.parametrize(
    ("steps", "final", "total", "plan", "start"),
    [
        ((), None, 10, ResumePlan.TRAIN, 0),
        ((2, 4), None, 10, ResumePlan.TRAIN, 4),
        ((4, 10), (10, "old"), 20, ResumePlan.TRAIN, 10),
        ((10,), (10, "old"), 10, ResumePlan.FINISHED, 10),
        ((10,), (10, "old"), 5, ResumePlan.FINISHED, 10),
        ((10,), (10, "mine"), 10, ResumePlan.SKIP, 10),
        ((10, 20), (10, "old", 20, 40), 40, ResumePlan.FINISHED, 20),
        ((10, 20), (10, "old", 20, 40), 41, ResumePlan.TRAIN, 20),
    ],
)
def test_where_to_start(
    tmp_path: Path,
    steps: tuple[int, ...],
    final: tuple[Any, ...] | None,
    total: int,
    plan: ResumePlan,
    start: int,
) -> None:
    store = store_with(tmp_path, *steps, final=final)
    assert (plan_of_loop(store, total, "mine"), choose_start(store)) == (plan, start)


def test_without_a_job_a_finished_output_is_always_another_trainings(tmp_path: Path) -> None:
    assert plan_of_loop(store_with(tmp_path, 3, final=(3, "")), 3, "") is ResumePlan.FINISHED


@pytest.mark.parametrize(("total", "plan"), [(3, ResumePlan.SKIP), (4, ResumePlan.TRAIN)])
def test_a_loop_that_has_ended_takes_no_step_twice(tmp_path: Path, total: int, plan: ResumePlan) -> None:
    store = store_with(tmp_path, 3)
    store.mark_ended(FinalMarker(3, "mine"))  # what follows it in the script has failed
    assert plan_of_loop(store, total, "mine") is plan


def test_only_the_same_job_has_finished_before(tmp_path: Path) -> None:
    store = store_with(tmp_path, 3, final=(3, "mine"))

    progress = ProgressFile(None)
    end_if_finished(store, "other", progress)
    with pytest.raises(SystemExit) as ended:
        end_if_finished(store, "mine", progress)
    assert (ended.value.code, progress.last.state, progress.last.step) == (0, "finished", 3)


def test_a_finished_output_is_refused_with_what_to_do(tmp_path: Path) -> None:
    store, asked = store_with(tmp_path, 3, final=(3, "old")), "only 3 steps are requested: request more"

    with pytest.raises(
        OutputFinished,
        match=f"{tmp_path} holds .* finished at step 3.*, and only 3 steps.* more to continue it, or "
        ".*--fresh",
    ):
        refuse_finished(ResumePlan.FINISHED, store, asked, OVER, ProgressFile(None))
    for plan in (ResumePlan.TRAIN, ResumePlan.SKIP):
        refuse_finished(plan, store, asked, OVER, ProgressFile(None))


@pytest.mark.parametrize(
    ("written", "own", "total", "plan"),
    [
        ("a1", "a1", 3, ResumePlan.ALREADY_FINISHED),
        ("a1", "a1", 4, ResumePlan.TRAIN),  # more steps are asked for, such as by a changed script
        ("a1", "b2", 3, ResumePlan.FINISHED),
        ("", "", 3, ResumePlan.FINISHED),
        ("", "b2", 3, ResumePlan.FINISHED),
    ],
)
def test_a_job_with_the_spec_of_the_one_that_finished_has_nothing_to_do(
    tmp_path: Path, written: str, own: str, total: int, plan: ResumePlan
) -> None:
    store = store_with(tmp_path, 3)
    env = {"TRAINJOB_OUTPUT_DIR": str(tmp_path), "TRAINJOB_CHECKPOINT_DIR": str(store.directory)}
    mark_finished({**env, "TRAINJOB_UID": "old", "TRAINJOB_SPEC": written}, "1.1", 3)

    assert plan_of_loop(store, total, "mine", own) is plan
    if plan is ResumePlan.ALREADY_FINISHED:
        progress = ProgressFile(None)
        with pytest.raises(SystemExit) as ended:
            refuse_finished(plan, store, "3 steps", OVER, progress)
        last = progress.last
        assert (ended.value.code, last.state, last.step, last.already_finished) == (0, "finished", 3, True)
    end_if_finished(store, "mine", ProgressFile(None))


@pytest.mark.parametrize(
    ("damaged", "chosen", "told"),
    [
        ((), 6, ""),
        ((6,), 4, "the checkpoint of step 6 is damaged and set aside: training continues from step 4"),
        ((4, 6), 2, "step 4, 6 is damaged and set aside: training continues from step 2"),
        ((2, 4, 6), 0, "set aside: training continues from the beginning, since there is no other"),
    ],
)
@pytest.mark.filterwarnings("ignore:damaged checkpoint")
def test_a_damaged_checkpoint_is_chosen_by_nobody(
    tmp_path: Path, damaged: tuple[int, ...], chosen: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = store_with(tmp_path, 2, 4, 6)
    for step in damaged:
        (store.at(step).path / "variables.data-00000-of-00001").write_bytes(b"torn")

    assert choose_start(store) == chosen

    assert store.steps() == [step for step in (2, 4, 6) if step not in damaged]
    assert told in capsys.readouterr().err
    for step in (8, 10, 12):
        assert len(list(store.directory.glob("damaged-*"))) == len(damaged)
        store.save(step, 0, GROUPS, "old")
    assert not list(store.directory.glob("damaged-*"))


def test_a_worker_waits_for_what_the_writer_sees(tmp_path: Path) -> None:
    store, naps = CheckpointStore(tmp_path), []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            store.save(4, 0, GROUPS, "uid")

    checkpoint, host = read_agreed(store, 4, 30.0, sleep)

    assert (checkpoint.step, len(naps)) == (4, 3)
    assert set(host) == {"model"}
    with pytest.raises(CheckpointUnreadable):
        read_agreed(store, 5, 1.0, naps.append)


def no_sleep(_: float) -> None:
    pass


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_read_error_of_a_moment_costs_no_checkpoint(tmp_path: Path) -> None:
    """At each reading operation that a start is made of."""
    store = store_with(tmp_path / "counted", 1000, 2000, 3000)
    counted = fail_reads(STALE, 0, count=0)
    choose_start(CheckpointStore(store.directory, files=counted))
    assert counted.seen > 5
    for at in range(counted.seen):
        folder = store_with(tmp_path / str(at), 1000, 2000, 3000).directory
        store = CheckpointStore(folder, files=fail_reads(STALE, at, count=1), sleep=no_sleep)

        start = choose_start(store)
        store.save(start + 100, 0, GROUPS, "old")

        assert (at, start, store.steps()) == (at, 3000, [2000, 3000, 3100])


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        *(
            (system_error(number), True)
            for number in (errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.ENOSPC)
        ),
        *((system_error(number), False) for number in (errno.EMFILE, errno.EACCES)),
        (tf.errors.UnknownError(None, None, "variables.data-00000-of-00001; Input/output error"), True),
        (tf.errors.FailedPreconditionError(None, None, "x; Transport endpoint is not connected"), True),
        (tf.errors.NotFoundError(None, None, "Failed to find any matching files for variables"), False),
    ],
    ids=lambda error: getattr(error, "strerror", None) or type(error).__name__,
)
def test_a_folder_that_cannot_be_read_is_not_an_empty_one(
    tmp_path: Path, error: Exception, waits: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same, with an error that stays."""
    store_with(tmp_path, 1000, 2000, 3000)
    before, naps = contents(tmp_path), []
    by_tensorflow = isinstance(error, tf.errors.OpError)
    for at in range(1 if by_tensorflow else 10):
        files = fail_reads(error, at, only="read_tensors" if by_tensorflow else None)
        patience = impatient()
        store = CheckpointStore(
            tmp_path / "checkpoints",
            files=files,
            sleep=lambda seconds, patience=patience: (naps.append(seconds), patience(seconds))[0],
        )

        with pytest.raises(StillWaiting if waits else CheckpointUnavailable) as ended:
            choose_start(store)

        said = capsys.readouterr().err + str(ended.value)
        assert re.search(r"cannot read .*checkpoints.*: ", said)
        assert ("waiting for storage: " in said) is waits
        assert contents(tmp_path) == before
    assert (
        naps[:8]
        == ([0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0] if waits else [0.1, 0.3, 1.0] * 3)[: len(naps[:8])]
    )


def test_a_marker_that_cannot_be_read_is_not_an_absent_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_with(tmp_path, 3, final=(3, "mine"))
    for look in (
        lambda store: end_if_finished(store, "mine", ProgressFile(None)),
        lambda store: plan_of_loop(store, 3, "mine"),
    ):
        folder = tmp_path / "checkpoints"
        with pytest.raises(StillWaiting):
            look(CheckpointStore(folder, files=fail_reads(STALE, 0), sleep=impatient()))
        assert re.search(r"cannot read .*final.json: Stale file handle", capsys.readouterr().err)


def test_a_later_format_is_no_damage(tmp_path: Path) -> None:
    store = store_with(tmp_path, 1, 2)
    manifest = store.at(2).path / "manifest.json"
    later = {**json.loads(manifest.read_text()), "format": 2, "files": "described in another way"}
    del later["crc32"]
    manifest.write_text(
        json.dumps({**later, "crc32": zlib.crc32(json.dumps(later, sort_keys=True).encode())})
    )

    with pytest.raises(
        CheckpointUnavailable, match=r"step-00000002 has been written by a later version .*format 2"
    ):
        choose_start(store)

    assert store.steps() == [1, 2]


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to("variables.index"),
        lambda path: path.mkdir(),
        lambda path: path.write_bytes(b" " * (256 << 20) + b"{}"),
        lambda path: path.write_text("[" * 200_000),
    ],
    ids=["fifo", "link to a device", "link", "folder", "too large", "too deep"],
)
@pytest.mark.filterwarnings("ignore:damaged checkpoint")
def test_a_manifest_that_is_none_is_damage_and_nobody_waits_for_it(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    store = store_with(tmp_path, 1, 2)
    manifest = store.at(2).path / "manifest.json"
    manifest.unlink()
    make(manifest)

    assert choose_start(store) == 1
    assert store.known_steps() == {1, 2}


@pytest.mark.parametrize(
    ("reported", "found", "known", "lost"),
    [
        (None, 0, (), False),
        (0, 0, (), False),
        (3000, 0, (), True),
        (3000, 2000, (1000, 2000), True),
        (3000, 3000, (3000,), False),
        (3000, 4000, (4000,), False),  # it was dropped, as the oldest
        (3000, 2000, (2000, 3000), False),  # it is damaged
        (3000, 2000, (2000, 4000), True),  # what is damaged isn't what was reported
        (900, 100, (100, 900), False),  # it is another model's of the script
    ],
)
def test_what_was_reported_has_to_be_there(
    reported: int | None, found: int, known: tuple[int, ...], lost: bool
) -> None:
    store: Any = SimpleNamespace(known_steps=lambda: set(known), directory=Path("checkpoints"))
    with pytest.raises(StorageUnavailable) if lost else contextlib.nullcontext():
        refuse_lost(store, found, reported)


def test_a_start_behind_what_was_reported_is_refused(tmp_path: Path) -> None:
    store = store_with(tmp_path)
    with pytest.raises(
        StorageUnavailable, match="the checkpoint of step 3000 was reported, but none is found"
    ):
        choose_start(store, 3000)
    store_with(tmp_path, 1000, 2000)
    before = contents(tmp_path)

    with pytest.raises(
        StorageUnavailable, match="3000 was reported, but the newest one found is of step 2000"
    ):
        choose_start(store, 3000)

    assert contents(tmp_path) == before
    (store.directory / "damaged-step-00003000").mkdir()
    assert choose_start(store, 3000) == 2000


def test_what_appears_after_the_choice_is_not_set_aside(tmp_path: Path) -> None:
    """As it does where a listing is late."""
    store = store_with(tmp_path, 1000, 2000, 3000)

    with pytest.raises(StorageUnavailable, match=r"step-00003000 didn't exist when training chose the step"):
        store.set_aside(2000)

    assert store.steps() == [1000, 2000, 3000]


WAS = {"learning_rate": 0.001, "beta_1": 0.9, "global_batch": 64, "nesterov": False, "seed": 1}


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (WAS, None),
        ({**WAS, "learning_rate": 0.0010000000474974513}, None),
        ({"learning_rate": 0.001}, None),  # what only one of them knows can't be compared
        (
            {**WAS, "learning_rate": 10.0},
            ["learning rate is 10 in the script and was 0.001", "the checkpoint's", OVER],
        ),
        ({**WAS, "learning_rate": "CosineDecay"}, ["learning rate is CosineDecay", "the script's"]),
        ({**WAS, "beta_1": 0.5}, ["beta 1 is 0.5 in the script and was 0.9", "the script's"]),
        ({**WAS, "global_batch": 32}, ["global batch is 32 in the script and was 64", "the script's"]),
        ({**WAS, "nesterov": True}, ["nesterov is True in the script and was False", "the script's"]),
        (
            {**WAS, "seed": 2},
            ["seed is 2 in the script and was 1", "order of examples follows the script's"],
        ),
    ],
)
def test_what_the_script_has_changed_since_its_checkpoint_is_said(now: dict, words: list[str] | None) -> None:
    lines = describe_differences(WAS, now, OVER)
    assert len(lines) == (words is not None)
    assert all(word in lines[0] for word in words or [])


def test_settings_are_the_optimizers_and_what_is_known_of_the_data() -> None:
    schedule = {"class_name": "CosineDecay", "config": {"initial_learning_rate": 0.1}}
    config = {"name": "adam", "learning_rate": schedule, "beta_1": 0.9, "clipnorm": None}
    optimizer = SimpleNamespace(get_config=lambda: config)
    assert settings_of(optimizer, global_batch=64, seed=None) == {
        "learning_rate": "CosineDecay",
        "beta_1": 0.9,
        "global_batch": 64,
    }
    assert settings_of(None, seed=3) == {"seed": 3}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ({**WAS, "learning_rate": 10.0, "beta_1": 0.5}, {**WAS, "beta_1": 0.5}),
        ({**WAS, "learning_rate": "CosineDecay"}, {**WAS, "learning_rate": "CosineDecay"}),
        ({"seed": 2}, {"seed": 2}),
    ],
)
def test_what_is_restored_stays_in_force_in_later_checkpoints(now: dict, expected: dict) -> None:
    assert settings_in_force(WAS, now) == expected


def test_settings_of_a_loss_scale_are_those_of_the_optimizer_within() -> None:
    inner = SimpleNamespace(get_config=lambda: {"name": "adam", "learning_rate": 0.1})
    outer = SimpleNamespace(get_config=lambda: {"name": "scale", "initial_scale": 8.0}, inner_optimizer=inner)
    assert settings_of(outer) == {"learning_rate": 0.1, "initial_scale": 8.0}


def test_an_optimizer_that_cannot_say_its_settings_has_none() -> None:
    def fail() -> None:
        raise NotImplementedError("must override get_config()")

    assert settings_of(SimpleNamespace(get_config=fail), seed=3) == {"seed": 3}


def test_older_checkpoints_have_no_settings() -> None:
    assert describe_differences({}, WAS, OVER) == []
