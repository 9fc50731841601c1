import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainjob.cluster.local.machine import expand

VARIABLES = {"A": "1", "B": "two words", "EMPTY": "", "REF": "$(A)"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("plain", "plain"),
        ("$(A)", "1"),
        ("x$(A)y$(B)z", "x1ytwo wordsz"),
        ("$(EMPTY)", ""),
        ("$(NO_SUCH)", "$(NO_SUCH)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$$", "$"),
        ("$", "$"),
        ("$A ${A}", "$A ${A}"),
        ("$(A", "$(A"),
        ("$(A$(A)", "$(A$(A)"),
        ("$()", "$()"),
        ("$(REF)", "$(A)"),  # values are not expanded a second time
        ("cost: $5 $(A)", "cost: $5 1"),
    ],
)
def test_references_follow_kubernetes_rules(text: str, expected: str) -> None:
    assert expand(text, VARIABLES) == expected


@given(st.text())
def test_text_with_every_dollar_doubled_comes_out_as_it_was(text: str) -> None:
    assert expand(text.replace("$", "$$"), VARIABLES) == text
