"""Where a sandbox may connect to."""

from __future__ import annotations

import dataclasses
import functools

from ale_jax.sandbox.egress.addresses import is_public
from ale_jax.sandbox.egress.hosts import (
    canonical_host,
    literal_address,
    parse_port,
    split_authority,
)

MODES = ("none", "allowlist", "open")
WEB_PORTS = (80, 443)
WILDCARD = "*."


@dataclasses.dataclass(frozen=True)
class EgressPolicy:
    """mode: "none", "allowlist", or "open" (any public host).

    allow, for an allowlist only: "pypi.org" (ports 80 and 443), "pypi.org:8443",
    "*.example.org:443" (one label before or more, but not example.org itself), and public
    addresses. Names are compared in lower case, without a dot at the end, in their xn-- form.
    A list, as JSON has it, becomes a tuple. ValueError for what cannot be meant.
    """

    mode: str = "none"
    allow: tuple[str, ...] = ()

    def __post_init__(self):
        if self.mode not in MODES:
            raise ValueError(f"egress mode {self.mode!r:.80}; write one of {', '.join(MODES)}")
        if not isinstance(self.allow, tuple | list):
            raise ValueError(f"egress allow {self.allow!r:.80}; write a list of hosts")
        object.__setattr__(self, "allow", tuple(self.allow))
        if self.mode != "allowlist" and self.allow:
            raise ValueError(
                f"egress mode {self.mode!r} does not use allow {self.allow!r:.80};"
                ' leave it out, or write mode "allowlist"'
            )
        if self.mode == "allowlist" and not self.allow:
            raise ValueError('egress allow () is empty; name a host, or write mode "none"')
        for entry in self.allow:
            if not isinstance(entry, str):
                raise ValueError(f"egress allow has {entry!r:.80}; write a host as text")
            _parse_rule(entry)

    def permits(self, host: str, port: int) -> bool:
        """Whether a connection may be asked for. What is not a host or a port is not permitted."""
        try:
            host = canonical_host(host)
        except ValueError:
            return False
        if not 1 <= port <= 65535:
            return False
        return self.mode == "open" or any(_parse_rule(e).permits(host, port) for e in self.allow)


@dataclasses.dataclass(frozen=True)
class Rule:
    """An entry of an allowlist. subdomains: `host` stands for those below it, not for itself."""

    host: str
    subdomains: bool
    ports: tuple[int, ...]

    def permits(self, host: str, port: int) -> bool:
        named = host.endswith(f".{self.host}") if self.subdomains else host == self.host
        return named and port in self.ports


@functools.lru_cache(maxsize=4096)
def _parse_rule(entry: str) -> Rule:
    try:
        name, port = split_authority(entry.removeprefix(WILDCARD))
        host = canonical_host(_in_ascii(name))
        rule = Rule(
            host, entry.startswith(WILDCARD), WEB_PORTS if port is None else (parse_port(port),)
        )
        _check_reachable(rule)
    except ValueError as error:
        raise ValueError(f"egress allow has {entry!a:.80}: {error}") from error
    return rule


def _check_reachable(rule: Rule) -> None:
    """ValueError for a rule that could never permit anything, or almost everything."""
    address = literal_address(rule.host)
    if address is None and "." not in rule.host:
        raise ValueError(f"{rule.host!r} is one label; write a full name such as pypi.org")
    if address is not None and rule.subdomains:
        raise ValueError(f"the address {rule.host} has no subdomains; leave out the {WILDCARD!r}")
    if address is not None and not is_public(address):
        raise ValueError(f"no sandbox may reach {rule.host}; give a public address")


def _in_ascii(name: str) -> str:
    """The xn-- form of a name. ValueError if encoding changes more of it than capitals.

    That catches look-alikes of ASCII (fullwidth letters, ideographic dots, invisible characters),
    and letters such as the German sharp s, which newer and older rules (IDNA 2008, 2003) encode
    differently.
    """
    return ".".join(label if label.isascii() else _encode(label) for label in name.split("."))


def _encode(label: str) -> str:
    remedy = "write its xn-- form"
    try:
        encoded = label.encode("idna")
        # Some signs become plain letters of ASCII, such as that of the kelvin.
        faithful = encoded.startswith(b"xn--") and encoded.decode("idna") == label.lower()
    except UnicodeError as error:
        raise ValueError(f"{label!a:.80} has no xn-- form ({error}); {remedy}") from error
    if not faithful:
        raise ValueError(f"{label!a:.80} may be read in two ways; {remedy}")
    return encoded.decode()
