"""Keras's settings of the optimizer, of precision and of XLA give the numbers of one process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support_processes import Gang

SCRIPT = Path(__file__).parent / "scripts" / "optimizer_settings.py"
CLOSE = {"float16": 1e-2, "bfloat16": 1e-2}
"""Differences of weights of about 1 that eight or eleven bits of a number allow; 1e-6 for the others."""
NUMBERS = (
    "adam",
    "clipnorm",
    "clipvalue",
    "global clipnorm, embedding",
    "accumulation",
    "accumulation, clipped",
    "overwriting averages",
    "fixed loss scale",
    "bfloat16",
    "compiled",
)
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

Results = dict[str, Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Results]]:
    """By what trains: one process, two devices of one process, or two workers; by replica and case."""
    seen: dict[str, dict[str, Results]] = {}

    def results(who: str) -> dict[str, Results]:
        if who not in seen:
            seen[who] = _train(tmp_path_factory.mktemp("seen"), who)
        return seen[who]

    return results


def _train(folder: Path, who: str) -> dict[str, Results]:
    results: dict[str, Results] = {}
    for names in (NUMBERS, LIMITS):
        gang = Gang(
            SCRIPT,
            folder / "output",
            workers=2 if who == "two workers" else 1,
            arguments=(str(folder), *names),
            env={"DEVICES": "2" if who == "two devices" else "1"},
            interpreter=(sys.executable, "-W", "ignore"),
        )
        with gang:
            assert set(gang.wait().values()) == {0}, gang.report
        for file in folder.glob("*.npz"):
            results.setdefault(file.stem, {}).update(np.load(file))
    return results


@pytest.mark.parametrize("who", ["two devices", "two workers"])
@pytest.mark.parametrize("name", [*NUMBERS, *(one for one in LIMITS if one not in ("stop", "ignore"))])
def test_the_numbers_are_those_of_one_process(trained: Any, name: str, who: str) -> None:
    expected = trained("one process")["worker-0"]
    normed = name == "skip, normed"  # each replica's batch is normed by itself, so only replicas are alike
    for found in trained(who).values():
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


@pytest.mark.parametrize("name", [*NUMBERS, *LIMITS])
def test_workers_stay_alike_to_the_bit(trained: Any, name: str) -> None:
    first, second = (trained("two workers")[f"worker-{index}"] for index in (0, 1))
    for kind in ("weights", "optimizer", "scale", "skipped", "first"):
        np.testing.assert_array_equal(first[f"{name}/{kind}"], second[f"{name}/{kind}"])


@pytest.mark.parametrize("who", ["one process", "two devices", "two workers"])
def test_xla_gives_the_numbers_of_the_step_without_it(trained: Any, who: str) -> None:
    found = trained(who)["worker-0"]
    np.testing.assert_allclose(found["compiled/weights"], found["adam/weights"], atol=1e-6)


def test_an_overflow_on_one_worker_halves_the_scale_on_all(trained: Any) -> None:
    # 2**10 is doubled after three steps, halved in the fifth, and doubled after three more.
    for found in trained("two workers").values():
        assert found["float16/scale"] == found["loss scale/scale"] == 2**11


def test_it_is_known_who_came_to_nan_first(trained: Any) -> None:
    """The step counts within the second call, which began after three; the others see it a step later."""
    found = trained("two workers")["worker-0"]
    assert list(found["stop/first"]) == [3, 2]
    assert list(found["skip/first"]) == [0, 2]
    assert list(found["stop, loss scale/first"]) == [0, 2]
    assert not np.any(found["ignore/first"])


def test_a_skipped_batch_is_in_no_metric(trained: Any) -> None:
    for found in trained("two workers").values():
        assert np.isfinite(found["skip/metrics"]).all()
        assert np.isfinite(found["skip, normed/metrics"]).all()
