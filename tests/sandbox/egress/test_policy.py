"""What a policy permits, and what it refuses to be."""

import dataclasses
import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ale_jax.sandbox.egress.policy import (
    AUTHORITY,
    MAX_ALLOW,
    EgressPolicy,
    canonical_host,
    parse_authority,
)
from tests.rows import each_row
from tests.sandbox.egress.world import HTTP


def allowing(*entries):
    return EgressPolicy("allowlist", entries)


PERMITTED = [
    ("pypi.org", "pypi.org", 443),
    ("pypi.org", "pypi.org", 80),
    ("pypi.org", "PyPI.oRg.", 443),
    ("PyPI.ORG.", "pypi.org", 443),
    ("pypi.org:8443", "pypi.org", 8443),
    ("*.example.org", "a.example.org", 80),
    ("*.example.org:443", "a.b.example.org", 443),
    ("bücher.example", "xn--bcher-kva.example", 443),
    ("BÜCHER.example", "xn--bcher-kva.example", 443),
    ("xn--bcher-kva.example", "xn--bcher-kva.example", 443),
    ("8.8.8.8", "8.8.8.8", 443),
    ("[2606:4700:0::1111]:53", "2606:4700::1111", 53),
]
NOT_PERMITTED = [
    ("pypi.org", "pypi.org", 22),
    ("pypi.org:8443", "pypi.org", 443),
    ("pypi.org", "www.pypi.org", 443),
    ("pypi.org", "evilpypi.org", 443),
    ("pypi.org", "pypi.org.evil.com", 443),
    ("*.example.org", "example.org", 443),
    ("*.example.org", "evilexample.org", 443),
    ("*.example.org", ".example.org", 443),
    ("*.example.org", "a..example.org", 443),
    ("*.example.org", "*.example.org", 443),
    ("apple.com", "xn--pple-43d.com", 443),  # its first letter is Cyrillic
    ("8.8.8.8", "134744072", 443),
    ("8.8.8.8", "8.8.8.8.nip.io", 443),
    ("pypi.org", "pypi.org:443", 443),
    ("pypi.org", "pypi.org\0", 443),
    ("pypi.org", "pypi.org\n", 443),
    ("pypi.org", "pypı.org", 443),
    ("pypi.org", "ＰyPI.org", 443),
    ("k.example", "\u212a.example", 443),  # the sign of the kelvin, a k in lower case
    ("pypi.org", "", 443),
]


@each_row("entry, host, port", PERMITTED)
def test_an_entry_permits_what_it_names(entry, host, port):
    assert allowing("other.example", entry).permits(host, port)


@each_row("entry, host, port", NOT_PERMITTED)
def test_an_entry_permits_nothing_else(entry, host, port):
    assert not allowing(entry, "other.example").permits(host, port)


def test_the_modes():
    assert not EgressPolicy().permits("pypi.org", 443)
    assert EgressPolicy("open").permits("pypi.org", 22)
    assert EgressPolicy("open").permits("8.8.8.8", 53)
    for host in ("not a host", "0x8.8.8.8", "[8.8.8.8]", "a" * 64 + ".org", "a." * 127 + "org"):
        assert not EgressPolicy("open").permits(host, 443)
    for port in (0, -1, 65536):
        assert not EgressPolicy("open").permits("pypi.org", port)


WRONG_POLICIES = [
    ("all", (), "'all'.*none, allowlist, open"),
    (None, (), "None.*none, allowlist, open"),
    ("none", ("pypi.org",), "'none'.*pypi.org.*leave it out"),
    ("open", ("pypi.org",), "'open'.*pypi.org.*leave it out"),
    ("allowlist", (), "empty.*name a host"),
    ("allowlist", "pypi.org", "'pypi.org'.*list"),
    ("allowlist", {"pypi.org": 443}, "list"),
    ("allowlist", ("pypi.org", 443), "443.*text"),
    ("allowlist", ("pypi.org",) * (MAX_ALLOW + 1), "1001 hosts; write at most 1000"),
]


@each_row("mode, allow, message", WRONG_POLICIES)
def test_a_policy_that_cannot_be_meant_is_refused(mode, allow, message):
    with pytest.raises(ValueError, match=message):
        EgressPolicy(mode, allow)


WRONG_ENTRIES = {
    "": "host name",
    "*": "host name",
    "*.": "host name",
    "*.*.example.org": "host name",
    "a.*.example.org": "host name",
    "a*.example.org": "host name",
    ".example.org": "host name",
    "example..org": "host name",
    "example.org..": "host name",
    "-a.example.org": "host name",
    "a-.example.org": "host name",
    "a_b.example.org": "host name",
    "a b.example.org": "host name",
    "example.org ": "host name",
    "example.org\n": "host name",
    "example.org\0": "host name",
    "user@example.org": "host name",
    "example.test/": "host name",
    "a" * 64 + ".org": "host name",
    "a." * 127 + "org": "host name",
    "a." * 127 + "long:65535": "at most 260 characters",
    "a." * 9000 + "org": "at most 260 characters",
    "[" + ":" * 9000: "at most 260 characters",
    "*.org": "full name",
    "localhost": "full name",
    HTTP + "example.org": "HOST or HOST:PORT",
    "example.org:80:80": "HOST or HOST:PORT",
    "2606:4700::1111": "brackets",
    "[8.8.8.8]": "brackets",
    "example.org:": "port",
    "example.org:0": "port",
    "example.org:65536": "port",
    "example.org:0443": "port",
    "example.org:+443": "port",
    "example.org:https": "port",
    "example.org:٤٤٣": "port",
    "127.1": "decimal numbers",
    "010.8.8.8": "decimal numbers",
    "0x7f000001": "decimal numbers",
    "2130706433": "decimal numbers",
    "example.0x1": "decimal numbers",
    "*.8.8.8.8": "no subdomains",
    "127.0.0.1": "public address",
    "169.254.169.254:80": "public address",
    "[::1]:443": "public address",
    "[::ffff:8.8.8.8]": "public address",
    "[fe80::1%eth0]": "zone",
    "[2606:4700::1111%1]": "zone",
    "[2606:4700:]": "IPv6",
    "ｐypi.org": "xn--",  # fullwidth p
    "pypi。org": "xn--",  # ideographic dot
    "py\u200dpi.org": "xn--",  # zero width joiner
    "py\u00adpi.org": "xn--",  # soft hyphen
    "faß.example": "xn--",
    "ⅷ.example": "xn--",
    "\u212a.example": "xn--",
    "é" * 63 + ".example": "xn--",
    "\ud800.example": "xn--",
}


@each_row("entry, remedy", WRONG_ENTRIES.items(), ids=ascii)
def test_an_entry_that_is_no_host_is_refused_with_a_remedy(entry, remedy):
    with pytest.raises(ValueError, match=remedy) as caught:
        allowing("pypi.org", entry)
    assert ascii(entry)[:60] in str(caught.value)


def test_the_longest_host_and_port_are_accepted():
    host = "a." * 125 + "org"
    assert parse_authority(f"{host}.:65535").host == host and len(host) == 253
    assert allowing(f"*.{host}:65535").permits(f"a.{host}", 65535) is False  # longer than a name
    with pytest.raises(ValueError, match="at most 253 characters"):
        canonical_host(f"{host}..")


def test_no_text_makes_the_expression_try_more_than_one_division():
    # With two divisions at each colon, this would take hours.
    assert AUTHORITY.fullmatch("[" + ":" * 1_000_000) is None
    assert AUTHORITY.fullmatch("[" + "a" * 500_000 + ":" * 500_000) is None


LABELS = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=8)
HOSTS = st.builds("{}.z{}".format, st.lists(LABELS, min_size=1, max_size=4).map(".".join), LABELS)


@given(HOSTS, HOSTS, st.integers(1, 65535))
def test_a_name_permits_itself_a_wildcard_those_below(host, other, port):
    exact, below = allowing(f"{host}:{port}"), allowing(f"*.{host}:{port}")
    assert exact.permits(host, port) and not below.permits(host, port)
    assert exact.permits(other, port) == (other == host)
    assert below.permits(f"{other}.{host}", port) and not exact.permits(f"{other}.{host}", port)
    assert not below.permits(f"{other}{host}", port)
    assert not exact.permits(host, port % 65535 + 1)


@given(st.text(max_size=40), st.integers())
def test_what_is_asked_for_never_raises(host, port):
    assert not EgressPolicy().permits(host, port)
    EgressPolicy("open").permits(host, port)
    assert allowing("pypi.org").permits(host, port) <= (host.lower().rstrip(".") == "pypi.org")


@given(st.text(max_size=40))
def test_an_entry_is_a_host_or_a_value_error(entry):
    try:
        policy = allowing(entry)
    except ValueError:
        return
    assert EgressPolicy(**json.loads(json.dumps(dataclasses.asdict(policy)))) == policy


@each_row(
    "policy", [EgressPolicy(), EgressPolicy("open"), allowing("*.bücher.example:1", "8.8.8.8")]
)
def test_json_and_back(policy):
    again = EgressPolicy(**json.loads(json.dumps(dataclasses.asdict(policy))))
    assert again == policy and hash(again) == hash(policy)
