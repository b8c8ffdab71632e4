"""What the warm start learns from: oracle transcripts of real sandboxes, and their tokenizer."""

from __future__ import annotations

import contextlib
import dataclasses
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from ale_jax.data.chunk_masks import Chunk, error_mask, relevance_mask
from ale_jax.data.packing import Sample, demonstration
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.records import Task
from ale_jax.sandbox.api import Runtime, Sandbox
from ale_jax.sandbox.spec import SandboxSpec
from envs import transcripts
from envs.registry import needs_sandbox
from envs.transcripts import Transcript


def demonstrate(
    runtime: Runtime,
    spec: SandboxSpec,
    tasks: Sequence[Task],
    clumsy: Callable[[Task], bool],
    workers: int,
    on_progress: Callable[[int], None],
) -> list[Transcript]:
    """The oracle's conversation for each task, played in `workers` sandboxes at once (in none if no
    task needs one). clumsy: for which tasks it is to err on the way.

    RuntimeError if an oracle does not earn its reward: then the worlds are broken.
    """
    boxes: SimpleQueue[Sandbox] = SimpleQueue()

    def play(task: Task) -> Transcript:
        if not needs_sandbox(task):
            return transcripts.demonstration(None, task, clumsy(task))
        box = boxes.get()
        try:
            return transcripts.demonstration(box, task, clumsy(task))
        finally:
            boxes.put(box)

    with contextlib.ExitStack() as stack:
        if any(map(needs_sandbox, tasks)):
            for _ in range(workers):
                boxes.put(stack.enter_context(runtime.start(spec, {"role": "oracle"})))
        with ThreadPoolExecutor(workers) as pool:
            played = []
            for transcript in pool.map(play, tasks):
                played.append(transcript)
                on_progress(len(played))
            return played


def is_clumsy(task: Task, share: float) -> bool:
    """Whether `task` is among the share of training tasks that are demonstrated with errors."""
    if task.split != "train":
        return False
    key = [task.seed, zlib.crc32(task.family.encode())]
    return bool(np.random.default_rng(key).random() < share)


def make_tokenizer(
    given: str, vocab_size: int, transcripts: Iterable[Transcript], folder: Path
) -> ChatTokenizer:
    """The one that is given, or a BPE trained on the transcripts; saved to `folder`."""
    if given:
        tokenizer = ChatTokenizer.load(given)
    else:
        messages = [dataclasses.asdict(m) for each in transcripts for m in each.messages]
        tokenizer = ChatTokenizer(train_bpe(messages, vocab_size))
    tokenizer.save(folder)
    return tokenizer


def chunk_mask(transcript: Transcript, mask_errors: bool, mask_repeats: bool) -> np.ndarray:
    """m [K], bool: which of the oracle's K replies are to be learned."""
    texts = [m.content for m in transcript.messages[2:]]  # after system and user
    chunks = [
        Chunk(action, observation, failed)
        for action, observation, failed in zip(texts[::2], [*texts[1::2], ""], transcript.failed)
    ]
    mask = np.ones(len(chunks), bool)
    if mask_errors:
        mask &= error_mask(chunks)
    if mask_repeats:
        mask &= relevance_mask(chunks)
    return mask


def tokenize(transcript: Transcript, tokenizer: ChatTokenizer, mask: np.ndarray) -> Sample:
    """The transcript as a sample to imitate. A reply that `mask` [K] leaves out becomes a part of
    the prompt of the next one: context, and no chunk."""
    exchanges, new, context, first = [], [], np.zeros(0, np.int32), True
    learned = iter(mask)
    for message in transcript.messages:
        if message.role != "assistant":
            new.append(dataclasses.asdict(message))
            continue
        prompt_ids = np.concatenate([context, tokenizer.prompt_ids(new, first)])
        action_ids = tokenizer.reply_ids(message.content)
        new, first = [], False
        if next(learned):
            exchanges.append((prompt_ids, action_ids))
            context = np.zeros(0, np.int32)
        else:
            context = np.concatenate([prompt_ids, action_ids])
    return demonstration(exchanges)
