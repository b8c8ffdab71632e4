"""What the warm start learns from: oracle transcripts of real sandboxes, and their tokenizer."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from ale_jax.agent.api import Message
from ale_jax.data.experts import TEACHER, Expert, given_turn
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.records import Task
from ale_jax.sandbox.api import Runtime
from ale_jax.sandbox.spec import SandboxSpec
from envs.shell.transcripts import play_oracle

Transcript = tuple[Message, ...]


def demonstrate(
    runtime: Runtime,
    spec: SandboxSpec,
    tasks: Sequence[Task],
    workers: int,
    on_progress: Callable[[int], None],
) -> list[Transcript]:
    """The oracle's conversation for each task, played in `workers` sandboxes at once.

    RuntimeError if an oracle does not earn its reward: then the worlds are broken.
    """
    boxes: SimpleQueue = SimpleQueue()

    def play(task: Task) -> Transcript:
        box = boxes.get()
        try:
            episode, messages = play_oracle(box, task)
        finally:
            boxes.put(box)
        if episode.reward != 1.0:
            raise RuntimeError(f"the oracle of {task} ended in {episode}")
        return messages

    with contextlib.ExitStack() as stack:
        for _ in range(workers):
            boxes.put(stack.enter_context(runtime.start(spec, {"role": "oracle"})))
        with ThreadPoolExecutor(workers) as pool:
            transcripts = []
            for transcript in pool.map(play, tasks):
                transcripts.append(transcript)
                on_progress(len(transcripts))
            return transcripts


def make_tokenizer(
    given: str, vocab_size: int, transcripts: Iterable[Transcript], folder: Path
) -> ChatTokenizer:
    """The one that is given, or a BPE trained on the transcripts; saved to `folder`."""
    if given:
        tokenizer = ChatTokenizer.load(given)
    else:
        messages = [dataclasses.asdict(m) for transcript in transcripts for m in transcript]
        tokenizer = ChatTokenizer(train_bpe(messages, vocab_size))
    tokenizer.save(folder)
    return tokenizer


def oracle_expert(task: Task, transcript: Transcript, tokenizer: ChatTokenizer) -> Expert:
    """The oracle's success as an expert-like trajectory; the one place where a chunk that will be
    given is made of text, as the policy wrote none of it."""
    turns, new = [], []
    for message in transcript:
        if message.role != "assistant":
            new.append(message)
            continue
        prompt_ids = tokenizer.prompt_ids(list(map(dataclasses.asdict, new)), first=not turns)
        action_ids = tokenizer.reply_ids(message.content)
        seen = new[-1].content  # before the first turn: the instruction, after the system prompt
        turns.append(given_turn(prompt_ids, action_ids, seen, message.content))
        new = []
    return Expert(task, tuple(turns), TEACHER, reward=1.0)


def check_oracles(experts: Iterable[Expert], turns: int, tokens: int) -> None:
    """ValueError if one is longer than an episode may be."""
    for expert in experts:
        if len(expert.turns) > turns:
            raise ValueError(
                f"the oracle of {expert.task.family} {expert.task.seed} takes {len(expert.turns)} "
                f"turns, and agent.turns is {turns}: raise it, or leave the family out"
            )
        if expert.num_tokens > tokens:
            raise ValueError(
                f"the oracle of {expert.task.family} {expert.task.seed} takes {expert.num_tokens} "
                f"tokens, and engine.slot_tokens is {tokens}: raise it, or leave the family out"
            )
