"""Which addresses a sandbox may reach, whatever its policy says, and what a name resolves to."""

from __future__ import annotations

import errno
import ipaddress
import itertools
import socket
from collections.abc import Iterable

from ale_jax.sandbox.egress.hosts import Address, literal_address

# The IANA special-purpose address registries, and what they call global but is of no use here.
# Not `ipaddress.is_global`: what it says of multicast, NAT64 and 6to4 changes between Pythons.
IPV4_REFUSED = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",
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
# Only this block is global unicast: loopback, mapped, private, local and multicast lie outside.
IPV6_GLOBAL = ipaddress.IPv6Network("2000::/3")
IPV6_REFUSED = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments, with Teredo, benchmarks and ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: leads to the IPv4 address within
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)
# In a network without IPv4, every IPv4-only name resolves to one of these.
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def is_public(address: Address) -> bool:
    """Whether it is global unicast."""
    address = _translated(address)
    if address.version == 4:
        return not any(address in network for network in IPV4_REFUSED)
    return address in IPV6_GLOBAL and not any(address in network for network in IPV6_REFUSED)


def is_own(address: Address) -> bool:
    """Whether a packet to it would come back to this host, by any of its interfaces.

    The kernel is asked, since it binds a socket only to what is its own. Where it was told to bind
    anything (net.ipv4.ip_nonlocal_bind), every address is taken for one of ours, and refused.
    """
    address = _translated(address)
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
    """Why no sandbox may reach it; None if one may."""
    if not is_public(address):
        return "it is not a public address"
    if is_own(address):
        return "it is an address of this host (or net.ipv4.ip_nonlocal_bind is set)"
    return None


def look_up(host: str) -> tuple[Address, ...]:
    """The addresses of a canonical host, the best first. Blocks, for as long as DNS takes. OSError.

    The name is taken as it is: the search list of resolv.conf would lead to other hosts, of which
    the policy has not heard.
    """
    if (literal := literal_address(host)) is not None:
        return (literal,)
    found = socket.getaddrinfo(
        f"{host}.", None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
    )
    return in_turn(dict.fromkeys(ipaddress.ip_address(sockaddr[0]) for *_, sockaddr in found))


def in_turn(found: Iterable[Address]) -> tuple[Address, ...]:
    """Both families in turn, so that if one leads nowhere the second attempt is not of it."""
    families: dict[int, list[Address]] = {}
    for address in found:
        families.setdefault(address.version, []).append(address)
    turns = itertools.zip_longest(*families.values())
    return tuple(address for turn in turns for address in turn if address is not None)


def _translated(address: Address) -> Address:
    """The IPv4 address that a NAT64 gateway would make of it; otherwise itself."""
    if address.version == 6 and address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address
