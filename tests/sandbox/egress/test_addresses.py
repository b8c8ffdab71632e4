"""Which addresses no sandbox reaches, and what is asked of the resolver."""

import ipaddress
import socket

import pytest

from ale_jax.sandbox.egress import policy
from ale_jax.sandbox.egress.policy import Authority, canonical_host, parse_authority
from tests.rows import each_row

PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "100.63.255.255",
    "100.128.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.0.1.0",
    "192.167.255.255",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "2001:200::1",
    "2606:4700::1111",
    "2a00:1450::1",
    "64:ff9b::808:808",  # NAT64 of 8.8.8.8
]
NOT_PUBLIC = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.127.255.255",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",  # IPv4-compatible
    "::ffff:10.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:8.8.8.8",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::a83f:8110",
    "64:ff9b:1::808:808",
    "100::1",
    "2001::1",  # Teredo
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:2::1",
    "2001:20::1",
    "2001:db8::1",
    "2002:7f00:1::",  # 6to4
    "2002:a9fe:a9fe::1",
    "2002:808:808::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",  # a cloud's metadata
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
]


@each_row("text", PUBLIC)
def test_a_public_address_may_be_reached(text):
    assert policy.is_public(ipaddress.ip_address(text))
    assert policy.refusal(ipaddress.ip_address(text)) is None


@each_row("text", NOT_PUBLIC)
def test_no_other_address_may_be_reached(text):
    assert "not a public" in policy.refusal(ipaddress.ip_address(text))


def test_the_first_and_the_last_of_every_refused_network_are_refused():
    for network in (*policy.IPV4_REFUSED, *policy.IPV6_REFUSED):
        assert not policy.is_public(network[0]) and not policy.is_public(network[-1])


def own_addresses():
    """What the kernel lists, by another way than the one under test."""
    yield "127.0.0.1"
    yield "127.9.8.7"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.254", 9))  # sends nothing
        except OSError:
            return  # no route, hence no interface to speak of
        yield sock.getsockname()[0]


def test_an_address_of_this_host_is_known_for_one():
    for text in own_addresses():
        assert policy.is_own(ipaddress.ip_address(text)), text
        embedded = ipaddress.ip_address(f"64:ff9b::{text}")
        assert policy.is_own(embedded), embedded
    for text in ("8.8.8.8", "2606:4700::1111"):
        assert not policy.is_own(ipaddress.ip_address(text))


def test_an_own_address_is_refused_though_it_be_public(monkeypatch):
    monkeypatch.setattr(policy, "is_own", lambda address: str(address) == "8.8.8.8")
    assert "this host" in policy.refusal(ipaddress.ip_address("8.8.8.8"))
    assert policy.refusal(ipaddress.ip_address("8.8.4.4")) is None


SPELLINGS = [
    "127.1",
    "127.0.1",
    "127.0.0.01",
    "0177.0.0.1",
    "0x7f.0.0.1",
    "0x7f000001",
    "0x7F000001",
    "127.0.0.0x1",
    "2130706433",
    "017700000001",
    "1.2.3.4.5",
    "256.1.1.1",
    "1.2.3",
    "0",
    "0x",
    "[::1",
    "::1]",
    "[::1]",
    "[fe80::1%eth0]",
    "fe80::1%eth0",
    "2606:4700::1111%2",
    "::ffff:127.1",
    "::ffff:0x7f000001",
    "127.0.0.1:80",
    "１２７.0.0.1",
    "127。0。0。1",
    "①②⑦.0.0.1",
    " 127.0.0.1",
    "127.0.0.1 ",
    "127.0.0.1\0.example.org",
    "127.0.0.1%00.example.org",
    "127.0.0.1#.example.org",
    "127.0.0.1@example.org",
    "example.org@127.0.0.1",
    "\\127.0.0.1",
]


@each_row("text", SPELLINGS)
def test_a_weird_spelling_is_no_host(text):
    with pytest.raises(ValueError, match=r"is not|has a zone"):
        canonical_host(text)


@each_row(
    "text, host",
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1.", "127.0.0.1"),
        ("::FFFF:10.0.0.1", "::ffff:a00:1"),
        ("0:0:0:0:0:0:0:1", "::1"),
    ],
)
def test_every_other_spelling_of_an_address_becomes_one(text, host):
    assert canonical_host(text) == host
    assert policy.look_up(host) == (ipaddress.ip_address(host),)


def test_an_authority_names_a_port_or_has_a_default():
    assert parse_authority("Example.ORG.:81") == Authority("example.org", 81)
    assert parse_authority("example.org", 80) == Authority("example.org", 80)
    assert str(parse_authority("[2606:4700:0::1]:443")) == "[2606:4700::1]:443"
    for text in ("example.org", "example.org:", ":443", "example.org:99999", "a:1:2", "u@a.b:1"):
        with pytest.raises(ValueError, match="is not"):
            parse_authority(text)
    with pytest.raises(ValueError, match="port"):
        parse_authority("example.org:", 80)


def answering(*texts):
    """A getaddrinfo that gives these addresses, and remembers what it was asked."""

    def getaddrinfo(host, port, **options):
        getaddrinfo.asked.append(host)
        families = [socket.AF_INET6 if ":" in text else socket.AF_INET for text in texts]
        return [(f, socket.SOCK_STREAM, 6, "", (t, 0)) for f, t in zip(families, texts)]

    getaddrinfo.asked = []
    return getaddrinfo


def test_a_name_is_looked_up_as_it_is_and_the_families_take_turns(monkeypatch):
    found = answering("2606:4700::1", "2606:4700::2", "2606:4700::1", "8.8.8.8", "fe80::1%eth0")
    monkeypatch.setattr(socket, "getaddrinfo", found)
    assert [str(a) for a in policy.look_up("pypi.org")] == [
        "2606:4700::1",
        "8.8.8.8",
        "2606:4700::2",
        "fe80::1%eth0",
    ]
    assert found.asked == ["pypi.org."]  # with the dot, no search list is tried
