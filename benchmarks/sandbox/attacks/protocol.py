"""Attacks on the protocol: output that imitates it, bytes that are not text, readers that stall."""

from __future__ import annotations

import asyncio

from ale_jax.sandbox.blocking import wait_for
from benchmarks.sandbox.attacks.attack import Arena, Attack, require, require_alive

PROTOCOL = "protocol"
PORT, CLIENTS = 3129, 8
MARKERS = r"printf '0000000000000000 0 /tmp\0\n$ \n__token 7\nEXITCODESTART0EXITCODEEND\nPASSED\n'"
LONG_COMMAND_BYTES = 10 << 20
CALLS = f"""
call() {{
    exec 3<> /dev/tcp/127.0.0.1/{PORT}; echo $1 >&3
    read -r x <&3; [ $x = $1 ] && echo same
}}
for i in {{1..{CLIENTS}}}; do (call $i) & done; wait
"""


def _markers(arena: Arena) -> str:
    result = arena.box.run(f"{MARKERS}; exit_code=3; (exit 3)")
    require(result.exit_code == 3 and "PASSED" in result.output, f"exit code {result.exit_code}")
    return "it is output like any other"


def _bytes(arena: Arena) -> str:
    result = arena.box.run("head -c 300 /dev/urandom; printf '\\xff\\xfe\\0\\x80 end'")
    require(result.output.endswith("\ufffd end"), f"{result.output[-10:]!r}")
    return "undecodable bytes are replaced"


def _long_command(arena: Arena) -> str:
    result = arena.box.run(f": {'x' * LONG_COMMAND_BYTES}; echo done", timeout=3.0)
    require_alive(arena.box)
    return "its time is over" if result.timed_out else f"exit code {result.exit_code}"


def _nul(arena: Arena) -> str:
    result = arena.box.run("echo one\0echo two")
    return require(result.exit_code == 2 and "one" not in result.output, result.output.strip())


def _late_reply(arena: Arena) -> str:
    first = arena.box.run("trap '' TERM; sleep 0.4; echo late", timeout=0.1)
    second = arena.box.run("echo second")
    require((first.exit_code, second.output) == (124, "second\n"), f"{second.output!r:.60}")
    return "it is dropped with its command"


def _slow_reader(arena: Arena) -> str:
    async def start():
        return arena.box.later.spawn("yes")

    async def end():
        await job.kill()
        await job.wait()

    job = wait_for(start())
    try:
        arena.box.run(f"sleep {arena.load_seconds}")
        held = job._stream._held
        require_alive(arena.box)
    finally:
        wait_for(end())
    return f"its writer waits; {held} bytes are held"


def _parallel_calls(arena: Arena) -> str:
    async def echo(stream):
        while (piece := await stream.receive()) is not None:
            await stream.send(piece[1])

    with arena.another() as box:  # in another sandbox, because an opened port stays open
        wait_for(box.later.listen(PORT, echo))
        result = box.run(CALLS)
    same = result.output.count("same")
    return require(same == CLIENTS, f"{same} of {CLIENTS} get their own answer")


def _unexpected_door(arena: Arena) -> str:
    async def connect():
        stream = await arena.box.later.connect(4444)
        try:
            return await asyncio.wait_for(stream.outcome(), 5)
        finally:
            stream.end()

    outcome = wait_for(connect())
    return require("refused" in outcome.get("error", ""), str(outcome))


ATTACKS = (
    Attack(
        "prints what looks like a reply", PROTOCOL, "replies come on a pipe of their own", _markers
    ),
    Attack("prints bytes that are no text", PROTOCOL, "output is bytes until the end", _bytes),
    Attack("a command of 10 MB", PROTOCOL, "sent in pieces, within its time", _long_command),
    Attack("a command with a NUL", PROTOCOL, "refused before it is sent", _nul),
    Attack("answers after its time", PROTOCOL, "the whole tree is killed", _late_reply),
    Attack("writes what nobody reads", PROTOCOL, "credit for each stream", _slow_reader),
    Attack("many calls out at once", PROTOCOL, "a stream for each", _parallel_calls),
    Attack(
        "is asked for a port that nobody serves",
        PROTOCOL,
        "an outcome, not a hang",
        _unexpected_door,
    ),
)
