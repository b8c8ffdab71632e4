"""A service with a certificate of its own: all that a client opens trusts what it was told to."""

import asyncio
import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.sdk.async_client import AsyncRemoteSandbox, AsyncSandboxClient
from ale_jax.sandbox.sdk.client import RemoteSandbox, SandboxClient
from tests.sandbox.service.conftest import ANN
from tests.sandbox.upstream import CALL, upstream

HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """The path of a file with a key and a certificate for HOST that nobody else has signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sandboxes")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1))
    builder = builder.not_valid_after(now + datetime.timedelta(days=1))
    signed = builder.add_extension(address, critical=False).sign(key, hashes.SHA256())
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = tmp_path_factory.mktemp("certificate") / "own.pem"
    path.write_bytes(secret + signed.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture(scope="module")
def secure(real, certificate):
    """The URL of the service behind what speaks TLS for it, as on a real host."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    port = int(real.url.rpartition(":")[2])
    with socket.create_server((HOST, 0)) as listener:
        ready, loop = threading.Event(), asyncio.new_event_loop()
        stop = asyncio.Event()

        async def front():
            async with await asyncio.start_server(_forward(port), sock=listener, ssl=tls):
                ready.set()
                await stop.wait()

        thread = threading.Thread(target=loop.run_until_complete, args=(front(),))
        thread.start()
        ready.wait()
        yield f"https://{HOST}:{listener.getsockname()[1]}"
        loop.call_soon_threadsafe(stop.set)
        thread.join()
    loop.close()


def _forward(port):
    async def forward(reader, writer):
        far_reader, far_writer = await asyncio.open_connection(HOST, port)
        ways = (_copy(reader, far_writer), _copy(far_reader, writer))
        await asyncio.gather(*ways, return_exceptions=True)

    return forward


async def _copy(reader, writer):
    with contextlib.closing(writer):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


@pytest.mark.parametrize("verify", ["its own", False])
def test_terminals_pipes_and_relays_trust_what_the_client_trusts(
    secure, certificate, remote, verify
):
    tls = ssl.create_default_context(cafile=certificate) if verify else False
    with SandboxClient(secure, ANN, tls) as client, upstream("hello\n") as port:
        box = client.attach(remote.id)
        with box.terminal("echo in") as terminal:
            assert b"".join(terminal) == b"in\r\n"
        with box.pipes("echo in") as pipes:
            assert list(pipes) == [("stdout", b"in\n")]
        with box.relay(4000, HOST, port):
            assert box.run(CALL).output == "hello\nmore\n"


def test_so_do_those_of_the_asynchronous_twin(secure, certificate, remote):
    async def use(port):
        tls = ssl.create_default_context(cafile=certificate)
        async with AsyncSandboxClient(secure, ANN, tls) as client:
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
