"""Names of hosts in the one spelling in which they are compared, and literal addresses."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import re

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_NAME = 253  # RFC 1035, without the dot at the end
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# At the end of a name, the C library may take it for part of an IPv4 address.
NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
AUTHORITY = re.compile(r"(\[(?P<ipv6>[^\[\]]*:[^\[\]]*)\]|(?P<host>[^:\[\]]*))(:(?P<port>[^:/]*))?")
PORT = re.compile(r"[1-9][0-9]{0,4}")


@dataclasses.dataclass(frozen=True)
class Authority:
    """host: as `canonical_host` spells it, an IPv6 address without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


def canonical_host(text: str) -> str:
    """A name in lower case without a dot at its end, or an address as `ipaddress` writes it.

    ValueError for anything else: for text that is not ASCII, and for what only some would take for
    an address (127.1, 0x7f000001, 2130706433, a zone as in fe80::1%eth0).
    """
    if not text.isascii():  # before lower(), which makes ASCII of some that is not
        raise ValueError(f"host {text!a:.80} is not ASCII; write its xn-- form")
    host = text.lower()
    if ":" in host:
        return str(_ipv6(host))
    host = host.removesuffix(".")
    labels = host.split(".")
    if len(host) > MAX_NAME or not all(LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"{text!r:.80} is not a host name; write one such as pypi.org")
    if NUMERIC_LABEL.fullmatch(labels[-1]):
        return str(_ipv4(host))
    return host


def literal_address(host: str) -> Address | None:
    """The address that a canonical host is; None for a name."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host)
    return None


def split_authority(text: str) -> tuple[str, str | None]:
    """Host and port as they are written, an IPv6 address out of its brackets. ValueError."""
    match = AUTHORITY.fullmatch(text)
    if match is None:
        remedy = "write no more than that, and an IPv6 address in brackets"
        raise ValueError(f"{text!a:.80} is not HOST or HOST:PORT; {remedy}")
    return match["ipv6"] or match["host"], match["port"]


def parse_authority(text: str, default_port: int | None = None) -> Authority:
    """HOST:PORT, or HOST where there is a default. ValueError."""
    host, port = split_authority(text)
    if port is None and default_port is not None:
        return Authority(canonical_host(host), default_port)
    return Authority(canonical_host(host), parse_port(port or ""))


def parse_port(text: str) -> int:
    if not PORT.fullmatch(text) or int(text) > 65535:
        raise ValueError(f"{text!a:.80} is not a port; write a number from 1 to 65535")
    return int(text)


def bracketed(host: str) -> str:
    """A canonical host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def _ipv4(text: str) -> ipaddress.IPv4Address:
    try:
        return ipaddress.IPv4Address(text)
    except ValueError as error:
        remedy = "write four decimal numbers without leading zeros, such as 8.8.4.4"
        raise ValueError(f"{text!r:.80} is not an IPv4 address; {remedy}") from error


def _ipv6(text: str) -> ipaddress.IPv6Address:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError as error:
        raise ValueError(f"{text!r:.80} is not an IPv6 address; write it in hexadecimal") from error
    if address.scope_id is not None:
        raise ValueError(f"{text!r:.80} has a zone, an interface of this host; leave it out")
    return address
