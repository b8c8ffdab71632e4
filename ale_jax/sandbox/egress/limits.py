"""What one sandbox may use of the proxy."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Limits:
    """connections: at once. head_bytes, headers: of a request, its first line included.

    head_seconds: to send a head. connect_seconds: to look a name up, and again to connect.
    idle_seconds: without a byte either way. linger_seconds: to be answered after the sandbox has
    said that it sends no more. recorded: refusals; a sandbox shall not fill the host's disk.
    """

    connections: int = 64
    head_bytes: int = 1 << 15
    headers: int = 100
    head_seconds: float = 10.0
    connect_seconds: float = 10.0
    idle_seconds: float = 120.0
    linger_seconds: float = 10.0
    recorded: int = 200

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if value <= 0:
                raise ValueError(f"egress limit {name} is {value}; it must be positive")
