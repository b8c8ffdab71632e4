"""Does a policy that knows nothing write what it is held to, and what does that cost?

A policy with random weights answers with and without a required call of a tool. A call counts as
parsed if its arguments are of the tool's schema. The cost is the time for each sampled token of
replies that are as long, beside as many others. It depends on how long the policy's own steps take:
so it is measured with the quickstart's policy, and with one of the shape of SmolLM2-135M. It also
depends on what is written: a policy that knows nothing writes text that no string may hold, so a
trained one (`writing_costs`) has less to draw again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.engine import EngineShape, Sampling
from ale_jax.configs import smollm2_135m
from ale_jax.engine.engine import Engine
from ale_jax.gateway.custody.engine_policy import ChatRender, EnginePolicy, language_of
from ale_jax.gateway.custody.token_tree import TokenTree
from ale_jax.gateway.episode import EpisodeOptions, GatewayEpisode
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import AUTO, REQUIRED, ChatRequest, Choice, SampleOptions
from ale_jax.model.params import init_params
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.model.weights.layout import Checkpoint
from ale_jax.model.weights.load import load_params
from ale_jax.system.checks import checked_config
from benchmarks.gateway.plan import Plan
from benchmarks.gateway.resent import quickstart_policy
from benchmarks.gateway.scripted import small_tokenizer

ENGINE = EngineShape(
    max_sequences=20,
    max_sequence_length=768,
    decode_steps=4,
    prefill_tokens=(32, 128),
    prefill_rows=1,
    prefill_budget=512,
    page_tokens=16,
    pages=20 * 48,
)
TOGETHER, REPLY_TOKENS = 20, 120
KINDS, MOST_LINES = ("text", "binary"), 3
LOOK = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "maxLength": 12},
        "kind": {"enum": list(KINDS)},
        "lines": {"type": "array", "items": {"type": "boolean"}, "maxItems": MOST_LINES},
    },
    "required": ["path", "kind", "lines"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look", "description": "", "parameters": LOOK}}
MESSAGES = (ChatMessage("user", "What is in it?"),)
TEXT = {"type": "string"}
CONTENT = {
    "type": "object",
    "properties": {"path": TEXT, "content": TEXT},
    "required": ["path", "content"],
    "additionalProperties": False,
}
WRITE = {
    "type": "function",
    "function": {"name": "write", "description": "Writes a file.", "parameters": CONTENT},
}
TO_WRITE = (ChatMessage("user", "Write a story about a lighthouse to story.txt."),)
WRITTEN_TOKENS = 60  # nearly every call is longer


def measure(plan: Plan) -> dict[str, Any]:
    tokenizer = small_tokenizer()
    with Bench.open(tokenizer, quickstart_policy(tokenizer.vocab_size)) as bench:
        held = bench.replies(plan.constrained_samples, REQUIRED)
        free = bench.replies(plan.constrained_samples // 10, AUTO)
        small = bench.costs(plan.constrained_rounds, 10 * TOGETHER)
    with Bench.open(tokenizer, policy_of_135m(tokenizer.vocab_size)) as bench:
        bench.costs(1, TOGETHER)  # compiles
        larger = bench.costs(plan.constrained_rounds, TOGETHER)
    return {
        "constrained_samples": len(held),
        "constrained_parsed_share": float(np.mean([is_parsed(each) for each in held])),
        "unconstrained_parsed_share": float(np.mean([is_parsed(each) for each in free])),
        "constrained_token_time_ratio": round(statistics.median(small), 3),
        "constrained_token_time_ratio_rounds": small,
        "constrained_token_time_ratio_135m": round(statistics.median(larger), 3),
        "constrained_token_time_ratio_135m_rounds": larger,
    }


def writing_costs(tokenizer: ChatTokenizer, checkpoint: Checkpoint, rounds: int) -> list[float]:
    """As `Bench.costs`, of long calls by a trained policy."""
    shape, params = checkpoint.shape, load_params(checkpoint)
    with contextlib.closing(Engine(shape, ENGINE, tokenizer.stop_ids, params)) as engine:
        bench = Bench(tokenizer, engine, WRITE, TO_WRITE, WRITTEN_TOKENS, WRITTEN_TOKENS)
        bench.costs(1, TOGETHER)  # compiles
        return bench.costs(rounds, TOGETHER)


def policy_of_135m(vocab_size: int) -> PolicyShape:
    return checked_config(smollm2_135m.get_config().to_dict()).model.policy_shape(vocab_size)


def is_parsed(choice: Choice) -> bool:
    """Whether the reply is one call that the schema allows. One that was cut off is none."""
    calls = choice.message.tool_calls
    if len(calls) != 1 or choice.message.content or calls[0].name != "look":
        return False
    found = json.loads(calls[0].arguments)
    return (
        found.keys() == {"path", "kind", "lines"}
        and isinstance(found["path"], str)
        and len(found["path"]) <= 12
        and found["kind"] in KINDS
        and len(found["lines"]) <= MOST_LINES
        and all(isinstance(each, bool) for each in found["lines"])
    )


@dataclasses.dataclass
class Bench:
    """held_tokens, free_tokens: the longest replies with a required call of the tool, and without.
    By default nobody stops before the end of a call, and free replies are about as long."""

    tokenizer: ChatTokenizer
    engine: Engine
    tool: Mapping[str, Any] = dataclasses.field(default_factory=lambda: TOOL)
    messages: Sequence[ChatMessage] = MESSAGES
    held_tokens: int = REPLY_TOKENS
    free_tokens: int = 50
    asked: int = 0

    @classmethod
    @contextlib.contextmanager
    def open(cls, tokenizer: ChatTokenizer, shape: PolicyShape) -> Iterator[Bench]:
        params = init_params(jax.random.key(0), shape)
        with contextlib.closing(Engine(shape, ENGINE, tokenizer.stop_ids, params)) as engine:
            yield cls(tokenizer, engine)

    def replies(self, count: int, tool_choice: str, **options: Any) -> Sequence[Choice]:
        choices: list[Choice] = []
        while len(choices) < count:
            choices += self._ask(min(TOGETHER, count - len(choices)), tool_choice, **options)
        return choices

    def costs(self, rounds: int, replies: int) -> list[float]:
        """The time for a token with a grammar, over that for one without, in each round."""
        ratios = []
        for _ in range(rounds):
            held, free = (self._token_seconds(each, replies) for each in (REQUIRED, AUTO))
            ratios.append(round(held / free, 3))
        return ratios

    def _token_seconds(self, tool_choice: str, replies: int) -> float:
        """For each token, beside as many others."""
        before, start = self.engine.stats.sampled_tokens, time.monotonic()
        most = self.held_tokens if tool_choice == REQUIRED else self.free_tokens
        self.replies(replies, tool_choice, max_tokens=most)
        return (time.monotonic() - start) / (self.engine.stats.sampled_tokens - before)

    def _ask(self, count: int, tool_choice: str, **options: Any) -> list[Choice]:
        self.asked += 1
        keys = lambda number: np.array([self.asked, number], np.uint32)  # noqa: E731
        policy = EnginePolicy(self.engine, self.tokenizer, Sampling(), REPLY_TOKENS)
        tree, kept = TokenTree(ChatRender(self.tokenizer)), EpisodeOptions(kept=TOGETHER)
        episode = GatewayEpisode(tree, policy, language_of(self.tokenizer), keys, kept)
        sampled = SampleOptions(n=count, **options)
        tools = (self.tool,)
        request = ChatRequest(
            "m", self.messages, tools, tool_choice, parallel_calls=False, options=sampled
        )
        choices = [episode.answer(each, request) for each in episode.ask(request)]
        episode.end("all")
        return choices
