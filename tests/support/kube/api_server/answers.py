"""Answers of an API server that are no objects."""

from __future__ import annotations

from typing import Any

from aiohttp import web


def status_object(code: int, reason: str, message: str, **details: Any) -> dict[str, Any]:
    status: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    return {**status, "details": details} if details else status


class ApiError(Exception):
    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.details = code, reason, message, details

    def status(self) -> dict[str, Any]:
        return status_object(self.code, self.reason, self.message, **self.details)

    def response(self) -> web.Response:
        return web.json_response(self.status(), status=self.code)


def gone() -> ApiError:
    """A version that has been compacted away."""
    return ApiError(410, "Expired", "too old resource version")


def failing(
    code: int, reason: str, message: str = "injected", retry_after: str | None = None
) -> web.Response:
    headers = {"Retry-After": retry_after} if retry_after is not None else None
    return web.json_response(status_object(code, reason, message), status=code, headers=headers)
