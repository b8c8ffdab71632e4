"""Who may call the service: its settings, bearer tokens and their owners, and the restrictions on
browsers."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import hmac
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from ale_jax.sandbox.service.protocol import Refusal
from ale_jax.sandbox.service.tenants import DEFAULT_QUOTA, Quota
from ale_jax.sandbox.spec import DATASET, SandboxSpec

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclasses.dataclass(frozen=True)
class ServiceSettings:
    """host, port: the address to listen on; port 0: the system chooses one.

    tls_cert, tls_key: files in PEM, of a certificate with those that vouch for it and of its
    private key; empty: the service speaks HTTP without TLS.
    json_bytes, upload_bytes: maximum body size of a call, and of one that uploads files.
    body_seconds: time limit for sending a body.
    answers, answers_bytes, answer_seconds: how many answers are kept for repeated requests of each
    token, their total size, and for how long.
    """

    host: str = "127.0.0.1"
    port: int = 8700
    tls_cert: str = ""
    tls_key: str = ""
    json_bytes: int = 4 << 20
    upload_bytes: int = 64 << 20
    body_seconds: float = 60.0
    answers: int = 4096
    answers_bytes: int = 16 << 20
    answer_seconds: float = 600.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"service port {self.port} must be 0..65535")
        if bool(self.tls_cert) != bool(self.tls_key):
            one = self.tls_cert or self.tls_key
            raise ValueError(f"service tls {one!r}: pass both the certificate and its private key")
        names = ("json_bytes", "upload_bytes", "body_seconds", "answers")
        for name in (*names, "answers_bytes", "answer_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"service {name} {getattr(self, name)} must be more than 0")

    @property
    def local(self) -> bool:
        """Whether only programs on this machine can reach it."""
        return self.host in LOOPBACK


VARIABLE = "ALE_SANDBOX_TOKENS"
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
MIN_TOKEN = 16  # characters
FORM = "NAME TOKEN [admin] [LIMIT=NUMBER ...] [datasets=NAME,...]"
GIVES = "datasets="
EVERYBODY = "*"  # its line sets the limits of tokens that do not set them
REMEDY = "python -c 'import secrets; print(secrets.token_urlsafe(24))' makes one"


@dataclasses.dataclass(frozen=True)
class Tenant:
    """The owner of sandboxes. admin: has access to everybody's, and to all data sets. datasets:
    those that its sandboxes may see."""

    name: str
    admin: bool = False
    quota: Quota = DEFAULT_QUOTA
    datasets: frozenset[str] = frozenset()

    def check_datasets(self, spec: SandboxSpec) -> None:
        """Errors: Refusal (403), which is the same whether the host has such a data set or not."""
        for name in spec.datasets:
            if not (self.admin or name in self.datasets):
                message = f"the data set {name!r} is not given to this token"
                remedy = f"the operator writes {GIVES}{name} into its line"
                raise Refusal(403, "forbidden", message, remedy)


class Tokens:
    """All valid tokens. Empty: no token is required.

    local: every caller of a service without tokens. names: of all tenants.
    """

    def __init__(self, tokens: Mapping[str, Tenant], quota: Quota | None = None):
        self._tenants = [(_digest(token), tenant) for token, tenant in tokens.items()]
        self.local = Tenant("local", True, quota or DEFAULT_QUOTA)
        self.names = frozenset(tenant.name for _, tenant in self._tenants)

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def find(self, token: str) -> Tenant | None:
        """Compares with every token, so that the time it takes reveals nothing about them."""
        digest, found = _digest(token), None
        for known, tenant in self._tenants:
            if hmac.compare_digest(known, digest):
                found = tenant
        return found


def parse_tokens(lines: Iterable[str], source: str) -> Tokens:
    """Reads one FORM per line; # starts a comment. Errors: ValueError, without the token."""
    numbered = [(n, line.partition("#")[0].split()) for n, line in enumerate(lines, 1)]
    quota, tenants, tokens = DEFAULT_QUOTA, dict[str, Tenant](), dict[bytes, Tenant]()
    # The line of all tokens comes first, wherever it is in the file.
    for number, words in sorted(numbered, key=lambda each: each[1][:1] != [EVERYBODY]):
        try:
            if words[:1] == [EVERYBODY]:
                quota = quota.updated(words[1:])
            elif words:
                token, tenant = _tenant(words, quota)
                _add(tokens, token, tenant)
                other = tenants.setdefault(tenant.name, tenant)
                if (other.quota, other.datasets) != (tenant.quota, tenant.datasets):
                    raise ValueError(f"another token of {tenant.name!r} has other limits")
        except ValueError as error:
            raise ValueError(f"{source}, line {number}: {error}") from None
    return Tokens(tokens, quota)


def _tenant(words: Sequence[str], quota: Quota) -> tuple[str, Tenant]:
    if len(words) < 2:
        raise ValueError(f"{len(words)} words; write {FORM}")
    name, token, *rest = words
    if not NAME.fullmatch(name):
        raise ValueError(f"name {name!r:.80} must match {NAME.pattern}")
    if len(token) < MIN_TOKEN:
        raise ValueError(f"the token has {len(token)} characters; {REMEDY}")
    admin = rest[:1] == ["admin"]
    limits = [word for word in rest[admin:] if not word.startswith(GIVES)]
    given = [word.removeprefix(GIVES) for word in rest[admin:] if word.startswith(GIVES)]
    datasets = frozenset(each for names in given for each in names.split(","))
    if wrong := sorted(each for each in datasets if not DATASET.fullmatch(each)):
        raise ValueError(f"{GIVES}{wrong[0]!a:.80} must be names of data sets, parted by commas")
    return token, Tenant(name, admin, quota.updated(limits), datasets)


def _add(tokens: dict[str, Tenant], token: str, tenant: Tenant) -> None:
    if token in tokens:
        raise ValueError(f"two lines have the same token; {REMEDY}")
    tokens[token] = tenant


def read_tokens(path: str | None, environment: Mapping[str, str] = os.environ) -> Tokens:
    """From the file, or from VARIABLE (lines separated by ;). Errors: ValueError."""
    if path is None:
        return parse_tokens(environment.get(VARIABLE, "").split(";"), VARIABLE)
    try:
        mode, text = Path(path).stat().st_mode, Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"token file {path!r} cannot be read: {error}") from error
    if mode & 0o077:
        raise ValueError(f"token file {path!r} can be read by others; type: chmod 600 {path}")
    tokens = parse_tokens(text.splitlines(), path)
    if not tokens:
        raise ValueError(f"token file {path!r} has no token; write {FORM}")
    return tokens


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


OPEN_PATHS = (
    "/healthz",
    "/readyz",
    "/docs",
    "/openapi.json",
    "/fleet",
)  # accessible without a token
# rl-rock sends the second one.
TOKEN_HEADERS = ("authorization", "xrl-authorization")


def admit(headers: Mapping[str, str], path: str, tokens: Tokens) -> Tenant | None:
    """Returns the tenant of a request; None for an open path. Errors: Refusal (401, 403)."""
    if path in OPEN_PATHS:
        return None
    if not tokens:
        _refuse_browsers(headers)
        return tokens.local
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
        if scheme.lower() == "basic":  # NAME:TOKEN@ in a URL, for clients that take only a URL
            return _password(value)
    return None


def _password(value: str) -> str | None:
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return None


def _refuse_browsers(headers: Mapping[str, str]) -> None:
    """Without tokens, only programs on this machine may call. A web page in a browser could call,
    too, by our address or by a host name of its own that it has made to resolve to our address."""
    for url in (f"//{headers.get('host', '')}", headers.get("origin")):
        if url is not None and _host(url) not in LOOPBACK:
            message = f"{url.lstrip('/')!r:.140} is not this machine"
            raise Refusal(403, "forbidden", message, "start the service with a token")


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
