"""Releases sort as people expect; what isn't one is older than all."""

from __future__ import annotations

import pytest

from trainjob.installation.crd_update import UNKNOWN, read_release

ASCENDING = [
    "0.1.0-alpha.1", "0.1.0a2", "0.1.0b1", "0.1.0-rc.1", "0.1.0rc2", "0.1.0", "0.1.1", "0.2.0", "0.10.0",
    "1.0.0rc9",    "v1.0.0",
]  # fmt: skip


def test_order() -> None:
    releases = [read_release(text) for text in ASCENDING]
    assert releases == sorted(set(releases))


def test_both_forms_are_one_release() -> None:
    assert read_release("1.2.0rc1") == read_release("1.2.0-rc.1") == read_release("v1.2.0-rc1")


@pytest.mark.parametrize("text", [None, "", "1", "1.2", "latest", "1.2.3.4", "1.2.3-nightly"])
def test_anything_else_is_older_than_every_release(text: str | None) -> None:
    assert read_release(text) == UNKNOWN < read_release("0.0.0a0")
