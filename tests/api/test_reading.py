"""YAML and JSON as kubectl reads them, with lines."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.world.jobs import build_job
from trainjob.api import InvalidTrainJob, read_documents

JOB = """\
# a comment
apiVersion: trainjob.dev/v1alpha1
kind: TrainJob
metadata: {name: digits}
spec:
  worker:
    replicas: 0
    replica: 2
  output:
    claim:
      claimName: training
  template:
    metadata:
      labels:
        trainjob.dev/job: mine
    spec:
      containers:
      - name: trainer
        image: example.com/a
        command: [python, train.py]
        env:
        - {name: A}
        - name: TF_CONFIG
        evn: []
        resources: {limits: {memory: 2GB}}
      - name: proxy
"""

SCALARS: tuple[tuple[str, Any], ...] = (
    ("", None),
    ("~", None),
    ("null", None),
    ("yes", True),
    ("On", True),
    ("y", True),
    ("no", False),
    ("OFF", False),
    ("nO", "nO"),
    ("'yes'", "yes"),
    ("!!str yes", "yes"),
    ("0", 0),
    ("-7", -7),
    ("+7", 7),
    ("1_000", 1000),
    ("0x1F", 31),
    ("0b101", 5),
    ("0o17", 15),
    ("017", 15),
    ("-017", -15),
    ("08", 8.0),
    ("1.5", 1.5),
    (".5", 0.5),
    ("1e3", 1000.0),
    ("1.", 1.0),
    ("!!float 1", 1.0),
    ("!!int '7'", 7),
    ("12:30:45", "12:30:45"),
    ("2026-01-31", "2026-01-31"),
    ("2026-01-31T10:00:00Z", "2026-01-31T10:00:00Z"),
    ("!!timestamp 2026-01-31", "2026-01-31"),
    ("1.2.3", "1.2.3"),
    ("10Gi", "10Gi"),
    ("-", None),
    ("'{{ 7*7 }}'", "{{ 7*7 }}"),
    ('"a: b\\n- c"', "a: b\n- c"),
    ('"\\ud83e\\udd86"', "🦆"),
    ("🦆", "🦆"),
    ("=", "="),
)

UNREADABLE: tuple[tuple[str | bytes, str], ...] = (
    ("", "f.yaml: is empty"),
    ("# nothing\n---\n---\n", "f.yaml: is empty"),
    ("- 1", "f.yaml:1: must be an object, got a list"),
    ("a: 1\n---\ntext", "f.yaml:3: must be an object, got plain text"),
    ("a: 1\nb: 2\na: 3", "f.yaml:3 a: is there twice, first on line 1; remove one"),
    ("s:\n  - a: 1\n    a: 3", "f.yaml:3 s[0].a: is there twice, first on line 2; remove one"),
    ("a: [1", "f.yaml:1: is not valid YAML: "),
    ("a: b: c", "f.yaml:1: is not valid YAML: "),
    ("a: *nobody", "f.yaml:1: is not valid YAML: found undefined alias"),
    ("a: 'open", "f.yaml:1: is not valid YAML: "),
    ("x: 1\na: \x00", "f.yaml:2: holds a character that YAML does not allow"),
    (b"a: 1\nb: \xff\n", "f.yaml:2: is not UTF-8 text; save it as UTF-8"),
    ("a: .inf", "f.yaml:1 a: .inf can't be written as JSON"),
    ("a: 1e999", "f.yaml:1 a: is too large a number"),
    ("a: " + "9" * 5000, "f.yaml:1 a: has too many digits"),
    ("a: !!set {b}", "f.yaml:1 a: the tag tag:yaml.org,2002:set isn't supported"),
    ("a: !thing b", "f.yaml:1 a: the tag !thing isn't supported"),
    ("a: !!int two", "f.yaml:1 a: isn't of the type that its tag !!int says"),
    ('a: "\\ud800"', "f.yaml:1 a: has half of a character"),
    ('a: "b\\0"', "f.yaml:1 a: holds a NUL character"),
    ("? [a]\n: 1", "f.yaml:1: has a key that isn't text"),
    ("~: 1", "f.yaml:1: has a key that isn't text"),
    ("a: &a [*a]", "f.yaml:1 a[0]: holds an alias of itself"),
    ("a: &a {<<: *a}", "f.yaml:1 a: holds an alias of itself"),
    ("a: {<<: 1}", 'f.yaml:1 a: "<<" must be followed by a mapping'),
    ("a: " + "[" * 500, "f.yaml:1: is not valid YAML: it is nested too deeply"),
    ("[" * 20000, "f.yaml:1: is not valid YAML: it is nested too deeply"),
    ("a: [" + "1," * 200_000 + "]", "f.yaml:1: is not valid YAML: it is too large"),
    ("a" * 2_000_000, "f.yaml: is larger than"),
)


SYNTAX: tuple[tuple[str, str], ...] = (
    # indentation
    (
        "s:\n  a: 1\n   b: 2",
        '3: this line is indented by 3 spaces, and must be indented by 2 as line 2 ("a: 1")',
    ),
    (
        "s:\n  a: {b: 1}\n   c: 2",
        '3: this line is indented by 3 spaces, and must be indented by 2 as line 2 ("a: {b',
    ),
    (
        "s:\n    a: 1\n  b: 2",
        "3: this line is indented by 2 spaces, and must be indented by 0 as line 1"
        ' ("s:") or by 4 as line 2 ("a: 1")',
    ),
    (
        "s:\n  a:\n    b: 1\n\n   # c\n   d: 1",
        "6: this line is indented by 3 spaces, and must be indented by 2 as line 2"
        ' ("a:") or by 4 as line 3 ("b: 1")',
    ),
    ("- a: 1\n b: 2", '2: this line is indented by 1 space, and must be indented by 2 as line 1 ("a: 1")'),
    (
        "- a: 1\n  - b: 2",
        "2: this line is a list item and indented by 2 spaces, and must be indented by 0 as",
    ),
    (
        "s:\n  - a: 1\n  b: 2",
        "3: this line is a field and indented by 2 spaces, and must be indented by 0 as line 1"
        ' ("s:") or by 4 as line 2 ("a: 1")',
    ),
    ("a: 1\n- b", '2: this line is a list item and indented by 0 spaces, but line 1 ("a: 1") is a field'),
    ("a: |\n   b\n  c\n", "3: this line is indented by 2 spaces, and must be indented by 0 as line 1"),
    (
        "a: 1\n---\n b: 1\nc: 1",
        '4: this line is indented by 0 spaces, and must be indented by 1 as line 3 ("b: 1")',
    ),
    ("a:\n\t- b", "2: this line is indented with a tab; use spaces"),
    ("a:\n  \tb: 1", "2: this line is indented with a tab; use spaces"),
    ("a:\tb", "1: this line has a tab; use a space"),
    # colons
    ("a:1\nb: 1", '1: "a:1" has no colon; write a space after the colon: "a: 1"'),
    ("s:\n  b: 1\n  a:1\n", '3: "a:1" has no colon; write a space after the colon: "a: 1"'),
    ("s:\n- b: 1\n  worker\nc: 2", '3: "worker" has no colon; write "name: value"'),
    ("a: echo b: c", "1: this line has a second colon; put the text in quotes"),
    # brackets, quotes, other characters
    (
        "a: [1, 2\nb: 3",
        "2: expected ',' or ']', but got ':' while parsing a flow sequence, which begins on line 1: a",
    ),
    ("a: 'x\nb: y", "1: a quote opens here and isn't closed"),
    ("a: @x", '1: no text can begin with "@"; put it in quotes'),
    ("a: 'x' y", "1: expected <block end>, but found '<scalar>'"),
)


@pytest.mark.parametrize(("text", "message"), SYNTAX)
def test_what_is_no_yaml_is_told_with_its_line_and_indentation(text: str, message: str) -> None:
    with pytest.raises(InvalidTrainJob) as caught:
        read_documents(text, source="f.yaml")
    line, _, what = message.partition(" ")
    assert str(caught.value).startswith(f"f.yaml:{line} is not valid YAML: {what}")


def read(text: str | bytes) -> dict[str, Any]:
    (document,) = read_documents(text, source="f.yaml")
    return document.raw


@pytest.mark.parametrize(("text", "value"), SCALARS)
def test_scalar(text: str, value: Any) -> None:
    got = read(f"a: {text}" if text != "-" else "a:")["a"]
    assert (got, type(got)) == (value, type(value))


@pytest.mark.parametrize(("text", "message"), UNREADABLE)
def test_unreadable_text_is_reported_with_its_line(text: str | bytes, message: str) -> None:
    with pytest.raises(InvalidTrainJob) as caught:
        read_documents(text, source="f.yaml")
    assert str(caught.value.errors[0]).startswith(message)


def test_errors_have_lines_and_their_order() -> None:
    (document,) = read_documents(JOB, source="job.yaml")
    with pytest.raises(InvalidTrainJob) as caught:
        document.parse()
    assert [str(error).split(": ")[0] for error in caught.value.errors] == [
        "job.yaml:7 spec.worker.replicas",
        "job.yaml:8 spec.worker.replica",
        "job.yaml:15 spec.template.metadata.labels[trainjob.dev/job]",
        "job.yaml:23 spec.template.spec.containers[0].env[1].name",
        "job.yaml:24 spec.template.spec.containers[0].evn",
        "job.yaml:25 spec.template.spec.containers[0].resources.limits.memory",
        "job.yaml:26 spec.template.spec.containers[1].image",
    ]
    assert str(caught.value.errors[0]) == "job.yaml:7 spec.worker.replicas: must be at least 1, got 0"


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("", 2),
        ("spec", 5),
        ("spec.worker.replicas", 7),
        ("spec.worker.minReplicas", 6),
        ("spec.suspend", 5),
        ("status.state", 2),
        ("spec.template.spec.containers[0]", 18),
        ("spec.template.spec.containers[7].name", 17),
        ("spec.template.metadata.labels[trainjob.dev/job]", 15),
        ("spec.template.metadata.labels[example.com/a.b]", 14),
        ("]]..[[", 2),
    ],
)
def test_line_of_a_field_or_of_what_should_hold_it(path: str, line: int) -> None:
    (document,) = read_documents(JOB, source="job.yaml")
    assert document.line_of(path) == line


def test_documents_of_a_stream() -> None:
    other, newer = "kind: ConfigMap\napiVersion: v1\n", "kind: x\napiVersion: trainjob.dev/v2\n"
    text = f"---\n{other}---\n\n---\n{JOB}...\n---\n{newer}"
    documents = read_documents(text, source="all.yaml")
    assert [document.is_trainjob for document in documents] == [False, True, True]
    assert [document.first_line for document in documents] == [2, 8, 35]


@pytest.mark.parametrize(
    ("text", "is_trainjob"),
    [
        ("kind: trainjob", True),
        ("a: 1", True),
        ("{kind: TrainJob, apiVersion: trainer.kubeflow.org/v1alpha1}", True),
        ("{kind: Trainjobs, apiVersion: trainjob.dev/v1alpha1}", True),
        ("{kind: Job, apiVersion: batch/v1}", False),
        ("{kind: 1, apiVersion: 2}", False),
    ],
)
def test_what_is_meant_as_a_trainjob(text: str, is_trainjob: bool) -> None:
    (document,) = read_documents(text, source="f.yaml")
    assert document.is_trainjob is is_trainjob


def test_aliases_and_merges() -> None:
    raw = read("base: &b {x: 1, p: 1}\na: {<<: *b, p: 2}\nb: {<<: [{z: 3}, *b]}\nc: *b\nd: {'<<': 1}\n")
    assert raw["a"] == {"p": 2, "x": 1}
    assert raw["b"] == {"z": 3, "x": 1, "p": 1}
    assert raw["c"] == raw["base"]
    assert raw["d"] == {"<<": 1}


def test_alias_bomb_is_refused() -> None:
    rows = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(InvalidTrainJob, match="too large once its aliases are written out"):
        read_documents("\n".join(rows), source="f.yaml")


def test_bomb_of_merges_is_refused() -> None:
    rows = ["a0: &a0 {x: 1}"]
    rows += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, 9)]
    with pytest.raises(InvalidTrainJob, match="too large once its aliases are written out"):
        read_documents("\n".join(rows), source="f.yaml")


def test_keys_become_text() -> None:
    assert read("{1: a, yes: b, 1.5: c, 2026-01-31: d}") == {
        "1": "a",
        "true": "b",
        "1.5": "c",
        "2026-01-31": "d",
    }


def test_all_duplicates_are_reported() -> None:
    with pytest.raises(InvalidTrainJob) as caught:
        read_documents("a: 1\na: 2\nb: 1\nb: 2\n", source="f.yaml")
    assert [error.path for error in caught.value.errors] == ["a", "b"]


def test_byte_order_mark_and_windows_lines() -> None:
    assert read(b"\xef\xbb\xbfa: 1\r\nb: x\r\n") == {"a": 1, "b": "x"}
    assert read("\ufeffa: 1") == {"a": 1}


def test_json_indented_by_tabs() -> None:
    raw = build_job(container={"args": ["a\tb", "🦆", "https://example.com/"]})
    assert read(json.dumps(raw, indent="\t")) == raw
    assert read(json.dumps(raw, indent="\t", ensure_ascii=False)) == raw


_TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Cn")))


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63)
        | st.floats(allow_nan=False, allow_infinity=False)
        | _TEXTS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
        max_leaves=15,
    )
)
def test_json_is_read_as_it_was_written(value: Any) -> None:
    assert read(json.dumps({"a": value})) == {"a": value}


@given(st.text(st.sampled_from(string.ascii_letters[:6] + "01 \n\t:-[]{},&*!|>'\"%#?<~\x00🦆")))
def test_any_text_is_read_or_refused_with_a_source(text: str) -> None:
    try:
        read_documents(text, source="f.yaml")
    except InvalidTrainJob as invalid:
        problems = [str(error) for error in invalid.errors]
    else:
        problems = []
    assert all(problem.startswith("f.yaml") for problem in problems)
