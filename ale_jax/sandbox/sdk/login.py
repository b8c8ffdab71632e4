"""How a client presents itself to a service, as the environment says it."""

from __future__ import annotations

import dataclasses
import os
import ssl
from pathlib import Path

URL, TOKEN = "ALE_SANDBOX_URL", "ALE_SANDBOX_TOKEN"
CA, IN_CLEAR = "ALE_SANDBOX_CA", "ALE_SANDBOX_IN_CLEAR"


@dataclasses.dataclass(frozen=True)
class ServiceLogin:
    """What a client needs besides the URL of a service. It can be sent to another machine.

    token: the bearer token; None for a service without tokens.
    certificates: PEM of those that vouch for an https service; empty for the usual ones.
    in_clear: the token may leave this machine without encryption.
    """

    token: str | None = dataclasses.field(default=None, repr=False)
    certificates: str = dataclasses.field(default="", repr=False)
    in_clear: bool = False

    @classmethod
    def of_environment(cls) -> ServiceLogin:
        """Errors: ValueError if the file that ALE_SANDBOX_CA names has no certificates."""
        certificates = ""
        if path := os.environ.get(CA):
            try:
                certificates = Path(path).read_text()
                ssl.create_default_context(cadata=certificates)
            except (OSError, ValueError) as error:  # an SSLError is an OSError
                raise ValueError(f"{CA} {path!r:.200} has no certificates: {error}") from error
        return cls(os.environ.get(TOKEN), certificates, os.environ.get(IN_CLEAR) == "1")

    def verify(self) -> ssl.SSLContext | bool:
        """Returns what the clients take."""
        return ssl.create_default_context(cadata=self.certificates) if self.certificates else True
