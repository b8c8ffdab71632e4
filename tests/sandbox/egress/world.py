"""A small internet on loopback: sites, a proxy between them and a client, and what it told."""

import asyncio
import contextlib
import functools
import ipaddress
import socket
import struct

from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.egress.proxy import EgressProxy

FUSE_S = 20.0  # a test that hangs fails
HERE = "127.0.0.1"
HTTP = "http" + "://"  # apart, since no file of ours names a machine (test_architecture.py)


def in_loop(test):
    """Runs an async test in a loop of its own."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        async def fused():
            async with asyncio.timeout(FUSE_S):
                await test(*args, **kwargs)

        asyncio.run(fused())

    return run


class Told(list):
    """The events that a proxy records."""

    def __call__(self, kind, detail, **fields):
        assert all(v is None or isinstance(v, str | int) for v in fields.values()), fields
        self.append((kind, detail, fields))

    @property
    def rules(self):
        return [fields.get("rule") for _, _, fields in self]


class Names(dict):
    """host -> its addresses as text; counts who was asked for."""

    def __init__(self, **hosts):
        super().__init__({f"{name}.test": found for name, found in hosts.items()})
        self.asked = []

    def __call__(self, host):
        self.asked.append(host)
        if host not in self:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return tuple(map(ipaddress.ip_address, self[host]))


class Site:
    """A TCP server. heard: what each connection brought, whole only once it has ended.

    It answers a connection as soon as `answers_to` is in what it brought, and then listens on.
    """

    def __init__(self, answer=b"HTTP/1.1 200 OK\r\n\r\nhello", answers_to=b"\r\n\r\n"):
        self.answer, self.answers_to = answer, answers_to
        self.heard = []
        self.over = asyncio.Semaphore(0)
        self.serving = set()

    @contextlib.asynccontextmanager
    async def open(self, host=HERE, port=0):
        server = await asyncio.start_server(self.accept, host, port)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self
        await asyncio.gather(*self.serving)

    async def accept(self, reader, writer):
        self.serving.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError):  # who is cut off is reset
            await self.serve(reader, writer)
        writer.close()
        self.over.release()

    async def serve(self, reader, writer):
        heard, answered = bytearray(), False
        self.heard.append(heard)
        while data := await reader.read(1 << 16):
            heard += data
            if self.answers_to in heard and not answered:
                answered = True
                writer.write(self.answer)
                writer.write_eof()


class EchoSite(Site):
    async def serve(self, reader, writer):
        heard = bytearray()
        self.heard.append(heard)
        while data := await reader.read(1 << 16):
            heard += data
            writer.write(data)
            await writer.drain()


class SilentSite(Site):
    def __init__(self):
        super().__init__(answers_to=b"\0never\0")


class Anywhere:
    """An uplink by which sandboxes reach all that `refuses` has no reason against, as sites on
    loopback."""

    networks = ()

    def __init__(self, refuses=lambda address: None):
        self._refuses = refuses

    def refusal(self, address, port):
        return self._refuses(address)

    def upstream(self):
        return None


class Proxy:
    """An EgressProxy behind a port, with whose clients one speaks in bytes."""

    def __init__(self, policy, names, told, **options):
        options.setdefault("uplink", Anywhere())
        self.proxy = EgressProxy(policy, told, look_up=names, **options)
        self.told, self.names = told, names
        self.clients = []

    @contextlib.asynccontextmanager
    async def open(self):
        server = await asyncio.start_server(self.proxy.serve, HERE, 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            with self.proxy:
                yield self
            for writer in self.clients:
                writer.transport.abort()
            await self.carries(0)

    async def carries(self, count):
        """Returns when so many connections are under way."""
        while len(self.proxy._connections) != count:
            await asyncio.sleep(0)

    async def client(self, request=b""):
        reader, writer = await asyncio.open_connection(HERE, self.port)
        self.clients.append(writer)
        writer.write(request)
        return reader, writer

    async def ask(self, request):
        """All that is answered to `request`."""
        reader, _ = await self.client(request)
        return await reader.read()

    async def tunnel(self, where, first=b""):
        """Reader and writer of an established tunnel."""
        reader, writer = await self.client(connect(where) + first)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 "), where
        return reader, writer


def proxy_to(*sites, policy=None, names=None, **options):
    """A proxy to sites that are called a.test, b.test, ..., all of which it permits."""
    letters = "abcdef"[: len(sites)]
    allow = [f"{letter}.test:{site.port}" for letter, site in zip(letters, sites)]
    names = Names(**{letter: [HERE] for letter in letters}) if names is None else names
    policy = policy or EgressPolicy("allowlist", allow)
    return Proxy(policy, names, Told(), **options).open()


def connect(where):
    return f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n".encode()


def get(where, path="/", *headers):
    lines = [f"GET {HTTP}{where}{path} HTTP/1.1", f"Host: {where}", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def status(answer):
    return int(answer.split(b" ", 2)[1])


def line(answer):
    """The one line of a refusal."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert body.endswith(b"\n") and body.count(b"\n") == 1, answer
    assert head.startswith(b"HTTP/1.1 %d %s\r\n" % (status(answer), body[:-1])), answer
    return body[:-1].decode()


def reset(writer):
    """Hangs up without a goodbye."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
