"""A machine with a GPU: `make test-gpu`. Without one each test fails, and says so."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from support.cli.running import TRAINJOB
from support.gpu import find_gpus, profiled, speed_alone, speed_in_a_job
from support.trainer.forms import REFERENCE, Form, differences, forms_in, run_group, run_killed

FORMS = Path(__file__).parents[1] / "keras_forms"
SHORT_LIST = {
    "arguments": ("class_weight", "compiled_by_xla", "steps_per_execution"),
    "data": ("finite_dataset", "dataset_shuffled_with_a_seed", "py_dataset", "python_generator"),
    "losses": ("losses_of_keras", "own_steps_with_a_mean"),
    "models": ("classifier", "convolutions", "lstm", "embedding_with_a_smaller_last_batch"),
    "steps": ("own_train_step_with_the_compiled_loss", "gan_with_two_optimizers"),
    "calls": ("predict_rows_that_nothing_divides", "evaluate_before_and_after_fit"),
}
TOLERANCE = 1e-3
"""A GPU rounds otherwise where XLA compiles other parts of a step."""


@pytest.fixture(scope="session", autouse=True)
def gpus() -> list[str]:
    return find_gpus()


def of_one_worker(stem: str) -> list[Form]:
    names = SHORT_LIST[stem]
    forms = [one for one in forms_in(FORMS / f"{stem}.py", (1,)) if one.workers == 1]
    return [
        dataclasses.replace(one, tolerance=TOLERANCE) for one in forms if one.name.partition("-")[0] in names
    ]


@pytest.fixture
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")


@pytest.mark.usefixtures("_exact")
@pytest.mark.parametrize("stem", SHORT_LIST)
def test_a_worker_equals_keras_alone(stem: str, tmp_path: Path) -> None:
    forms = of_one_worker(stem)
    outcomes = run_group(forms, tmp_path)
    found = {one.name: differences(one, outcomes[one.name]) for one in forms}
    assert not {name: lines for name, lines in found.items() if lines}


@pytest.mark.usefixtures("_exact")
def test_a_killed_worker_ends_as_an_undisturbed_process(tmp_path: Path) -> None:
    (form,) = [one for one in of_one_worker("data") if one.name.startswith("finite_dataset")]
    reference = run_group([form], tmp_path / "whole")[form.name][REFERENCE]
    assert not differences(form, {**run_killed(form, tmp_path / "killed"), REFERENCE: reference})


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "float32"])
def test_resnet_50_is_compiled_and_as_fast_as_by_keras_alone(
    precision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = speed_alone("resnet", precision, tmp_path / "alone")
    job = speed_in_a_job("resnet", precision, tmp_path / "job", gpus=1)
    ratio = job.images_per_second / alone.images_per_second
    with capsys.disabled():
        print(
            f"\nResNet-50, {precision}: {job.images_per_second:,.0f} images/s in a job, "
            f"{alone.images_per_second:,.0f} by Keras alone, ratio {ratio:.2f}"
        )
    assert alone.is_compiled
    assert job.is_compiled, job.output
    assert job.losses == pytest.approx(alone.losses, rel=0.1)


def test_doctor_names_the_gpu() -> None:
    done = subprocess.run([str(TRAINJOB), "doctor"], capture_output=True, text=True, check=False)
    (line,) = [one for one in done.stdout.splitlines() if "GPUs" in one]
    assert "driver" in line


def test_a_profile_has_what_the_gpu_did(tmp_path: Path) -> None:
    assert b"/device:GPU:0" in profiled("resnet", tmp_path / "job", gpus=1)
