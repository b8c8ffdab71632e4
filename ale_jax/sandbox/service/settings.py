"""What a service is told at its start."""

from __future__ import annotations

import dataclasses

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclasses.dataclass(frozen=True)
class ServiceSettings:
    """host, port: where it listens; port 0: one of the system's choice.

    json_bytes, upload_bytes: the longest body of a call, and of one that brings files.
    body_seconds: a client that takes longer to send its body is refused.
    calls_per_token: of one token at a time; more are answered with 429.
    answers, answers_bytes, answer_seconds: how many answers are kept for repeated requests, of what
        size altogether, and how long.
    """

    host: str = "127.0.0.1"
    port: int = 8700
    json_bytes: int = 4 << 20
    upload_bytes: int = 64 << 20
    body_seconds: float = 60.0
    calls_per_token: int = 512
    answers: int = 4096
    answers_bytes: int = 64 << 20
    answer_seconds: float = 600.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"service port {self.port} must be 0..65535")
        names = ("json_bytes", "upload_bytes", "body_seconds", "calls_per_token", "answers")
        for name in (*names, "answers_bytes", "answer_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"service {name} {getattr(self, name)} must be more than 0")

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in LOOPBACK
