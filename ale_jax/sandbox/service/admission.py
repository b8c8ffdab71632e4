"""Who stands at the door: the token of a request, and what a browser may not do."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from urllib.parse import urlsplit

from ale_jax.sandbox.service.errors import Refusal
from ale_jax.sandbox.service.settings import LOOPBACK
from ale_jax.sandbox.service.tokens import LOCAL, Tenant, Tokens

OPEN_PATHS = ("/healthz", "/readyz", "/docs", "/openapi.json", "/fleet")  # the same for everybody
# The second is what rl-rock sends.
TOKEN_HEADERS = ("authorization", "xrl-authorization")


def admit(headers: Mapping[str, str], path: str, tokens: Tokens) -> Tenant | None:
    """Whose request it is; None for a path that is open. Errors: Refusal (401, 403)."""
    if path in OPEN_PATHS:
        return None
    if not tokens:
        _refuse_browsers(headers)
        return LOCAL
    token = _token(headers)
    tenant = tokens.find(token) if token else None
    if tenant is None:
        message = "wrong token" if token else "no token"
        raise Refusal(401, "unauthorized", message, "send the header Authorization: Bearer TOKEN")
    return tenant


def _token(headers: Mapping[str, str]) -> str | None:
    for name in TOKEN_HEADERS:
        scheme, _, value = headers.get(name, "").partition(" ")
        if scheme.lower() == "bearer":
            return value.strip()
        if scheme.lower() == "basic":  # NAME:TOKEN@ in a URL, where only that can be given
            return _password(value)
    return None


def _password(value: str) -> str | None:
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return None


def _refuse_browsers(headers: Mapping[str, str]) -> None:
    """Without tokens, only programs of this machine may call. A page that a browser shows could
    call too, by our address or by a name of its own that it has made to mean our address."""
    for url in (f"//{headers.get('host', '')}", headers.get("origin")):
        if url is not None and _host(url) not in LOOPBACK:
            message = f"{url.lstrip('/')!r:.140} is not this machine"
            raise Refusal(403, "forbidden", message, "start the service with a token")


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
