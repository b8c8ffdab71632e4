"""Failures as clients see them: one JSON shape, the right status, never a traceback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ale_jax.sandbox.api import SandboxError, SandboxLost, SandboxStartError
from ale_jax.sandbox.pool.api import PoolFull, SandboxGone

BUSY_RETRY_S = 1
UNDONE = (408, 429, 503)  # nothing was begun: the same request may be tried again as a new one


class Refusal(Exception):
    """An answer that is an error. kind: a name for programs; remedy: what to do about it; cause:
    why a sandbox is gone."""

    def __init__(self, status: int, kind: str, message: str, remedy: str = "", cause: str = ""):
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message
        self.remedy, self.cause = remedy, cause

    def content(self) -> dict[str, Any]:
        error = {"kind": self.kind, "message": self.message}
        more = {"remedy": self.remedy, "cause": self.cause}
        return {"error": error | {name: text for name, text in more.items() if text}}

    def headers(self) -> Mapping[str, str]:
        if self.status in UNDONE:
            return {"Retry-After": str(BUSY_RETRY_S)}
        return {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}


# In the order in which they are looked for: a class stands before what it is derived from.
KINDS: tuple[tuple[type[Exception], int, str, str], ...] = (
    (SandboxGone, 410, "sandbox_gone", "start another one"),
    (SandboxLost, 410, "sandbox_lost", "start another one"),
    (PoolFull, 503, "pool_full", "try again later, or stop a sandbox"),
    (SandboxStartError, 500, "start_failed", ""),
    (SandboxError, 409, "sandbox_error", ""),
    (FileNotFoundError, 404, "file_not_found", ""),
    (OSError, 409, "os_error", ""),
    (ValueError, 422, "invalid", ""),
)


def refusal_of(error: Exception) -> Refusal:
    """What a client is told of `error`; of what nobody expected, only that it happened."""
    if isinstance(error, Refusal):
        return error
    for kind, status, name, remedy in KINDS:
        if isinstance(error, kind):
            return Refusal(status, name, str(error), remedy, getattr(error, "cause", None) or "")
    return Refusal(500, "internal", "the service failed", "its log says why")


def not_found(id: str) -> Refusal:
    """Of a sandbox that never was, or that is another's: the two must look the same."""
    return Refusal(404, "not_found", f"there is no sandbox {id!r:.140}", "list yours")


def taken(id: str) -> Refusal:
    message = f"id {id!r:.140} is taken"
    return Refusal(409, "id_taken", message, "choose another, or let the pool choose")
