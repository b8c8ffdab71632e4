"""What the policy writes to a client that plays a task."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from ale_jax.envs.shell.families import generate
from ale_jax.records import Task
from benchmarks.gateway.catalogue import Client
from benchmarks.gateway.scripted import Stage

DONE = "Done."
DELEGATED = "Do all of it."  # what a sub-agent is told
STEP = re.compile(r"Step \d+\.")

Role = Literal["main", "sub-agent", "other"]


class Script:
    """The oracle's commands, by the client's tool, and the end; if it delegates, a sub-agent gets
    them. To a conversation that does not offer this tool, such as one that wants a title, it says a
    word."""

    def __init__(self, stage: Stage, client: Client, task: Task, delegates: bool = False):
        self._stage, self._client, self._delegates = stage, client, delegates
        calls = generate(task.family, task.item).oracle
        self._commands = [each.arguments["command"] for each in calls if each.name == "bash"]

    def __call__(self, context: np.ndarray) -> np.ndarray:
        pieces = self._pieces(context)
        role = self._role(pieces)
        if role == "other":
            return self._stage.ids_of(DONE)
        # Some clients begin with replies of their own, which are no steps.
        replies = [text for text in pieces if text.startswith("assistant\n")]
        turn = sum(bool(STEP.search(text)) for text in replies)
        delegates = self._delegates and role == "main"
        steps = self._delegation(pieces) if delegates else self._work()
        if turn >= len(steps):
            return self._stage.ids_of(DONE)
        # Written as no tokenizer would, so that ids made from the text again would be others.
        spelled = self._stage.ids_of(f"Step {turn + 1}.", spelled=True)[:-1]
        return np.concatenate([spelled, self._stage.ids_of(steps[turn])])

    def role(self, context: np.ndarray) -> Role:
        """Whose conversation this is."""
        return self._role(self._pieces(context))

    def _pieces(self, context: np.ndarray) -> list[str]:
        return [text for text, _ in self._stage.tokenizer.pieces(context)]

    def _role(self, pieces: Sequence[str]) -> Role:
        tool = self._client.act.tool
        if tool and not any(f'"name": "{tool}"' in text for text in pieces):
            return "other"
        told = any(text.startswith("user\n") and DELEGATED in text for text in pieces)
        return "sub-agent" if told else "main"

    def _work(self) -> list[str]:
        client = self._client
        last = [client.last] if client.last else []
        steps = [client.act(command) for command in (*self._commands, *last)]
        return [*steps, *([client.end(DONE)] if client.end else [])]

    def _delegation(self, pieces: Sequence[str]) -> list[str]:
        client = self._client
        assert client.delegate is not None, f"{client.name} has no sub-agents"
        steps = [client.delegate(DELEGATED)]
        if client.wait:
            steps.append(client.wait(re.findall(client.agent_id, "".join(pieces))[-1:]))
        return steps
