"""Keras's settings of the optimizer, of precision and of XLA give the numbers of one process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.trainer.processes import WorkerGroup

pytestmark = pytest.mark.nightly

SCRIPT = Path(__file__).parent / "scripts" / "optimizer_settings.py"
CLOSE = {"float16": 1e-2, "bfloat16": 1e-2}
"""Differences of weights of about 1 that eight or eleven bits of a number allow; 1e-6 for the others."""
GUARD_SECONDS = 500
NUMBERS = (
    "adam",
    "clipnorm",
    "global clipnorm, embedding",
    "accumulation, clipped",
    "bfloat16",
    "compiled",
)
"""What the matrix of forms has of them by themselves is not here again."""
LIMITS = (
    "float16",
    "loss scale",
    "loss scale, own step",
    "loss scale, compiled",
    "skip",
    "skip, normed",
    "skip, loss scale",
    "skip, accumulation",
    "stop",
    "stop, loss scale",
    "ignore",
)

OWN_STATE = "own state"
"""Moving statistics, random states and masks are each worker's own: no weights have come apart by that."""

ON_DEVICES = (
    OWN_STATE,
    "adam",
    "clipnorm",
    "accumulation, clipped",
    "compiled",
    "float16",
    "loss scale, own step",
    "skip",
    "skip, normed",
    "skip, accumulation",
)
"""What two devices of one process have of their own: several replicas are traced, and branches meet."""

Results = dict[str, Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Results]]:
    """By what trains: one process, two devices of it, or two workers; by replica and case."""
    folder = tmp_path_factory.mktemp("seen")
    alone = {"one process": (*NUMBERS, *LIMITS), "two devices": ON_DEVICES}
    together = {"two workers": (*NUMBERS, *LIMITS, OWN_STATE)}
    with _gang(folder, 1, alone) as one, _gang(folder, 2, together) as two:  # none waits for the other
        for group in (one, two):
            assert set(group.wait(GUARD_SECONDS).values()) == {0}, group.report
    return {
        who: {file.stem: dict(np.load(file)) for file in (folder / who).glob("*.npz")}
        for who in (*alone, *together)
    }


def _gang(folder: Path, workers: int, cases: Mapping[str, Sequence[str]]) -> WorkerGroup:
    output = folder / f"output-of-{workers}"
    return WorkerGroup(SCRIPT, output, workers=workers, arguments=(str(folder), json.dumps(cases)))


COMPARED = [one for one in (*NUMBERS, *LIMITS) if one not in ("stop", "ignore")]


@pytest.mark.parametrize(
    ("who", "name"),
    [
        *(("two devices", one) for one in ON_DEVICES if one != OWN_STATE),
        *(("two workers", one) for one in COMPARED),
    ],
)
def test_the_numbers_are_those_of_one_process(trained: Any, name: str, who: str) -> None:
    expected = trained["one process"]["worker-0"]
    normed = name == "skip, normed"  # each replica's batch is normed by itself, so only replicas are alike
    for found in trained[who].values():
        assert found[f"{name}/alike"]
        assert found[f"{name}/others_finite"]
        assert found[f"{name}/skipped"] == expected[f"{name}/skipped"] == name.startswith("skip")
        assert found[f"{name}/scale"] == expected[f"{name}/scale"]
        if not normed:
            atol = CLOSE.get(name, 1e-6)
            np.testing.assert_allclose(found[f"{name}/weights"], expected[f"{name}/weights"], atol=atol)
            scaled = max(1.0, float(np.abs(expected[f"{name}/optimizer"]).max()))
            np.testing.assert_allclose(
                found[f"{name}/optimizer"], expected[f"{name}/optimizer"], atol=atol * scaled
            )


def test_state_that_each_worker_keeps_for_itself_is_no_alarm(trained: Any) -> None:
    """The script compares the weights in every case; here there is something that differs."""
    first, second = (trained["two workers"][f"worker-{index}"] for index in (0, 1))
    assert np.abs(first[f"{OWN_STATE}/moving"] - second[f"{OWN_STATE}/moving"]).max() > 1e-3
    assert trained["two devices"]["worker-0"][f"{OWN_STATE}/alike"]


@pytest.mark.parametrize("name", [*NUMBERS, *LIMITS, OWN_STATE])
def test_workers_stay_alike_to_the_bit(trained: Any, name: str) -> None:
    first, second = (trained["two workers"][f"worker-{index}"] for index in (0, 1))
    for kind in ("weights", "optimizer", "scale", "skipped", "first"):
        np.testing.assert_array_equal(first[f"{name}/{kind}"], second[f"{name}/{kind}"])


@pytest.mark.parametrize("who", ["one process", "two devices", "two workers"])
def test_xla_gives_the_numbers_of_the_step_without_it(trained: Any, who: str) -> None:
    found = trained[who]["worker-0"]
    np.testing.assert_allclose(found["compiled/weights"], found["adam/weights"], atol=1e-6)


def test_an_overflow_on_one_worker_halves_the_scale_on_all(trained: Any) -> None:
    # 2**10 is doubled after three steps, halved in the fifth, and doubled after three more.
    for found in trained["two workers"].values():
        assert found["float16/scale"] == found["loss scale/scale"] == 2**11


def test_it_is_known_who_came_to_nan_first(trained: Any) -> None:
    """The step counts within the second call, which began after three; the others see it a step later."""
    found = trained["two workers"]["worker-0"]
    assert list(found["stop/first"]) == [3, 2]
    assert list(found["skip/first"]) == [0, 2]
    assert list(found["stop, loss scale/first"]) == [0, 2]
    assert not np.any(found["ignore/first"])


def test_a_skipped_batch_is_in_no_metric(trained: Any) -> None:
    for found in trained["two workers"].values():
        assert np.isfinite(found["skip/metrics"]).all()
        assert np.isfinite(found["skip, normed/metrics"]).all()
