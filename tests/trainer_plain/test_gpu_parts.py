"""What `make test-gpu` runs, on the processors: its end without a GPU, and its parts with a small model."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.gpu import find_gpus, profiled, speed_alone, speed_in_a_job


def test_a_machine_without_a_gpu_fails_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(AssertionError, match="sees no GPU on this machine: `make test-gpu` needs"):
        find_gpus()


@pytest.mark.nightly
def test_a_job_of_one_worker_trains_as_keras_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    alone = speed_alone("tiny", "float32", tmp_path / "alone")
    job = speed_in_a_job("tiny", "float32", tmp_path / "job", gpus=0)
    assert job.losses == alone.losses
    assert job.images_per_second > 0


@pytest.mark.nightly
def test_a_profile_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert b"/host:CPU" in profiled("tiny", tmp_path / "job", gpus=0)
