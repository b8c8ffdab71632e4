"""The sets of reasoning-gym, each a family: a question, an answer, and the library's score."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from ale_jax.sandbox.api import JudgedSandbox
from ale_jax.worlds.api import NoVerdictError, Step, World
from ale_jax.worlds.bridges.process import FamiliesOf, PlayerError, Shared
from ale_jax.worlds.items import Item

LIBRARY = "reasoning_gym"


class ReasoningGym(World):
    """The item of a seed is the first entry of the set with this seed. Scores below 1.0 are learned
    from, but solve nothing: some sets pay for any answer.

    python: an interpreter that has the library; "" for ours. tag: the answer is what stands in the
    last <tag>...</tag> of a reply; "": all of it.
    """

    def __init__(self, python: str = "", tag: str = ""):
        self._library, self._tag = _library(python), tag
        self.families = FamiliesOf(LIBRARY, python)
        if tag:
            self.system_prompt = f"Think if you need to, and then answer in <{tag}>...</{tag}>."

    def reset(self, item: Item, sandbox: JudgedSandbox | None) -> str:
        """Returns the entry's question."""
        self._item = item
        question = self._library.ask("question", item.family, item.seed)
        assert isinstance(question, str)
        return question

    def step(self, reply: str) -> Step:
        """Scores the answer. What keeps the library from a score is a failure."""
        answer = self._answer(reply)
        if answer is None:
            return Step(done=True, malformed=True, failed=True)
        try:
            score = self._library.ask("score", self._item.family, self._item.seed, answer)
        except PlayerError as error:
            raise NoVerdictError(f"{self._item.family}: {error}") from error
        return Step(reward=score, done=True)

    def oracle(self, item: Item) -> Sequence[str] | None:
        """Returns the entry's answer, if the library scores it 1."""
        answer = self._library.ask("oracle", item.family, item.seed)
        if answer is None:
            return None
        return (f"<{self._tag}>{answer}</{self._tag}>" if self._tag else answer,)

    def _answer(self, reply: str) -> str | None:
        if not self._tag:
            return reply
        tag = re.escape(self._tag)
        found = re.findall(rf"<{tag}>((?:(?!<{tag}>).)*?)</{tag}>", reply, re.DOTALL)
        return found[-1].strip() if found else None


@functools.lru_cache(maxsize=16)
def _library(python: str) -> Shared:
    return Shared(LIBRARY, python)
