"""What an operator may name, what sandboxes then reach, and who has the proxy's password."""

import dataclasses
import ipaddress
import pickle

import pytest

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.egress import uplink
from ale_jax.sandbox.egress.policy import Authority, EgressPolicy
from ale_jax.sandbox.egress.uplink import DIRECT, Uplink
from ale_jax.sandbox.runtime import pick_runtime
from tests.rows import each_row
from tests.sandbox.conftest import SPEC
from tests.sandbox.egress.world import HTTP

SECRET = "s3cret"
NAMED = [
    ("10.0.5.0/24", "10.0.5.7", 80),
    ("10.0.5.0/24", "10.0.5.7", 443),
    ("10.0.5.7", "10.0.5.7", 443),
    ("10.0.5.7:3141", "10.0.5.7", 3141),
    ("100.64.0.0/10", "100.64.0.1", 80),
    ("192.168.0.0/16:8081", "192.168.9.9", 8081),
    ("[fd00:5::/64]", "fd00:5::7", 443),
    ("[fd00:5::7]:4873", "fd00:5::7", 4873),
    ("10.0.5.0/24", "64:ff9b::a00:507", 80),  # NAT64 of 10.0.5.7
]
NOT_NAMED = [
    ("10.0.5.0/24", "10.0.5.7", 22),
    ("10.0.5.0/24", "10.0.6.7", 80),
    ("10.0.5.7:3141", "10.0.5.7", 443),
    ("10.0.5.7:3141", "10.0.5.8", 3141),
    ("10.0.0.0/8", "::ffff:10.0.5.7", 80),
    ("10.0.0.0/8", "::10.0.5.7", 80),
    ("10.0.0.0/8", "2002:a00:507::", 80),  # 6to4
    ("10.0.0.0/8", "127.0.0.1", 80),
    ("10.0.0.0/8", "169.254.169.254", 80),
    ("100.64.0.0/10", "100.100.100.200", 80),  # where clouds keep credentials
    ("100.64.0.0/10", "64:ff9b::6464:64c8", 80),
    ("[fc00::/7]", "fd00:ec2::254", 80),
    ("[fc00::/7]", "fd20:ce::254", 80),
    ("[fc00::/7]", "fd00:42::42", 80),
    ("[fc00::/7]", "::1", 80),
    ("[fc00::/7]", "fe80::1", 80),
]


@each_row("entry, address, port", NAMED)
def test_what_the_operator_names_may_be_reached(entry, address, port):
    address = ipaddress.ip_address(address)
    named = Uplink(networks=("172.16.0.0/12", entry))
    assert named.names(address, port) and named.refusal(address, port) is None
    assert "not a public address" in DIRECT.refusal(address, port)


@each_row("entry, address, port", NOT_NAMED)
def test_nothing_else_may_be_reached(entry, address, port):
    named, address = Uplink(networks=(entry,)), ipaddress.ip_address(address)
    assert not named.names(address, port)
    assert "not a public address" in named.refusal(address, port)


def test_public_addresses_are_reached_as_ever():
    named = Uplink(networks=("10.0.5.0/24",))
    for port in (22, 443):
        assert named.refusal(ipaddress.ip_address("8.8.8.8"), port) is None


def test_an_address_of_this_host_only_counts_if_it_is_named_alone(monkeypatch):
    monkeypatch.setattr(uplink, "is_own", lambda address: str(address) == "10.0.5.7")
    own, neighbour = ipaddress.ip_address("10.0.5.7"), ipaddress.ip_address("10.0.5.8")
    wide, alone = Uplink(networks=("10.0.5.0/24",)), Uplink(networks=("10.0.5.7:3141",))
    assert wide.refusal(own, 80) and wide.refusal(neighbour, 80) is None
    assert alone.refusal(own, 3141) is None and alone.refusal(own, 80)


def test_the_event_of_a_refusal_says_what_the_operator_may_name():
    reason = Uplink(networks=("10.0.5.7",)).refusal(ipaddress.ip_address("10.0.5.7"), 22)
    assert "port 22" in reason and "the operator names" in reason
    assert "operator" not in DIRECT.refusal(ipaddress.ip_address("127.0.0.1"), 22)


WRONG_NETWORKS = {
    "": "such as 10.0.5.0/24",
    "10.0.5.7/24": "host bits set",
    "10.0.5.0/33": "such as",
    "10.0.5.7:0": "not a port",
    "10.0.5.7:": "not a port",
    "mirror.example": "such as",
    "fd00:5::/64": "brackets",
    "[fd00::1%eth0]": "such as",
    "0.0.0.0/0": "within one of 10.0.0.0/8",
    "8.8.8.8": "within one of",
    "127.0.0.1:3141": "within one of",
    "169.254.169.254": "within one of",
    "168.63.129.16": "within one of",
    "224.0.0.1": "within one of",
    "10.0.0.0/7": "within one of",
    "[::1]:80": "within one of",
    "[::/0]": "within one of",
    "[::ffff:10.0.5.7]": "within one of",
    "[fe80::1]": "within one of",
    "[64:ff9b::a00:507]": "within one of",
    "100.100.100.200": "keeps credentials",
    "[fd00:ec2::254]": "keeps credentials",
}


@each_row("entry, remedy", WRONG_NETWORKS.items())
def test_a_network_that_may_not_be_named_is_refused(entry, remedy):
    with pytest.raises(ValueError, match=remedy) as caught:
        Uplink(networks=("10.0.5.0/24", entry))
    assert repr(entry) in str(caught.value)


@each_row(
    "proxy, remedy",
    [
        ("proxy.example:3128", "HTTP proxy"),
        (f"https{HTTP[4:]}proxy.example:3128", "HTTP proxy"),
        (f"{HTTP}proxy.example", "not a port"),
        (f"{HTTP}proxy.example:3128/path", "HTTP proxy"),
        (f"{HTTP}pro xy.example:3128", "HTTP proxy"),
        (f"{HTTP}0x7f.1:3128", "IPv4"),
        (f"{HTTP}ann:{SECRET}@proxy.example:3128", "into a file of mode 600"),
    ],
)
def test_what_is_no_proxy_is_refused_without_its_password(proxy, remedy):
    with pytest.raises(ValueError, match=remedy) as caught:
        Uplink(proxy=proxy)
    assert SECRET not in str(caught.value)


def test_a_proxy_is_a_url_or_a_private_file_with_one(tmp_path):
    plain = Uplink(proxy=f"{HTTP}proxy.example:3128").upstream()
    assert (plain.authority, plain.login) == (Authority("proxy.example", 3128), "")
    file = tmp_path / "proxy"
    kept = Uplink(proxy=str(file))
    file.write_text(f"{HTTP}ann:s3%3Acret@proxy.example:3128\n")
    file.chmod(0o600)
    found = kept.upstream()
    assert found.login == "Basic YW5uOnMzOmNyZXQ="  # ann:s3:cret
    assert found.login not in repr(found) and b"cret" not in pickle.dumps(kept)
    file.write_text(f"{HTTP}proxy.example:8080")
    assert kept.upstream().authority.port == 8080 and DIRECT.upstream() is None


def test_a_file_that_cannot_be_used_is_named_and_not_quoted(tmp_path):
    file = tmp_path / "proxy"
    kept = Uplink(proxy=str(file))

    def reason():
        with pytest.raises(ValueError, match=str(file)) as caught:
            kept.upstream()
        assert SECRET not in str(caught.value) and caught.value.__cause__ is None
        return str(caught.value)

    assert "cannot be read" in reason()
    file.write_text(f"{HTTP}ann:{SECRET}@proxy.example:3128")
    file.chmod(0o640)
    assert f"chmod 600 {file}" in reason()
    file.chmod(0o600)
    for text in (SECRET, f"ann:{SECRET}@proxy.example:3128", f"{HTTP}ann:{SECRET}@proxy:1\n\nx"):
        file.write_text(text)
        assert "must hold" in reason()


def test_a_runtime_is_not_picked_without_its_proxy(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        pick_runtime("auto", SPEC, Uplink(proxy=str(tmp_path / "proxy")))


@pytest.mark.heavy
def test_a_sandbox_whose_proxy_is_gone_does_not_start(runtime, tmp_path):
    file = tmp_path / "proxy"
    file.write_text(f"{HTTP}proxy.example:3128")
    file.chmod(0o600)
    online = dataclasses.replace(SPEC, network=EgressPolicy("open"))
    behind = pick_runtime(runtime.name, SPEC, Uplink(proxy=str(file)))
    file.unlink()
    with pytest.raises(SandboxStartError, match=r"uplink proxy file .* cannot be read"):
        behind.start(online, {})
    with behind.start(SPEC, {}) as box:
        assert box.run("echo here").output == "here\n"


@each_row("allowed", ["10.0.5.7:3141", "192.168.1.1", "[fd00:5::7]:443"])
def test_an_allowlist_may_have_a_private_address_which_the_operator_decides_on(allowed):
    assert EgressPolicy("allowlist", (allowed,)).allow == (allowed,)
