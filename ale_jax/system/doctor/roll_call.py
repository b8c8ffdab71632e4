"""Calls the roll of a run's processes at the coordinator's port, before jax listens there.

jax waits five minutes for all of them, and then ends the process from C++, with a stack trace that
does not say which one is missing.

    a process -> the first one: a line with its number
    the first one -> those that came: a line that says what is wrong, empty if nothing is
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Sequence

from ale_jax.system.doctor.findings import Finding, fail, ok

NAME = "coordinator"
WAIT_S = 120.0  # for all processes to be started
RETRY_S = 0.5
HELLO_S = 5.0  # for a process that has connected to say its number
MAX_NUMBER, MAX_VERDICT = 8, 16 << 10  # bytes of a line
AGAIN = "start the same line on all hosts, each with its own --process"


def check_coordinator(
    address: str, processes: int, process: int, seconds: float = WAIT_S
) -> Finding:
    """Checks whether all processes come to HOST:PORT, where process 0 listens, within `seconds`.

    Errors: ValueError, OSError.
    """
    host, _, port = address.rpartition(":")
    if not 0 < int(port) < 1 << 16:
        raise ValueError(f"--coordinator={address}: the port must be from 1 to 65535")
    if process == 0:
        return _call(int(port), processes, seconds)
    return _answer((host.strip("[]"), int(port)), process, seconds)


def _call(port: int, processes: int, seconds: float) -> Finding:
    try:
        server = _listen(port)
    except OSError as error:
        return fail(
            NAME,
            f"port {port} cannot be listened on ({error.strerror})",
            "end what uses it (ss -ltnp), or choose another port in --coordinator on all hosts",
        )
    with server, contextlib.ExitStack() as opened:
        wrong, numbers, connections = "", set(), []
        for number, connected in _arrivals(server, seconds, opened):
            connections.append(connected)
            if number in numbers or not 0 < number < processes:
                wrong = f"another process calls itself number {number} of {processes}"
            numbers.add(number)
            if len(numbers) == processes - 1 or wrong:
                break
        missing = ", ".join(str(n) for n in range(1, processes) if n not in numbers)
        if missing and not wrong:
            wrong = f"process {missing} of {processes} did not come within {seconds:g} s"
        _tell(connections, wrong)
    return _verdict(wrong)


def _listen(port: int) -> socket.socket:
    """As jax does, at all addresses."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _arrivals(
    server: socket.socket, seconds: float, opened: contextlib.ExitStack
) -> Iterator[tuple[int, socket.socket]]:
    """The numbers of those that come, and their connections, which `opened` closes."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        server.settimeout(left)
        try:
            connected = opened.enter_context(server.accept()[0])
        except TimeoutError:
            return
        connected.settimeout(HELLO_S)
        try:
            number = int(_read_line(connected, MAX_NUMBER))
        except (OSError, ValueError):  # somebody else
            connected.close()
            continue
        yield number, connected


def _tell(connections: Sequence[socket.socket], wrong: str) -> None:
    for connected in connections:
        with contextlib.suppress(OSError):  # it has ended
            connected.sendall(f"{wrong}\n".encode())
            # The other end closes first, or the port would be occupied for a minute.
            connected.recv(1)


def _answer(address: tuple[str, int], process: int, seconds: float) -> Finding:
    deadline = time.monotonic() + seconds
    while True:
        try:
            with socket.create_connection(address, timeout=seconds) as connected:
                connected.sendall(f"{process}\n".encode())
                connected.settimeout(seconds + HELLO_S)
                return _verdict(_read_line(connected, MAX_VERDICT).decode(errors="replace").strip())
        except OSError as error:
            if time.monotonic() > deadline:
                return fail(
                    NAME,
                    "{}:{} was not reached within {:g} s ({})".format(*address, seconds, error),
                    "start process 0, and let the port through the firewall between the hosts",
                )
            time.sleep(RETRY_S)


def _verdict(wrong: str) -> Finding:
    return fail(NAME, wrong, AGAIN) if wrong else ok(NAME, "all processes came to it")


def _read_line(connected: socket.socket, limit: int) -> bytes:
    """Errors: ConnectionError if the connection ends before the line does, TimeoutError."""
    line = b""
    while not line.endswith(b"\n"):
        piece = connected.recv(limit)
        line += piece
        if not piece or len(line) > limit:
            raise ConnectionResetError("the other end said something else")
    return line
