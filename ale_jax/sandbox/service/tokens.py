"""Who may call: bearer tokens, each with the name of its owner."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

VARIABLE = "ALE_SANDBOX_TOKENS"
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
MIN_TOKEN = 16  # characters
FORM = "NAME TOKEN or NAME TOKEN admin"
REMEDY = "python -c 'import secrets; print(secrets.token_urlsafe(24))' makes one"


@dataclasses.dataclass(frozen=True)
class Tenant:
    """Whose sandboxes they are. admin: sees everybody's."""

    name: str
    admin: bool = False


LOCAL = Tenant("local", admin=True)  # whoever calls a service that has no tokens


class Tokens:
    """All that are valid. Empty: nobody is asked for one."""

    def __init__(self, tokens: Mapping[str, Tenant]):
        self._tenants = [(_digest(token), tenant) for token, tenant in tokens.items()]

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def find(self, token: str) -> Tenant | None:
        """The time it takes tells nothing of the tokens: every one of them is compared."""
        digest, found = _digest(token), None
        for known, tenant in self._tenants:
            if hmac.compare_digest(known, digest):
                found = tenant
        return found


def parse_tokens(lines: Iterable[str], source: str) -> Tokens:
    """One of FORM per line; what follows # is left out. Errors: ValueError, without the token."""
    tokens: dict[str, Tenant] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{source}, line {number}"
        if len(words) not in (2, 3) or words[2:] not in ([], ["admin"]):
            raise ValueError(f"{where}: {len(words)} words; write {FORM}")
        name, token = words[:2]
        if not NAME.fullmatch(name):
            raise ValueError(f"{where}: name {name!r:.80} must match {NAME.pattern}")
        if len(token) < MIN_TOKEN:
            raise ValueError(f"{where}: the token has {len(token)} characters; {REMEDY}")
        if token in tokens:
            raise ValueError(f"{where}: two lines have the same token; {REMEDY}")
        tokens[token] = Tenant(name, admin=len(words) == 3)
    return Tokens(tokens)


def read_tokens(path: str | None, environment: Mapping[str, str] = os.environ) -> Tokens:
    """From the file, or from VARIABLE (lines divided by ;). Errors: ValueError."""
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
