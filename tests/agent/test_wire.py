"""The agent's port, against clients that know the token and clients that don't."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from testbed.ports import free_ports

from trainjob_trainer.agent import wire
from trainjob_trainer.agent.log import Seldom
from trainjob_trainer.agent.settings import Address
from trainjob_trainer.agent.wire import Channel, Listener, WireError, connect
from trainjob_trainer.contract.wire import (
    GREETING,
    LARGEST_FIRST_FRAME,
    LARGEST_FRAME,
    NONCE_BYTES,
    Opener,
    Sealer,
    session_key,
)
from trainjob_trainer.errors import PortInUse

TOKEN = "token"  # noqa: S105
PATIENCE = 20.0


class Server:
    """A listener that keeps the messages it received and answers with them."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.met: list[dict[str, Any]] = []
        self.clients: list[Client] = []
        self.listener = Listener(TOKEN, self._meet)

    async def connect(self) -> Client:
        self.clients.append(await Client.connect(self.port))
        return self.clients[-1]

    async def _meet(self, channel: Channel, first: dict[str, Any]) -> None:
        message = first
        while True:
            self.met.append(message)
            channel.post({"echo": len(str(message))})
            message = await channel.receive(PATIENCE)


@asynccontextmanager
async def server(host: str = "127.0.0.1") -> AsyncIterator[Server]:
    serving = Server(free_ports(1)[0])
    await serving.listener.open(Address(host, serving.port))
    try:
        yield serving
    finally:
        serving.listener.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for client in serving.clients:
            client.writer.transport.abort()
        await asyncio.sleep(0.01)  # transports close in the loop


class Client:
    """A client, with or without the token."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def greet(self, token: str = TOKEN) -> None:
        assert await self.reader.readexactly(len(GREETING)) == GREETING
        theirs, ours = await self.reader.readexactly(NONCE_BYTES), os.urandom(NONCE_BYTES)
        self.writer.write(ours)
        key = session_key(token, theirs, ours)
        self.sealer, self.opener = Sealer(key, b"C"), Opener(key, b"S")
        self.key = key

    async def answer(self) -> dict[str, Any]:
        length = int.from_bytes(await self.reader.readexactly(4), "big")
        return self.opener.open(await self.reader.readexactly(length))

    async def is_refused(self) -> bool:
        """Whether nothing comes but the end of the connection."""
        try:
            rest = await asyncio.wait_for(self.reader.read(), PATIENCE)
        except ConnectionError:
            return True
        return rest.removeprefix(GREETING)[NONCE_BYTES:] == b""


async def test_a_peer_with_the_token_is_served() -> None:
    async with server() as serving:
        client = await serving.connect()
        await client.greet()
        for number in range(3):
            client.writer.write(client.sealer.seal({"number": number}))
            assert await client.answer() == {"echo": len(str({"number": number}))}
        assert serving.met == [{"number": 0}, {"number": 1}, {"number": 2}]


async def test_both_sides_of_ours_understand_each_other() -> None:
    async with server() as serving:
        channel = await connect("127.0.0.1", serving.port, TOKEN, PATIENCE)
        channel.post({"text": "ü" * 10000})
        assert await channel.receive(PATIENCE) == {"echo": 10012}
        channel.post({"text": "x" * 900000})
        assert await channel.receive(PATIENCE) == {"echo": 900012}
        with pytest.raises(WireError, match="too large"):
            channel.post({"text": "x" * LARGEST_FRAME})
        with pytest.raises(WireError, match="can't be written"):
            channel.post({"number": float("nan")})
        await channel.close()


def wrong_frames() -> list[Any]:
    def wrong_token(client: Client) -> bytes:
        return Sealer(session_key("other", b"", b""), b"C").seal({"type": "join"})

    def other_direction(client: Client) -> bytes:
        return Sealer(client.key, b"S").seal({"type": "join"})

    def later_number(client: Client) -> bytes:
        client.sealer.seal({"type": "join"})
        return client.sealer.seal({"type": "join"})

    def changed(client: Client) -> bytes:
        return client.sealer.seal({"type": "join"})[:-1] + b"]"

    def oversize(client: Client) -> bytes:
        return (LARGEST_FIRST_FRAME + 1).to_bytes(4, "big")

    def enormous(client: Client) -> bytes:
        return b"\xff" * 100

    def empty(client: Client) -> bytes:
        return bytes(4)

    def half_a_frame(client: Client) -> bytes:
        return client.sealer.seal({"type": "join"})[:20]

    def no_object(client: Client) -> bytes:
        return client.sealer.seal([1, 2])  # type: ignore[arg-type]

    return [
        pytest.param(make, id=make.__name__)
        for make in (
            wrong_token,
            other_direction,
            later_number,
            changed,
            oversize,
            enormous,
            empty,
            half_a_frame,
            no_object,
        )
    ]


@pytest.mark.parametrize("frame", wrong_frames())
async def test_anything_else_ends_the_connection(frame: Any, capsys: pytest.CaptureFixture[str]) -> None:
    async with server() as serving:
        client = await serving.connect()
        await client.greet()
        client.writer.write(frame(client))
        client.writer.write_eof()
        assert await client.is_refused()
        assert serving.met == []
    assert capsys.readouterr().err.count("refused a connection from 127.0.0.1") == 1


@pytest.mark.parametrize(
    "data", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + bytes(200), os.urandom(5000)]
)
async def test_garbage_does_nothing(data: bytes) -> None:
    async with server() as serving:
        client = await serving.connect()
        client.writer.write(data)
        client.writer.write_eof()
        assert await client.is_refused()
        assert serving.met == []


async def test_a_frame_that_comes_twice_ends_the_connection() -> None:
    async with server() as serving:
        client = await serving.connect()
        await client.greet()
        frame = client.sealer.seal({"type": "join"})
        client.writer.write(frame)
        await client.answer()
        client.writer.write(frame)
        assert await client.is_refused()
        assert len(serving.met) == 1


async def test_a_silent_peer_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HANDSHAKE_SECONDS", 0.1)
    async with server() as serving:
        silent, slow = await serving.connect(), await serving.connect()
        await slow.greet()
        slow.writer.write(slow.sealer.seal({"type": "join"})[:10])
        assert await silent.is_refused()
        assert await slow.is_refused()
        assert serving.met == []


class Paused(asyncio.SelectorEventLoop):
    """Its machine can be paused."""

    paused_for = 0.0

    def time(self) -> float:
        return super().time() + self.paused_for


def test_a_pause_of_the_machine_is_no_silence() -> None:
    async def speak_again_after_a_pause() -> None:
        async with server() as serving:
            client = await serving.connect()
            await client.greet()
            for pause in (0, 3600):
                loop.paused_for += pause
                for _ in range(3):
                    await asyncio.sleep(0)  # the loop sees what is due by now
                client.writer.write(client.sealer.seal({"pause": pause}))
                await client.answer()
            assert serving.met == [{"pause": 0}, {"pause": 3600}]

    loop = Paused()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(speak_again_after_a_pause())


async def test_unauthenticated_peers_cannot_block_others() -> None:
    async with server() as serving:
        silent = [await serving.connect() for _ in range(wire.MOST_HANDSHAKES + 20)]
        client = await serving.connect()
        await client.greet()
        client.writer.write(client.sealer.seal({"type": "join"}))
        assert await client.answer() == {"echo": len(str({"type": "join"}))}
        assert all(await asyncio.gather(*(client.is_refused() for client in silent[:20])))


async def test_another_server_is_not_taken_for_an_agent() -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6 and so on, some thirty bytes")
        await writer.drain()
        writer.close()

    port = free_ports(1)[0]
    serving = await asyncio.start_server(other, "127.0.0.1", port)
    with pytest.raises(WireError, match="isn't an agent"):
        await connect("127.0.0.1", port, TOKEN, PATIENCE)
    serving.close()
    await serving.wait_closed()
    with pytest.raises(WireError):
        await connect("127.0.0.1", port, TOKEN, PATIENCE)


async def test_a_taken_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_BIND_SECONDS", 0.0)
    async with server() as serving:
        with pytest.raises(PortInUse, match=f"can't listen on port {serving.port}"):
            await Server(serving.port).listener.open(Address("127.0.0.1", serving.port))


async def test_a_name_means_all_of_this_machine() -> None:
    async with server("digits-worker-0.digits.default.svc") as serving:
        for host in ("127.0.0.1", "localhost"):
            channel = await connect(host, serving.port, TOKEN, PATIENCE)
            await channel.close()


def test_the_log_is_not_flooded(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    seldom = Seldom(10.0, lambda: now)
    for now in (0.0, 1.0, 9.9, 10.0, 15.0, 21.0):
        seldom.log(f"at {now}")
    assert capsys.readouterr().err.splitlines() == [f"trainjob: agent: at {t}" for t in (0.0, 10.0, 21.0)]
