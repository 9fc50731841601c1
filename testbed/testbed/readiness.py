"""Asks servers whether they are ready."""

import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path


def answers(url: str, *, authority: Path | None = None) -> Callable[[], bool]:
    """A question to ask repeatedly: does this URL answer 200?"""
    context = ssl.create_default_context(cafile=authority) if authority else None
    # Never by way of a proxy: it is on this machine.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    handlers += [urllib.request.HTTPSHandler(context=context)] if context else []
    opener = urllib.request.build_opener(*handlers)

    def ask() -> bool:
        try:
            with opener.open(url, timeout=2) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    return ask
