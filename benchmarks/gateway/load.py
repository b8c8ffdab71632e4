"""Clients of the gateway in a process of their own, which measure how long each call takes.

    python -m benchmarks.gateway.load < JOB

JOB and what is printed are one JSON object each. The clients know HTTP and nothing else, so that
they cost little themselves.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import sys
import time
from typing import Any
from urllib.parse import urlsplit

PATH = "/v1/chat/completions"


@dataclasses.dataclass(frozen=True)
class Job:
    """tokens: one for each client. conversations: of each client, one after the other; the first
    is not measured. first: the messages that each begins with. turn: those that come after each
    reply, with the reply. body: of a request, without messages. pause_s: between two calls of a
    client, on average."""

    url: str
    tokens: list[str]
    conversations: int
    turns: int
    first: list[dict[str, Any]]
    turn: list[dict[str, Any]]
    body: dict[str, Any]
    pause_s: float = 0.0


async def run(job: Job) -> dict[str, Any]:
    """ms: of each call. seconds: until the last client ended. client_seconds: until each did."""
    await asyncio.gather(*(_client(job, token, 1, []) for token in job.tokens))
    found: list[float] = []
    start = time.perf_counter()
    rest = max(1, job.conversations - 1)
    each = await asyncio.gather(*(_client(job, token, rest, found) for token in job.tokens))
    return {"ms": found, "seconds": time.perf_counter() - start, "client_seconds": each}


async def _client(job: Job, token: str, conversations: int, found: list[float]) -> float:
    """The seconds that all of its calls took. found: gets the milliseconds of each."""
    begun = time.perf_counter()
    address, rng = urlsplit(job.url), random.Random(token)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    for _ in range(conversations):
        messages = list(job.first)
        for _ in range(job.turns):
            request = _request(json.dumps(job.body | {"messages": messages}).encode(), token)
            if job.pause_s:
                # Never as long as the server keeps a silent connection.
                await asyncio.sleep(rng.uniform(0, 2 * job.pause_s))
            start = time.perf_counter()
            writer.write(request)
            status, _ = await _response(reader)
            found.append((time.perf_counter() - start) * 1000)
            assert status == 200, status
            messages += job.turn
    writer.close()
    return time.perf_counter() - begun


def _request(body: bytes, token: str) -> bytes:
    head = f"POST {PATH} HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {token}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def _response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Its status and its body, whole or in chunks."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    status = int(head.split(" ", 2)[1])
    _, is_whole, length = head.partition("content-length: ")
    if is_whole:
        return status, await reader.readexactly(int(length.partition("\r\n")[0]))
    body = b""
    while size := int(await reader.readline(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return status, body


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(Job(**json.load(sys.stdin))))))
