"""A company's proxy: wants a login, looks names up, and leads tunnels to port 443 only."""

import asyncio
import base64
import contextlib
import threading

USER, PASSWORD = "ann", "s3cret:@/"
LOGIN = b"Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode())
CHUNK = 1 << 16


class CompanyProxy:
    """hosts: the address of each name. heard: the heads of requests."""

    def __init__(self, hosts):
        self._hosts = hosts
        self.heard = []

    @contextlib.contextmanager
    def open(self):
        """Serves in a thread; yields the port."""
        loop, started, over = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

        async def run():
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            started.set()
            await over.wait()
            server.close()

        thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
        thread.start()
        started.wait()
        yield self.port
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()

    async def _serve(self, reader, writer):
        with contextlib.closing(writer), contextlib.suppress(OSError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.heard.append(head)
            method, target, rest = head.split(b" ", 2)
            host, port, path = parts(method, target)
            if b"\r\nProxy-Authorization: " + LOGIN + b"\r\n" not in head:
                writer.write(b"HTTP/1.1 407 Who are you?\r\nContent-Length: 0\r\n\r\n")
            elif (method == b"CONNECT") != (port == 443):
                writer.write(b"HTTP/1.1 403 Not that port\r\nContent-Length: 0\r\n\r\n")
            else:
                far_reader, far = await asyncio.open_connection(self._hosts[host], port)
                if method == b"CONNECT":
                    writer.write(b"HTTP/1.1 200 Go on\r\n\r\n")
                else:
                    line, _, headers = rest.partition(b"\r\n")
                    kept = [h for h in headers.split(b"\r\n") if LOGIN not in h]
                    far.write(b"\r\n".join((b"%s %s %s" % (method, path, line), *kept)))
                with contextlib.closing(far):
                    await _both_ways((reader, writer), (far_reader, far))
            await writer.drain()


def parts(method, target):
    """Host, port and path of a request's target."""
    where, path = target, b""
    if method != b"CONNECT":
        where, slash, path = target.partition(b"://")[2].partition(b"/")
        path = slash + path
    host, _, port = where.decode().partition(":")
    return host, int(port), path


async def _both_ways(one, other):
    async def copy(reader, writer):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    await asyncio.gather(copy(one[0], other[1]), copy(other[0], one[1]))
