"""A service with a certificate of its own: all that a client opens trusts what it was told to."""

import asyncio
import socket
import ssl

import httpx
import pytest

from ale_jax.sandbox.api import SandboxError, SandboxStartError
from ale_jax.sandbox.cli.main import main
from ale_jax.sandbox.sdk.async_client import AsyncRemoteSandbox, AsyncSandboxClient
from ale_jax.sandbox.sdk.client import RemoteSandbox, SandboxClient
from ale_jax.sandbox.sdk.login import ServiceLogin
from ale_jax.sandbox.sdk.service_runtime import ServiceRuntime
from ale_jax.sandbox.service import server
from ale_jax.sandbox.service.access import ServiceSettings
from tests.sandbox.conftest import SPEC
from tests.sandbox.own_certificate import HOST, write_certificate
from tests.sandbox.service.conftest import ANN, over, over_memory
from tests.sandbox.upstream import CALL, upstream


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """The path of a file with a key and a certificate for HOST that nobody else has signed."""
    path = tmp_path_factory.mktemp("certificate") / "own.pem"
    write_certificate(path)
    return path


@pytest.fixture(scope="module")
def secure(runtime, certificate):
    """A service that speaks TLS."""
    settings = ServiceSettings(port=0, tls_cert=str(certificate), tls_key=str(certificate))
    with over(runtime, settings=settings) as service:
        assert service.url.startswith("https://")
        yield service.url


@pytest.fixture(scope="module")
def trusting(certificate):
    return ssl.create_default_context(cafile=certificate)


@pytest.fixture(scope="module")
def remote(secure, trusting):
    with SandboxClient(secure, ANN, trusting) as client, client.start(SPEC) as box:
        yield box


@pytest.mark.parametrize("verify", ["its own", False])
def test_terminals_pipes_and_relays_trust_what_the_client_trusts(secure, trusting, remote, verify):
    tls = trusting if verify else False
    with SandboxClient(secure, ANN, tls) as client, upstream("hello\n") as port:
        box = client.attach(remote.id)
        with box.terminal("echo in") as terminal:
            assert b"".join(terminal) == b"in\r\n"
        with box.pipes("echo in") as pipes:
            assert list(pipes) == [("stdout", b"in\n")]
        with box.relay(4000, HOST, port):
            assert box.run(CALL).output == "hello\nmore\n"


def test_so_do_those_of_the_asynchronous_twin(secure, trusting, remote):
    async def use(port):
        async with AsyncSandboxClient(secure, ANN, trusting) as client:
            box = await client.attach(remote.id)
            async with box.terminal("echo in") as terminal:
                assert b"".join([each async for each in terminal]) == b"in\r\n"
            async with box.relay(4000, HOST, port):
                assert (await box.run(CALL)).output == "hello\nmore\n"

    with upstream("hello\n") as port:
        asyncio.run(use(port))


def test_a_certificate_that_nobody_vouches_for_is_refused(secure, remote):
    with SandboxClient(secure, ANN) as client:
        terminal = RemoteSandbox(AsyncRemoteSandbox(client.later, remote.status())).terminal("true")
        with pytest.raises(SandboxError, match="certificate"), terminal:
            pass


def test_the_command_line_trusts_what_it_is_told_to(
    secure, certificate, remote, monkeypatch, capfd
):
    monkeypatch.setenv("ALE_SANDBOX_TOKEN", ANN)
    line = ["--url", secure, "exec", remote.id, "echo in"]
    assert main(line) == 125 and "certificate" in capfd.readouterr().err
    assert main(["--ca", str(certificate), *line]) == 0 and capfd.readouterr().out == "in\n"
    monkeypatch.setenv("ALE_SANDBOX_CA", str(certificate))
    assert main(line) == 0
    (nothing := certificate.with_name("nothing")).touch()
    assert main(["--ca", str(nothing), *line]) == 125
    assert "has no certificates" in capfd.readouterr().err


def test_a_run_trusts_what_it_is_told_to_and_can_pass_that_on(
    secure, certificate, monkeypatch, tmp_path
):
    monkeypatch.setenv("ALE_SANDBOX_TOKEN", ANN)
    with pytest.raises(SandboxStartError, match="certificate"):
        ServiceRuntime(secure, ServiceLogin.of_environment()).start(SPEC, {})
    moved = tmp_path / "moved"
    moved.write_bytes(certificate.read_bytes())
    monkeypatch.setenv("ALE_SANDBOX_CA", str(moved))
    login = ServiceLogin.of_environment()
    moved.unlink()  # as on the machine of a worker
    assert ANN not in repr(login) and "CERTIFICATE" not in repr(login)
    with ServiceRuntime(secure, login).start(SPEC, {}) as box, upstream("hello\n") as port:
        with box.relay(4000, HOST, port):
            assert box.run(CALL).output == "hello\nmore\n"
    moved.write_text("nothing")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"ALE_SANDBOX_CA '.*moved' has no certificates: "):
            ServiceLogin.of_environment()
        moved.unlink(missing_ok=True)


def test_whoever_does_not_speak_tls_is_not_answered(secure):
    with pytest.raises(httpx.TransportError):
        httpx.get(secure.replace("https", "http") + "/healthz")


def test_a_handshake_that_does_not_end_is_given_up(certificate, monkeypatch):
    monkeypatch.setattr(server, "HEADER_S", 0.2)
    settings = ServiceSettings(port=0, tls_cert=str(certificate), tls_key=str(certificate))
    with over_memory(settings) as service:
        port = int(service.url.rpartition(":")[2])
        with socket.create_connection((HOST, port)) as silent:
            assert silent.recv(1) == b""


def test_a_certificate_that_cannot_be_used_is_named(certificate, tmp_path):
    with pytest.raises(ValueError, match="both the certificate and its private key"):
        ServiceSettings(tls_cert=str(certificate))
    other = tmp_path / "other"
    other.touch(0o600)
    with pytest.raises(ValueError, match="both must be PEM"):
        server.tls_of(ServiceSettings(tls_cert=str(certificate), tls_key=str(other)))
    other.chmod(0o640)
    with pytest.raises(ValueError, match="chmod 600"):
        server.tls_of(ServiceSettings(tls_cert=str(certificate), tls_key=str(other)))
