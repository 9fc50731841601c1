"""Only an owner of the token writes frames, each is accepted once, and none is larger than agreed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainjob_trainer.contract.wire import (
    LENGTH_BYTES,
    TAG_BYTES,
    FrameTooLarge,
    InvalidFrame,
    Opener,
    Sealer,
    largest_report,
    read_length,
    session_key,
)

KEY = session_key("token", b"S" * 32, b"C" * 32)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def body_of(frame: bytes) -> bytes:
    length = read_length(frame[:LENGTH_BYTES])
    assert len(frame) == LENGTH_BYTES + length
    return frame[LENGTH_BYTES:]


@settings(max_examples=settings().max_examples // 10)
@given(st.lists(st.dictionaries(st.text(), JSON), max_size=4))
def test_what_was_said_is_read(messages: list[dict[str, Any]]) -> None:
    sealer, opener = Sealer(KEY, b"C"), Opener(KEY, b"C")
    assert [opener.open(body_of(sealer.seal(message))) for message in messages] == messages


def test_the_known_bytes_of_one_frame() -> None:
    """From another implementation (`openssl dgst -hmac`), since both sides of ours use this one."""
    key = session_key(" abc\n", b"\x01" * 32, b"\x02" * 32)
    assert key.hex() == "896af95ca5f0e94cc8420506686f9509c2924e7683e2c2daedb44d58514cae0d"
    tag = bytes.fromhex("e18a3e141640c41cab4a327e51ba76478b25b4e82c133598b1240b1a8ccb3140")
    assert Sealer(key, b"C").seal({"type": "beat"}) == b"\0\0\0\x2f" + tag + b'{"type":"beat"}'


@given(st.integers(min_value=0), st.integers(min_value=1, max_value=255))
def test_any_changed_byte_is_noticed(place: int, change: int) -> None:
    body = bytearray(body_of(Sealer(KEY, b"C").seal({"type": "beat"})))
    body[place % len(body)] ^= change
    with pytest.raises(InvalidFrame, match="wrong tag"):
        Opener(KEY, b"C").open(bytes(body))


@pytest.mark.parametrize(
    "key",
    [
        session_key("token", b"S" * 32, b"D" * 32),
        session_key("token", b"T" * 32, b"C" * 32),
        session_key("tokem", b"S" * 32, b"C" * 32),
    ],
)
def test_another_connections_frame_is_refused(key: bytes) -> None:
    with pytest.raises(InvalidFrame):
        Opener(KEY, b"C").open(body_of(Sealer(key, b"C").seal({})))


def test_a_frame_that_is_turned_back_repeated_or_late_is_refused() -> None:
    sealer = Sealer(KEY, b"C")
    first, second = body_of(sealer.seal({"n": 1})), body_of(sealer.seal({"n": 2}))
    with pytest.raises(InvalidFrame):
        Opener(KEY, b"S").open(first)
    with pytest.raises(InvalidFrame):
        Opener(KEY, b"C").open(second)
    opener = Opener(KEY, b"C")
    opener.open(first)
    with pytest.raises(InvalidFrame):
        opener.open(first)
    assert opener.open(second) == {"n": 2}


@pytest.mark.parametrize("length", [0, TAG_BYTES, (1 << 20) + 1, (1 << 32) - 1])
def test_lengths_that_no_frame_has(length: int) -> None:
    with pytest.raises(InvalidFrame, match=f"a frame of {length} bytes"):
        read_length(length.to_bytes(4, "big"))


@pytest.mark.parametrize(
    "payload",
    [
        *(b"[]", b"1", b"", b"{", b"\xff", b'{"a":NaN}', b'{"a":-Infinity}', b"[" * 100_000),
        b'{"a":' * 100_000,
        b'{"a":' + b"9" * 5000 + b"}",
    ],
)
def test_content_that_is_no_json_object(payload: bytes) -> None:
    from trainjob_trainer.contract import wire  # noqa: PLC0415

    body = wire._tag(KEY, b"S", 0, payload) + payload
    with pytest.raises(InvalidFrame, match="no JSON"):
        Opener(KEY, b"S").open(body)


def test_what_would_be_too_large_is_not_sent() -> None:
    with pytest.raises(FrameTooLarge, match="at most 100"):
        Sealer(KEY, b"C").seal({"text": "x" * 100}, largest=100)


def test_numbers_that_json_does_not_have_are_not_sent() -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        Sealer(KEY, b"C").seal({"loss": float("nan")})
    json.dumps({"loss": float("nan")})  # Python's default would have let it through


@pytest.mark.parametrize(
    ("replicas", "pods", "most"), [(0, 0, 65_536), (3, 3, 72_064), (1000, 3, 199_680), (1000, 1000, 1 << 20)]
)
def test_a_report_is_as_large_as_its_world(replicas: int, pods: int, most: int) -> None:
    """A job that only says that it is large has no pods, and may not say more for that."""
    assert largest_report(replicas, pods) == most
    assert read_length(most.to_bytes(4, "big"), most) == most
    with pytest.raises(InvalidFrame, match=f"at most {most} are accepted"):
        read_length((most + 1).to_bytes(4, "big"), most)
