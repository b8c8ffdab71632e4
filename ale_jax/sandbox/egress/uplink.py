"""What the operator of a host says of the network around it. No spec, task or agent can."""

from __future__ import annotations

import dataclasses
import functools
import ipaddress

from ale_jax.config.setting import Settings, setting
from ale_jax.sandbox.egress.policy import (
    PRIVATE,
    WEB_PORTS,
    Address,
    Network,
    is_own,
    is_private,
    lies_in,
    parse_port,
    refusal,
    split_authority,
    translated,
)
from ale_jax.sandbox.egress.upstream import UpstreamProxy, parse_proxy, read_proxy

# Where clouds keep credentials of their machines, within networks that are otherwise private.
METADATA = tuple(
    ipaddress.ip_network(text)
    for text in (
        "100.100.100.200/32",  # Alibaba
        "fd00:42::42/128",  # Scaleway
        "fd00:ec2::/32",  # Amazon
        "fd20:ce::/32",  # Google
    )
)
EXAMPLES = "such as 10.0.5.0/24, 10.0.5.7:3141 or [fd00:5::/64]:8443"


@dataclasses.dataclass(frozen=True)
class Uplink(Settings):
    """How connections of sandboxes leave their host, where that is not directly to the internet.
    What a sandbox's own network policy refuses stays refused."""

    networks: tuple[str, ...] = setting(
        (),
        'private networks that hosts may be in: "10.0.5.0/24" (ports 80 and 443), '
        '"10.0.5.7:3141", "[fd00:5::/64]:8443". Addresses of the machine itself only count if '
        "they are named alone; loopback, link-local and metadata addresses never.",
    )
    proxy: str = setting(
        "",
        "the HTTP proxy that leads out, and looks up names: http://HOST:PORT, or the path of a "
        "file of mode 600 on each machine, which holds http://USER:PASSWORD@HOST:PORT. A sandbox "
        "has what the file says when it starts.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for entry in self.networks:
            _parse_block(entry)
        if self.proxy and not self.proxy.startswith("/"):
            parse_proxy(self.proxy)

    def names(self, address: Address, port: int) -> bool:
        """Whether it is in one of the networks."""
        return any(_parse_block(entry).has(translated(address), port) for entry in self.networks)

    def refusal(self, address: Address, port: int) -> str | None:
        """Why no sandbox may connect to it; None if that is permitted."""
        if self.names(address, port):
            return None
        reason = refusal(address)
        if reason and is_private(address):
            return f"{reason}, and not one whose port {port} the operator names (uplink)"
        return reason

    def upstream(self) -> UpstreamProxy | None:
        """The proxy, with what its file says now. Errors: ValueError, without the password."""
        return read_proxy(self.proxy) if self.proxy else None


DIRECT = Uplink()


@dataclasses.dataclass(frozen=True)
class Block:
    """Ports of the addresses of a private network."""

    network: Network
    ports: tuple[int, ...]

    def has(self, address: Address, port: int) -> bool:
        if port not in self.ports or address not in self.network or lies_in(address, METADATA):
            return False
        # The host's other programs, such as a service or Ray, listen on its addresses, too.
        return self.network.num_addresses == 1 or not is_own(address)


@functools.lru_cache(maxsize=1024)
def _parse_block(entry: str) -> Block:
    try:
        text, port = split_authority(entry)
        network = ipaddress.ip_network(text)
        if getattr(network.network_address, "scope_id", None) is not None:
            raise ValueError("it has a zone (an interface of this host)")
        block = Block(network, WEB_PORTS if port is None else (parse_port(port),))
    except ValueError as error:
        raise ValueError(f"uplink network {entry!a:.80}: {error}; write one {EXAMPLES}") from error
    if not any(_is_within(network, private) for private in PRIVATE):
        known = ", ".join(map(str, PRIVATE))
        raise ValueError(f"uplink network {entry!a:.80} must be within one of {known}")
    if any(_is_within(network, kept) for kept in METADATA):
        raise ValueError(
            f"uplink network {entry!a:.80} is where a cloud keeps credentials: leave it out"
        )
    return block


def _is_within(network: Network, outer: Network) -> bool:
    return network.network_address in outer and network.prefixlen >= outer.prefixlen
