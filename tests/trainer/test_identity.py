"""Which saved training belongs to a call: by its place in the script, its model, and what goes into it."""

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from trainjob_trainer.checkpoint.snapshot import NamedArray
from trainjob_trainer.checkpoint.store import CheckpointStore
from trainjob_trainer.identity import (
    DATA,
    HELDOUT,
    Identity,
    SavedTraining,
    Site,
    Trainings,
    choose,
    digest,
    digest_of_arrays,
    find_site,
    followed,
    has_other_rows,
)

CALL = Identity("train.py:main", "ab", "Adam", 0, {"fold": "1", "data": "x"})
FOLD_2 = replace(CALL, particulars={"fold": "2", "data": "y"})
STAGE_2 = replace(CALL, site="train.py:main:9")
OTHER_DATA = replace(CALL, particulars={"fold": "1", "data": "z"})


def saved(*identities: Identity, taken: tuple[int, ...] = ()) -> list[SavedTraining]:
    return [SavedTraining(n, identity, n in taken) for n, identity in enumerate(identities, 1)]


@pytest.mark.parametrize(
    ("trainings", "call", "number"),
    [
        (saved(), CALL, None),
        (saved(CALL), CALL, 1),
        (saved(CALL, STAGE_2), STAGE_2, 2),  # stage 1 is skipped in this attempt
        (saved(CALL, FOLD_2), FOLD_2, 2),  # fold 1 is
        (saved(CALL, CALL), CALL, 1),
        (saved(CALL, CALL, taken=(1,)), CALL, 2),  # two calls that nothing distinguishes, in their order
        (saved(CALL, taken=(1,)), CALL, None),
        (saved(CALL), STAGE_2, None),  # stage 1 was commented out, and stage 2 had saved nothing
        (saved(CALL), replace(CALL, variables="cd"), None),  # another architecture
        (saved(CALL), replace(CALL, optimizer="SGD"), None),
        (saved(CALL), replace(CALL, epochs_before=3), None),
        (saved(CALL), OTHER_DATA, 1),  # the only one of its key: what is left of it may be trained
        (saved(CALL, FOLD_2), OTHER_DATA, None),  # one of several: nothing says which
        (saved(CALL, FOLD_2, taken=(1,)), OTHER_DATA, None),
    ],
)
def test_which_training_may_belong_to_a_call(
    trainings: list[SavedTraining], call: Identity, number: int | None
) -> None:
    found = choose(trainings, call)
    assert (found and found.number) == number


def test_an_evaluator_follows_the_call_with_its_loop_variables() -> None:
    mine = replace(CALL, particulars={"fold": "2", "data": "z"})
    one, two = both = saved(CALL, FOLD_2)
    assert followed(both, mine) == two
    assert followed([one], mine) == one, "no other"
    assert followed(saved(STAGE_2), mine) is None


@pytest.mark.parametrize(
    ("evaluators", "writers", "differ"),
    [
        ({DATA: "a", HELDOUT: "b"}, {DATA: "a", HELDOUT: "b"}, False),
        ({DATA: "a", HELDOUT: "b"}, {DATA: "a", HELDOUT: "c"}, True),
        ({DATA: "none of it", HELDOUT: "b"}, {DATA: "a", HELDOUT: "b"}, False),
        ({DATA: "a"}, {DATA: "a"}, False),  # validation_split
        ({DATA: "b"}, {DATA: "a"}, True),
        ({DATA: "a", HELDOUT: "b"}, {DATA: "a"}, False),  # the workers don't validate
        ({DATA: "c", HELDOUT: "b"}, {DATA: "a"}, True),
        ({}, {}, False),  # a loop of the script's own
    ],
)
def test_an_evaluator_knows_that_it_holds_out_other_rows(
    evaluators: dict[str, str], writers: dict[str, str], differ: bool
) -> None:
    assert has_other_rows(*(replace(CALL, particulars=one) for one in (evaluators, writers))) is differ


def sites(tmp_path: Path, source: str) -> list[Site]:
    """The places of a script's calls of `fit`, in their order."""
    found: list[Site] = []

    class Model:
        def fit(self) -> None:
            found.append(find_site(inspect.currentframe().f_back))  # type: ignore[union-attr]

    file = tmp_path / str(len(list(tmp_path.iterdir()))) / "train.py"
    file.parent.mkdir()
    file.write_text(source)
    exec(compile(source, str(file), "exec"), {"model": Model(), "__name__": "__main__"})  # noqa: S102 - our own
    return found


def own(site: Site) -> str:
    """Its name without the frames of the test."""
    return site.name[site.name.index("train.py") :]


def test_a_line_may_move_where_a_file_calls_fit_once(tmp_path: Path) -> None:
    (one,) = sites(tmp_path, "def main():\n    model.fit()\nmain()\n")
    (moved,) = sites(tmp_path, "import os\n\ndef main():\n    model.fit()\nmain()\n")
    assert own(one) == own(moved) == "train.py:<module> > train.py:main"


def test_two_calls_in_a_file_are_known_by_their_lines(tmp_path: Path) -> None:
    both = sites(tmp_path, "model.fit()\nmodel.fit()\n")
    (second,) = sites(tmp_path, "# model.fit()\nmodel.fit()\n")
    assert [own(one) for one in both] == ["train.py:<module>:1", "train.py:<module>:2"]
    assert own(second) == "train.py:<module>"


def test_a_function_that_is_called_twice_has_two_places(tmp_path: Path) -> None:
    both = sites(tmp_path, "def stage():\n    model.fit()\nstage()\nstage()\n")
    assert len({own(one) for one in both}) == 2


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("for fold in (1, 2):\n    model.fit()\n", [{"fold": "1"}, {"fold": "2"}]),
        ("for lr in [0.1, 0.01]:\n  if lr:\n    model.fit()\n", [{"lr": "0.1"}, {"lr": "0.01"}]),
        ("n = 0\nwhile n < 2:\n    n += 1\n    model.fit()\n", [{"n": "1"}, {"n": "2"}]),
        ("def run(units):\n    model.fit()\nrun(8)\nrun(16)\n", [{"units": "8"}, {"units": "16"}]),
        (
            "def run(u):\n    model.fit()\nfor k in (1, 2): run(k)\n",
            [{"u": "1", "k": "1"}, {"u": "2", "k": "2"}],
        ),
        ("[model.fit() for seed in (3, 4)]\n", [{"seed": "3"}, {"seed": "4"}]),
        ("list(map(lambda a: model.fit(), (5, 6)))\n", [{"a": "5"}, {"a": "6"}]),
        ("for i, (a, b) in enumerate([(1, 2)]):\n    model.fit()\n", [{"i": "0", "a": "1", "b": "2"}]),
        ("for shape in [(8, 8), object]:\n    model.fit()\n", [{"shape": "(8, 8)"}, {}]),
        ("for fold in (1, 2):\n    pass\nmodel.fit()\n", [{}]),
    ],
)
def test_loops_and_arguments_are_part_of_a_place(
    tmp_path: Path, source: str, expected: list[dict[str, str]]
) -> None:
    found = sites(tmp_path, source)
    names = {name for one in expected for name in one} | {"fold"}
    assert [{n: v for n, v in one.variables.items() if n in names} for one in found] == expected


def test_keras_counts_of_names_and_addresses_are_no_difference() -> None:
    assert digest({"name": "dense_1", "f": object()}) == digest({"name": "dense_12", "f": object()})
    assert digest({"units": 8}) != digest({"units": 16})


def test_arrays_are_known_by_their_rows() -> None:
    rows = np.arange(300.0).reshape(100, 3)
    assert digest_of_arrays([rows, None]) == digest_of_arrays([rows.copy(), None])
    assert digest_of_arrays([rows]) != digest_of_arrays([-rows])
    assert digest_of_arrays([rows]) != digest_of_arrays([rows[:99]])
    assert digest_of_arrays([iter([])]) == digest_of_arrays([iter([1])]), "only their kind is known"


def words(*letters: str) -> Any:
    return np.array([letter * 3 for letter in letters], dtype=object)  # other objects each time


class Table:
    """Stands in for a DataFrame: it has rows, and no single type."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows
        self.shape = rows.shape

    def __getitem__(self, part: slice) -> Any:
        return self._rows[part]


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (words("a", "b"), words("a", "b"), words("a", "c")),
        (Table(words("a")), Table(words("a")), Table(words("b"))),
        (tf.constant([1, 2]), tf.constant([1, 2]), tf.constant([1, 3])),
        *(
            (make([1, 2]), make([1, 2]), make([1, 3]))
            for make in (
                lambda rows: tf.data.Dataset.from_tensor_slices({"x": rows}).shuffle(2).batch(2).prefetch(1),
                lambda rows: tf.data.Dataset.zip(
                    tf.data.Dataset.range(2), tf.data.Dataset.from_tensors(rows)
                ),
                lambda rows: tf.data.TextLineDataset([f"{row}.csv" for row in rows]).batch(2),
                lambda rows: tf.data.TFRecordDataset([f"{row}.tfrecord" for row in rows]).repeat(),
            )
        ),
        (tf.data.Dataset.range(2), tf.data.Dataset.range(2), None),
    ],
)
def test_tables_and_pipelines_are_known_by_what_they_are_made_of(one: Any, same: Any, other: Any) -> None:
    assert digest_of_arrays([one]) == digest_of_arrays([same]) != digest_of_arrays([other])


def test_files_are_known_by_their_folders_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(folder: str, output: str) -> str:
        monkeypatch.setenv("TRAINJOB_OUTPUT_DIR", output)
        return digest_of_arrays([tf.data.TextLineDataset(f"{folder}/rows.csv")])

    assert of("/data/fold-1", "/output") != of("/data/fold-2", "/output")
    assert of("/output/data", "/output") == of("/output/evaluator/data", "/output/evaluator")
    assert of("/data", "/output") == of("/data", "/output/evaluator")
    assert of("/data", "") == of("/data", "/output")


@pytest.mark.parametrize(
    "odd",
    [
        "a text",
        3.0,
        np.float32(3),
        tf.ragged.constant([[1], [2, 3]]),
        tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3]])),
        tf.sparse.from_dense([[1, 0]]),
    ],
)
def test_data_of_any_kind_has_a_digest(odd: Any) -> None:
    assert digest_of_arrays([odd]) == digest_of_arrays([odd])


def groups() -> dict[str, list[Any]]:
    return {"model": [NamedArray("a", np.zeros(2, "float32"))]}


def test_each_training_has_a_folder_and_what_is_saved_is_found_again(tmp_path: Path) -> None:
    first = Trainings(CheckpointStore(tmp_path), None)
    assert first.find(CALL, None) is None
    assert first.begin(CALL) == 1
    first.store(1).save(4, 0, groups(), "uid")
    assert first.find(STAGE_2, None) is None
    assert first.begin(STAGE_2) == 2
    first.store(2).save(8, 0, groups(), "uid")
    (tmp_path / "model-03.keras").touch()  # a script's own
    (tmp_path / "model-7").touch()

    again = Trainings(CheckpointStore(tmp_path), None)
    found = again.find(STAGE_2, 8)
    assert found == SavedTraining(2, STAGE_2)
    assert [one.number for one in again.read()] == [1, 2]


def test_once_a_call_trains_from_the_beginning_later_ones_have_nothing_of_what_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for identity in (CALL, STAGE_2):
        trainings = Trainings(CheckpointStore(tmp_path), None)
        assert trainings.find(identity, None) is None
        trainings.store(trainings.begin(identity)).save(4, 0, groups(), "uid")

    again = Trainings(CheckpointStore(tmp_path), None)
    assert again.find(replace(CALL, optimizer="SGD"), None) is None
    assert again.begin(replace(CALL, optimizer="SGD")) == 3
    assert "train.py:main trains from the beginning" in capsys.readouterr().err
    assert again.find(STAGE_2, None) is None, "it follows from a training that was another one"


def test_a_folder_without_checkpoints_is_used_again(tmp_path: Path) -> None:
    trainings = Trainings(CheckpointStore(tmp_path), None)
    trainings.find(CALL, None)
    trainings.begin(CALL)
    again = Trainings(CheckpointStore(tmp_path), None)
    assert again.find(CALL, None) == SavedTraining(1, CALL)
