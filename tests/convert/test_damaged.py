"""Damaged TFJobs: each is converted into a valid TrainJob, or refused by its fields; nothing else happens."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.world.changes import walk_values
from support.world.tfjob_strategy import tfjobs
from support.world.tfjobs import SAMPLES, converted
from trainjob.api import InvalidTrainJob, parse, read_documents

WRONG_VALUES: tuple[Any, ...] = (
    *("two", "", -1, 2**40, True, None),
    *([], [None], {}, {"": None}),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
SAMPLE_JOBS = [
    document.raw
    for file in SAMPLES
    for document in read_documents(file.read_text(), source=file.name)
    if file.stem in ("chief_ps_evaluator", "master_alone", "old_form")
]


def fields() -> Iterator[tuple[dict[str, Any], tuple[str | int, ...]]]:
    """Yield each kind of field once, with a job that has it; replica types and list items share theirs."""
    seen = set()
    for sample in SAMPLE_JOBS:
        for steps, _ in walk_values(sample):
            is_of_replicas = steps[:2] == ("spec", "tfReplicaSpecs") and len(steps) > 3
            kind = ("*" if isinstance(each, int) else each for each in steps)
            field = tuple(each for place, each in enumerate(kind) if not (is_of_replicas and place == 2))
            if steps and field not in seen:
                seen.add(field)
                yield sample, steps


def is_told(tfjob: dict[str, Any]) -> bool:
    """Whether the result is valid, or says why it isn't."""
    conversion = converted(tfjob)
    try:
        parse(conversion.manifest)
    except InvalidTrainJob:
        return bool(conversion.refusals)
    return all(refusal.path and refusal.message for refusal in conversion.refusals)


@pytest.mark.parametrize("wrong", WRONG_VALUES, ids=repr)
def test_each_field_with_each_wrong_value(wrong: Any) -> None:
    for sample, steps in fields():
        damaged = deepcopy(sample)
        holder: Any = damaged
        for step in steps[:-1]:
            holder = holder[step]
        holder[steps[-1]] = wrong
        assert is_told(damaged), steps


@settings(max_examples=settings.default.max_examples // 4)
@given(tfjobs(), st.data())
def test_a_field_with_any_value(tfjob: dict[str, Any], data: st.DataObject) -> None:
    places = [steps for steps, _ in walk_values(tfjob) if steps]
    steps = data.draw(st.sampled_from(places))
    # Templates may be shared between roles.
    damaged = deepcopy(tfjob)
    holder: Any = damaged
    for step in steps[:-1]:
        holder = holder[step]
    holder[steps[-1]] = data.draw(JSON)
    assert is_told(damaged)


@given(st.dictionaries(st.sampled_from(["apiVersion", "kind", "metadata", "spec", "status"]), JSON))
def test_no_tfjob_at_all(raw: dict[str, Any]) -> None:
    assert converted(raw).refusals
