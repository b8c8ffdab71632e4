"""Where a sandbox may connect: canonical host names, their addresses, addresses that are never
allowed, and the network policy of a spec."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import ipaddress
import itertools
import re
import socket
from collections.abc import Iterable

from ale_jax.config.setting import setting

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_NAME = 253  # RFC 1035, without the trailing dot
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# As the last label of a name, the C library may take it for part of an IPv4 address.
NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
# What stands before each colon has none itself, so no text can be divided in more than one way.
AUTHORITY = re.compile(
    r"(\[(?P<ipv6>[^\[\]:]*:[^\[\]]*)\]|(?P<host>[^:\[\]]*))(:(?P<port>[^:/]*))?"
)
# RFC 6761 and 6762 (with its appendix G), RFC 8375.
INNER_NAMES = (
    *(".localhost", ".local", ".localdomain", ".home.arpa"),
    *(".intranet", ".internal", ".private", ".corp", ".home", ".lan"),
)
MAX_AUTHORITY = len(f"{'a' * MAX_NAME}.:65535")
PORT = re.compile(r"[1-9][0-9]{0,4}")


@dataclasses.dataclass(frozen=True)
class Authority:
    """A host and port. host: as `canonical_host` returns it, an IPv6 address without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


def canonical_host(text: str) -> str:
    """Returns a name in lower case without a trailing dot, or an address as `ipaddress` formats it.

    Errors: ValueError for anything else, such as text that is not ASCII, or addresses that only
    some parsers accept (127.1, 0x7f000001, 2130706433, a zone as in fe80::1%eth0).
    """
    if len(text) > MAX_NAME + len("."):
        raise ValueError(f"{text!a:.80} is not a host name; write at most {MAX_NAME} characters")
    if not text.isascii():  # before lower(), which maps some non-ASCII letters to ASCII
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
    """The address if the canonical host is one; None for a name."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host)
    return None


def is_inner_name(host: str) -> bool:
    """Whether a canonical host is a name that no public one ends with, such as
    metadata.google.internal. What it means depends on who looks it up."""
    return literal_address(host) is None and ("." not in host or host.endswith(INNER_NAMES))


def split_authority(text: str) -> tuple[str, str | None]:
    """Splits into host and port as written; IPv6 addresses lose their brackets. ValueError."""
    if len(text) > MAX_AUTHORITY:
        remedy = f"write at most {MAX_AUTHORITY} characters"
        raise ValueError(f"{text!a:.80} is not HOST or HOST:PORT; {remedy}")
    match = AUTHORITY.fullmatch(text)
    if match is None:
        remedy = "write nothing else, and an IPv6 address in brackets"
        raise ValueError(f"{text!a:.80} is not HOST or HOST:PORT; {remedy}")
    return match["ipv6"] or match["host"], match["port"]


def parse_authority(text: str, default_port: int | None = None) -> Authority:
    """Parses HOST:PORT, or HOST if there is a default port. ValueError."""
    host, port = split_authority(text)
    if port is None and default_port is not None:
        return Authority(canonical_host(host), default_port)
    return Authority(canonical_host(host), parse_port(port or ""))


def parse_port(text: str) -> int:
    if not PORT.fullmatch(text) or int(text) > 65535:
        raise ValueError(f"{text!a:.80} is not a port; write a number from 1 to 65535")
    return int(text)


def bracketed(host: str) -> str:
    """A canonical host as it is written in a URL."""
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
        raise ValueError(f"{text!r:.80} has a zone (an interface of this host); remove it")
    return address


# The IANA special-purpose address registries, and blocks that they call global but that no sandbox
# needs. `ipaddress.is_global` is not used, since its results for multicast, NAT64 and 6to4 differ
# between Python versions.
IPV4_REFUSED = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",
        "168.63.129.16/32",  # WireServer, which gives an Azure VM its settings and certificates
        "169.254.0.0/16",  # link-local, where clouds keep credentials
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # multicast tunnels
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
# Only this block is global unicast; loopback, mapped, private, local and multicast are outside.
IPV6_GLOBAL = ipaddress.IPv6Network("2000::/3")
IPV6_REFUSED = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments, with Teredo, benchmarks and ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: leads to the embedded IPv4 address
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)
# The operator of a host may name parts of these (`uplink.Uplink`).
PRIVATE = tuple(
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
)
# In a network without IPv4, every IPv4-only name resolves to one of these.
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def is_public(address: Address) -> bool:
    """Whether it is a global unicast address."""
    address = translated(address)
    if address.version == 4:
        return not lies_in(address, IPV4_REFUSED)
    return address in IPV6_GLOBAL and not lies_in(address, IPV6_REFUSED)


def is_private(address: Address) -> bool:
    """Whether it is one that the operator of a host may let sandboxes reach."""
    return lies_in(translated(address), PRIVATE)


def lies_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)


def is_own(address: Address) -> bool:
    """Whether a packet to it would come back to this host, through any of its interfaces.

    This tries to bind a socket to it, which the kernel permits only for its own addresses. With
    net.ipv4.ip_nonlocal_bind it permits any, so every address counts as this host's own.
    """
    address = translated(address)
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return False
        raise
    return True


def refusal(address: Address) -> str | None:
    """Why no sandbox may connect to it; None if that is permitted."""
    if not is_public(address):
        return "it is not a public address"
    if is_own(address):
        return "it is an address of this host (or net.ipv4.ip_nonlocal_bind is set)"
    return None


def look_up(host: str) -> tuple[Address, ...]:
    """The addresses of a canonical host, best first. Blocks on DNS. Errors: OSError.

    The name is looked up as absolute, because the search list of resolv.conf could lead to other
    hosts that the policy did not check.
    """
    if (literal := literal_address(host)) is not None:
        return (literal,)
    found = socket.getaddrinfo(
        f"{host}.", None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
    )
    return in_turn(dict.fromkeys(ipaddress.ip_address(sockaddr[0]) for *_, sockaddr in found))


def in_turn(found: Iterable[Address]) -> tuple[Address, ...]:
    """Alternates the address families, so that a second attempt does not use a broken one again."""
    families: dict[int, list[Address]] = {}
    for address in found:
        families.setdefault(address.version, []).append(address)
    turns = itertools.zip_longest(*families.values())
    return tuple(address for turn in turns for address in turn if address is not None)


def translated(address: Address) -> Address:
    """The IPv4 address to which a NAT64 gateway would translate it; otherwise itself."""
    if address.version == 6 and address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


MAX_ALLOW = 1000
MODES = ("none", "allowlist", "open")
WEB_PORTS = (80, 443)
WILDCARD = "*."


@dataclasses.dataclass(frozen=True)
class EgressPolicy:
    """Which hosts a sandbox may connect to, besides its own loopback."""

    mode: str = setting("none", '"none", "allowlist", or "open" (any public host).', choices=MODES)
    allow: tuple[str, ...] = setting(
        (),
        'only for an allowlist: "pypi.org" (ports 80 and 443), "pypi.org:8443", '
        '"*.example.org:443" (one or more labels in front, but not example.org itself), and '
        "public addresses, or private ones that the host's operator names. At most 1,000 entries. "
        "Names are compared in lower case, without a trailing dot, in their xn-- form. A list, as "
        "from JSON, becomes a tuple. ValueError for entries that make no sense.",
    )

    def __post_init__(self):
        if self.mode not in MODES:
            raise ValueError(f"egress mode {self.mode!r:.80}; write one of {', '.join(MODES)}")
        if not isinstance(self.allow, tuple | list):
            raise ValueError(f"egress allow {self.allow!r:.80}; write a list of hosts")
        if len(self.allow) > MAX_ALLOW:
            raise ValueError(
                f"egress allow has {len(self.allow)} hosts; write at most {MAX_ALLOW}, of which"
                f" {WILDCARD}example.org stands for many"
            )
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
        """Whether a connection may be requested; False if host or port is invalid."""
        try:
            host = canonical_host(host)
        except ValueError:
            return False
        if not 1 <= port <= 65535:
            return False
        return self.mode == "open" or any(_parse_rule(e).permits(host, port) for e in self.allow)


@dataclasses.dataclass(frozen=True)
class Rule:
    """An allowlist entry. subdomains: it matches the subdomains of `host`, but not `host`."""

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
    """ValueError for a rule that could never match, or that would match almost everything."""
    address = literal_address(rule.host)
    if address is None and "." not in rule.host:
        raise ValueError(f"{rule.host!r} is one label; write a full name such as pypi.org")
    if address is not None and rule.subdomains:
        raise ValueError(f"the address {rule.host} has no subdomains; leave out the {WILDCARD!r}")
    if address is not None and not (is_public(address) or is_private(address)):
        raise ValueError(f"no sandbox may reach {rule.host}; give a public address")


def _in_ascii(name: str) -> str:
    """The xn-- form of a name. ValueError if encoding changes more of it than upper case.

    This rejects look-alikes of ASCII (fullwidth letters, ideographic dots, invisible characters),
    and letters such as the German sharp s, which IDNA 2003 and IDNA 2008 encode differently.
    """
    return ".".join(label if label.isascii() else _encode(label) for label in name.split("."))


def _encode(label: str) -> str:
    remedy = "write its xn-- form"
    try:
        encoded = label.encode("idna")
        # Some characters become plain ASCII letters, such as the kelvin sign.
        faithful = encoded.startswith(b"xn--") and encoded.decode("idna") == label.lower()
    except UnicodeError as error:
        raise ValueError(f"{label!a:.80} has no xn-- form ({error}); {remedy}") from error
    if not faithful:
        raise ValueError(f"{label!a:.80} is ambiguous; {remedy}")
    return encoded.decode()
