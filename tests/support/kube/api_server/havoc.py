"""Faults at random, for a fake API server or for a proxy in front of a real one."""

from __future__ import annotations

import random
from typing import Protocol

from aiohttp import web

from support.kube.api_server.answers import failing
from support.kube.api_server.faulty import Fault
from support.kube.api_server.rules import Seen


class Faulty(Protocol):
    fault: Fault
    fault_after: Fault
    losing: bool

    def compact(self) -> None: ...
    def end_watches(self) -> None: ...
    def drop_watches(self) -> None: ...
    def freeze_watches(self) -> None: ...
    def send_line(self, kind: str, line: bytes) -> None: ...


class Havoc:
    """Spoils some of what a server does, at random, until no faults are `left`."""

    def __init__(self, server: Faulty, seed: int, faults: int) -> None:
        self.server, self.left, self.random = server, faults, random.Random(seed)  # noqa: S311 - repeatable
        server.fault, server.fault_after = self.before, self.after

    def before(self, seen: Seen) -> web.StreamResponse | Exception | None:
        self.disturb()
        if not self.strikes(0.15):
            return None
        if seen.verb in ("list", "watch"):
            return self.random.choice([failing(410, "Expired"), failing(500, ""), ConnectionResetError()])
        return self.random.choice(
            [
                failing(409, "Conflict"),
                failing(429, "TooManyRequests", retry_after="0.01"),
                failing(500, "InternalError"),
                ConnectionResetError(),
            ]
        )

    def after(self, _seen: Seen) -> Exception | None:
        return ConnectionResetError() if self.strikes(0.1) else None

    def disturb(self) -> None:
        if not self.strikes(0.1):
            return
        server = self.server
        self.random.choice(
            [
                server.end_watches,
                server.drop_watches,
                server.freeze_watches,
                server.compact,
                lambda: server.send_line("Pod", b"{garbage\n"),
                lambda: server.send_line("TrainJob", b"{garbage\n"),
                lambda: setattr(server, "losing", not server.losing),
            ]
        )()

    def strikes(self, chance: float) -> bool:
        if self.left <= 0:
            self.server.losing = False
            return False
        strikes = self.random.random() < chance
        self.left -= strikes
        return strikes

    def stop(self) -> None:
        self.left = 0
        self.server.losing = False
