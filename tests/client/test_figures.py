import pytest

from trainjob.client.presenter import format_metric, format_rate


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("accuracy", 0.97512, "accuracy 97.5 %"),
        ("sparse_categorical_accuracy", "0.5", "sparse_categorical_accuracy 50.0 %"),
        ("accuracy", 97.5, "accuracy 97.5"),
        ("loss", "0.0812345", "loss 0.08123"),
        ("loss", "nan", "loss nan"),
        ("loss", float("inf"), "loss inf"),
        ("note", "high", "note high"),
    ],
)
def test_metrics(name: str, value: float | str, expected: str) -> None:
    assert format_metric(name, value) == expected


@pytest.mark.parametrize(("rate", "expected"), [(12345.6, "12,346"), (3.14159, "3.1"), (0, "0.0")])
def test_rates(rate: float, expected: str) -> None:
    assert format_rate(rate) == expected
