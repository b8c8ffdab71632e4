"""What a call costs besides the policy's own time."""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
from typing import Any

from ale_jax.gateway.app import make_app
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.server import served
from benchmarks.gateway.load import Job
from benchmarks.gateway.plan import Plan
from benchmarks.gateway.scripted import ScriptedPolicy, Stage, small_tokenizer

CALL = {"name": "bash", "arguments": {"command": "cat notes.txt"}}
REPLY = f"I look.\n<tool_call>\n{json.dumps(CALL)}\n</tool_call>"
SEEN = "The file notes.txt has three lines. " * 8
FIRST = [{"role": "system", "content": "Work."}, {"role": "user", "content": "What is in it?"}]
SAID = {"name": "bash", "arguments": json.dumps(CALL["arguments"])}
TURN = [
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [{"id": "call_1", "type": "function", "function": SAID}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": SEEN},
]
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
TOOL = {"name": "bash", "description": "Runs a command.", "parameters": PARAMETERS}
BODY = {"model": "policy", "tools": [{"type": "function", "function": TOOL}]}
CLIENTS = (1, 64)


@dataclasses.dataclass(frozen=True)
class Load:
    """A kind of load. pause_s: as in `Job`."""

    clients: int
    stream: bool = False
    pause_s: float = 0.0

    def name(self, figure: str) -> str:
        """Under which a figure of this load is reported."""
        kind = "streamed_" if self.stream else "paced_" if self.pause_s else ""
        return f"overhead_{kind}{figure}_{self.clients}"


def loads(pause_s: float) -> list[Load]:
    without = [Load(clients, stream) for stream in (False, True) for clients in CLIENTS]
    return [*without, Load(max(CLIENTS), pause_s=pause_s)]


def measure(plan: Plan) -> dict[str, Any]:
    """Medians over the rounds, in each of which all loads are measured one after the other, each
    with the same number of calls as in the other rounds."""
    wanted = loads(plan.pause_s)
    rounds = [[_measured(each, plan) for each in wanted] for _ in range(plan.overhead_rounds)]
    figures: dict[str, Any] = {}
    for load, each in zip(wanted, zip(*rounds, strict=True), strict=True):
        figures[load.name("calls_of_a_round")] = each[0]["calls"]
        for name in ("ms_p50", "ms_p99"):
            values = [found[name] for found in each]
            figures[load.name(name)] = statistics.median(values)
            figures[f"{load.name(name)}_rounds"] = values
        rate = statistics.median(found["calls_per_second"] for found in each)
        figures[load.name("calls_per_second")] = rate
    return figures


def _measured(load: Load, plan: Plan) -> dict[str, float]:
    stage, episodes = Stage(small_tokenizer()), Episodes()
    reply = stage.ids_of(REPLY)
    policy = ScriptedPolicy(lambda context: reply)
    tokens = [episodes.open(stage.episode(policy)) for _ in range(load.clients)]
    conversations = 2  # a pause takes longer than a call
    if not load.pause_s:
        conversations += plan.overhead_calls // (load.clients * plan.overhead_turns)
    with served(make_app(episodes, "policy")) as url:
        body = BODY | ({"stream": True} if load.stream else {})
        job = Job(url, tokens, conversations, plan.overhead_turns, FIRST, TURN, body, load.pause_s)
        found = in_process(job)
    for token in tokens:
        # Each conversation was continued by its ids, or the time is that of something else.
        assert all(
            len(branch.calls) == plan.overhead_turns for branch in episodes.end(token, "all")
        )
    calls = len(found["ms"])
    cuts = statistics.quantiles(found["ms"], n=100, method="inclusive")
    return {
        "calls": calls,
        "ms_p50": round(cuts[49], 2),
        "ms_p99": round(cuts[98], 2),
        "calls_per_second": round(calls / _seconds(load, found)),
    }


def _seconds(load: Load, found: dict[str, Any]) -> float:
    """How long all clients called. Those that never pause keep the gateway busy until the last one
    ends. Of those that pause, the one that has drawn the longest pauses calls alone at the end."""
    return statistics.mean(found["client_seconds"]) if load.pause_s else found["seconds"]


def in_process(job: Job) -> dict[str, Any]:
    """What `load.run` finds, in a process of its own."""
    line = [sys.executable, "-m", "benchmarks.gateway.load"]
    told = json.dumps(dataclasses.asdict(job))
    ended = subprocess.run(line, input=told, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"the clients failed: {ended.stderr[-600:]}")
    return json.loads(ended.stdout)
