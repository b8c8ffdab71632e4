"""A server outside, and the programs that call it from inside a sandbox; and one inside."""

import contextlib
import socket
import socketserver
import threading

CLIENT = """
import socket, sys
with socket.create_connection(("127.0.0.1", {port})) as sock:
    sock.sendall(b"x" * {size})
    sock.shutdown(socket.SHUT_WR)
    print(sum(iter(lambda: len(sock.recv(1 << 16)), 0)))
"""

MANY_CLIENTS = """
import socket
socks = [socket.create_connection(("127.0.0.1", {port})) for _ in range({together})]
for sock in socks:
    sock.sendall(b"x\\n")
for sock in socks:
    assert sock.recv(1) == b"x"
    sock.close()
print(len(socks))
"""

ANSWERS = """python3 -c '
import socketserver
class Answer(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(b"inside\\n")
socketserver.TCPServer(("127.0.0.1", 8000), Answer).serve_forever()
'"""

# Greets, and goes on whatever its clients do.
STAYS = """
import socket
listener, kept = socket.create_server(("127.0.0.1", {port})), []
while True:
    kept.append(listener.accept()[0])
    kept[-1].sendall(b"hi\\n")
"""

CALL = "exec 3<> /dev/tcp/127.0.0.1/4000; echo more >&3; head -n 2 <&3"


def answer_of(port):
    """What a server says; waits for one that is being started."""
    while True:
        with socket.create_connection(("127.0.0.1", port)) as sock:
            if data := b"".join(iter(lambda: sock.recv(1 << 16), b"")):
                return data


@contextlib.contextmanager
def upstream(text):
    """The port of a server outside that greets each client and repeats what it says."""

    class Greeting(socketserver.StreamRequestHandler):
        def handle(self):
            self.wfile.write(text.encode())
            for line in self.rfile:
                self.wfile.write(line)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads, request_queue_size = True, 128

    with Server(("127.0.0.1", 0), Greeting) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()
