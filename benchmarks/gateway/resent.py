"""What it costs that agents send their whole history with each call.

A small policy with random weights plays conversations of many turns; then the time to the first
tokens of one more reply is taken, and the tokens that the engine had to read for it, in four ways:

kept: a loop of our own tells the engine only what is new.
resent: an agent sends everything to the gateway, which finds the conversation that the engine has.
displaced: the same after another conversation has taken its place in the engine. What is not in its
full pages is read again.
unknown: the history was never played here, and is rendered and read as a whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.engine import EngineShape, Sampling
from ale_jax.configs import quickstart
from ale_jax.engine.engine import Engine
from ale_jax.gateway.custody.engine_policy import EnginePolicy
from ale_jax.gateway.custody.token_tree import TokenTree
from ale_jax.gateway.episode import EpisodeOptions, GatewayEpisode
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import ChatRequest, SampleOptions
from ale_jax.model.params import init_params
from ale_jax.system.checks import checked_config
from benchmarks.gateway.plan import Plan
from benchmarks.gateway.scripted import Stage, small_tokenizer

# As a server has it.
ENGINE = EngineShape(
    max_sequences=4,
    max_sequence_length=4096,
    decode_steps=4,
    prefill_tokens=(32, 128),
    prefill_rows=1,
    prefill_budget=512,
    page_tokens=16,
    pages=4 * 256,
    share_replies=True,
)
REPLY_TOKENS = 32
SEEN = "The file notes.txt has three lines. What is in it? Done, the answer is 42. "
WAYS = ("kept", "resent", "displaced", "unknown")


def quickstart_policy(vocab_size: int) -> PolicyShape:
    """With room for long conversations."""
    model = checked_config(quickstart.get_config().to_dict()).model
    return dataclasses.replace(model.policy_shape(vocab_size), max_positions=4096)


@dataclasses.dataclass(frozen=True)
class Cost:
    seconds: float
    read_tokens: int


def measure(plan: Plan) -> dict[str, Any]:
    with Bench.open() as bench:
        bench.round("warm", plan.resent_turns)  # compiles
        rounds = [bench.round(f"{n}", plan.resent_turns) for n in range(plan.resent_rounds)]
    figures: dict[str, Any] = {"resent_turns": plan.resent_turns}
    figures["resent_history_tokens"] = statistics.median(tokens for _, tokens in rounds)
    costs = [cost for cost, _ in rounds]
    for way in WAYS:
        times = [each[way].seconds * 1000 for each in costs]
        figures[f"resent_ttft_ms_{way}"] = round(statistics.median(times), 2)
        figures[f"resent_ttft_ms_{way}_rounds"] = [round(each, 2) for each in times]
        read = statistics.median(each[way].read_tokens for each in costs)
        figures[f"resent_read_tokens_{way}"] = read
    kept = figures["resent_ttft_ms_kept"]
    for way in WAYS[1:]:
        name = "resent_ttft_ratio" if way == "resent" else f"resent_ttft_ratio_{way}"
        figures[name] = round(figures[f"resent_ttft_ms_{way}"] / kept, 3)
    return figures


class Bench:
    def __init__(self, stage: Stage, engine: Engine):
        self._stage, self._engine = stage, engine
        self._policy = EnginePolicy(engine, stage.tokenizer, Sampling(), REPLY_TOKENS)

    @classmethod
    @contextlib.contextmanager
    def open(cls) -> Iterator[Bench]:
        stage = Stage(small_tokenizer())
        shape = quickstart_policy(stage.tokenizer.vocab_size)
        params = init_params(jax.random.key(0), shape)
        with contextlib.closing(Engine(shape, ENGINE, stage.tokenizer.stop_ids, params)) as engine:
            yield cls(stage, engine)

    def round(self, name: str, turns: int) -> tuple[dict[str, Cost], int]:
        """What one more reply costs in each way, and the tokens of its prompt. name: so that no
        round shares its prompts with another one."""
        first, new = _first(name), ChatMessage("tool", SEEN)
        episode = self._episode()
        told = self._played(episode, first, turns)
        request = ChatRequest("m", (*told, new))
        tokens = episode.count_tokens(request)
        costs = {"kept": self._kept(_first(f"{name} own"), turns)}
        costs["resent"] = self._cost(lambda see: self._ask(episode, request, see))
        episode.end("all")
        episode = self._episode()
        told = self._played(episode, _first(f"{name} displaced"), turns)
        self._ask(episode, ChatRequest("m", tuple(_first("another"))), None)
        again = ChatRequest("m", (*told, new))
        costs["displaced"] = self._cost(lambda see: self._ask(episode, again, see))
        episode.end("all")
        episode = self._episode()
        unknown = ChatRequest("m", (*_first(f"{name} unknown"), *told[2:], new))
        costs["unknown"] = self._cost(lambda see: self._ask(episode, unknown, see))
        episode.end("all")
        return costs, tokens

    def _episode(self) -> GatewayEpisode:
        keys = lambda number: np.array([0, number], np.uint32)  # noqa: E731
        tree = TokenTree(self._stage.render)
        return GatewayEpisode(
            tree, self._policy, self._stage.language, keys, EpisodeOptions(kept=1)
        )

    def _played(
        self, episode: GatewayEpisode, first: Sequence[ChatMessage], turns: int
    ) -> list[ChatMessage]:
        told = list(first)
        for _ in range(turns):
            if told[-1].role == "assistant":
                told.append(ChatMessage("tool", SEEN))
            told.append(self._ask(episode, ChatRequest("m", tuple(told)), None))
        return told

    def _ask(
        self, episode: GatewayEpisode, request: ChatRequest, see: Callable[..., None] | None
    ) -> ChatMessage:
        (pending,) = episode.ask(request, see)
        return episode.answer(pending, request).message

    def _kept(self, first: Sequence[ChatMessage], turns: int) -> Cost:
        conversation, key = self._policy.open(), np.array([0, 0], np.uint32)

        def reply(
            new: Sequence[ChatMessage], after: np.ndarray | None, stop_checker: Any
        ) -> np.ndarray:
            ids = self._stage.render(new, (), after)
            found = self._policy.reply(conversation, ids, SampleOptions(), key, stop_checker)
            return found.result().ids

        last = reply(first, None, None)
        for _ in range(turns - 1):
            last = reply([ChatMessage("tool", SEEN)], last, None)
        cost = self._cost(lambda see: reply([ChatMessage("tool", SEEN)], last, see))
        self._policy.end(conversation)
        return cost

    def _cost(self, ask: Callable[[Callable[..., None]], object]) -> Cost:
        """ask: for a reply; it calls what it is given as soon as the first tokens are there."""
        seen, begun = threading.Event(), []

        def see(*_: object) -> None:
            if not seen.is_set():
                begun.append(time.perf_counter())
                seen.set()

        before, start = self._engine.stats.prefilled_tokens, time.perf_counter()
        ask(see)
        return Cost(begun[0] - start, self._engine.stats.prefilled_tokens - before)


def _first(name: str) -> list[ChatMessage]:
    # Its beginning differs, so that no page is that of another conversation.
    return [ChatMessage("system", f"{name}: work."), ChatMessage("user", SEEN)]
