"""Demonstrations for the warm start: oracle transcripts from real sandboxes, and a tokenizer."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import numpy as np

from ale_jax.agent.api import Message
from ale_jax.config.model import MIN_VOCAB
from ale_jax.data.experts import TEACHER, Expert
from ale_jax.data.mixing import mix
from ale_jax.data.packing import Sample, demonstration, text_turn
from ale_jax.data.selection import Chunk, error_mask, relevance_mask
from ale_jax.envs import transcripts
from ale_jax.envs.registry import needs_sandbox
from ale_jax.envs.transcripts import Transcript
from ale_jax.model.tokenizer import ChatMessage, ChatTokenizer, tools_text, train_bpe
from ale_jax.records import Task, Turn
from ale_jax.sandbox.api import Runtime, Sandbox
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.system.agent_demonstrations import played_by
from ale_jax.system.tasks import demonstration_tasks, probe_tasks

if TYPE_CHECKING:
    from ale_jax.config.run import RunConfig
    from ale_jax.monitor.progress import Progress
    from ale_jax.system.stopping import StopSignals


Play = Callable[[Sandbox | None, Task], Transcript]

WORKERS = 4  # sandboxes in which this process plays oracles concurrently


def collect_demonstrations(
    config: RunConfig, runtime: Runtime | None, progress: Progress, stop: StopSignals
) -> tuple[list[list[Transcript]], list[Transcript]]:
    """Transcripts of each domain, and of the unseen tasks on which the warm start is probed."""
    warm = config.warm_start
    lists = [
        demonstration_tasks(warm.transcripts_per_family, domain.families, config.seed)
        for domain in config.demonstrated
    ]
    families = [family for domain in config.demonstrated for family in domain.families]
    tasks = [*itertools.chain(*lists), *probe_tasks(warm.probe_tasks, families)]
    progress.phase("oracle transcripts", len(tasks), unit="episodes")

    def on_progress(done: int) -> None:
        stop.check()
        progress.update(done)

    with _player(config) as play:
        demonstrated = demonstrate(runtime, config.sandbox, tasks, play, WORKERS, on_progress)
    played = iter(demonstrated)
    return [list(itertools.islice(played, len(tasks))) for tasks in lists], list(played)


@contextlib.contextmanager
def _player(config: RunConfig) -> Iterator[Play]:
    """Yields what plays the oracles of the warm start: our own loop, or the run's agent."""
    if config.external_agent.demonstrates:
        # Any tokenizer serves whose template is that of the policy, which may not have one yet.
        source = config.tokenizer.path or config.weights
        tokenizer = (
            ChatTokenizer.load(source) if source else ChatTokenizer(train_bpe((), MIN_VOCAB))
        )
        with played_by(config.external_agent, tokenizer) as play:
            yield play
        return
    share = config.warm_start.noisy_share
    yield lambda box, task: transcripts.demonstration(box, task, is_noisy(task, share))


def mixed_samples(
    config: RunConfig, domains: Sequence[Sequence[Transcript]], tokenizer: ChatTokenizer
) -> Iterator[Sample]:
    """Yields an endless stream of samples: the domains in their ratios, without the masked
    chunks."""
    warm = config.warm_start
    pools = [
        [tokenize(t, tokenizer, chunk_mask(t, warm.mask_errors, warm.mask_repeats)) for t in domain]
        for domain in domains
    ]
    return mix(pools, tuple(domain.ratio for domain in config.demonstrated), config.seed)


def demonstrate(
    runtime: Runtime | None,
    spec: SandboxSpec,
    tasks: Sequence[Task],
    play: Play,
    workers: int,
    on_progress: Callable[[int], None],
) -> list[Transcript]:
    """Returns the oracle's conversation for each task, played in `workers` sandboxes concurrently.

    runtime: None if no task needs a sandbox. play: RuntimeError if an oracle does not solve its
        task, which means that its environment, or its agent, is broken.
    """
    boxes: SimpleQueue[Sandbox] = SimpleQueue()

    def play_one(task: Task) -> Transcript:
        if not needs_sandbox(task):
            return play(None, task)
        box = boxes.get()
        try:
            return play(box, task)
        finally:
            boxes.put(box)

    with contextlib.ExitStack() as stack:
        if any(map(needs_sandbox, tasks)):
            assert runtime is not None, "some tasks need a sandbox"
            for _ in range(workers):
                boxes.put(stack.enter_context(runtime.start(spec, {"role": "oracle"})))
        with ThreadPoolExecutor(workers) as pool:
            played = []
            for transcript in pool.map(play_one, tasks):
                played.append(transcript)
                on_progress(len(played))
            return played


def is_noisy(task: Task, share: float) -> bool:
    """Returns whether `task` is among the share of training tasks that are demonstrated with
    errors."""
    if task.split != "train":
        return False
    key = [task.seed, zlib.crc32(task.family.encode())]
    return bool(np.random.default_rng(key).random() < share)


def make_tokenizer(
    given: str, vocab_size: int, transcripts: Iterable[Transcript], folder: Path
) -> ChatTokenizer:
    """Loads the tokenizer `given`, or trains a BPE on the transcripts; saves it to `folder`."""
    if given:
        tokenizer = ChatTokenizer.load(given)
    else:
        messages = itertools.chain.from_iterable(map(_texts, transcripts))
        tokenizer = ChatTokenizer(train_bpe(messages, vocab_size))
    tokenizer.save(folder)
    return tokenizer


def _texts(transcript: Transcript) -> Iterator[ChatMessage]:
    if transcript.tools:
        yield {"role": "system", "content": tools_text(transcript.tools)}
    yield from map(dataclasses.asdict, transcript.messages)


def chunk_mask(transcript: Transcript, mask_errors: bool, mask_repeats: bool) -> np.ndarray:
    """m [K], bool: which of the oracle's K replies are trained on."""
    chunks = _chunks(transcript)
    mask = np.ones(len(chunks), bool)
    if mask_errors:
        mask &= error_mask(chunks)
    if mask_repeats:
        mask &= relevance_mask(chunks)
    return mask


def _chunks(transcript: Transcript) -> list[Chunk]:
    """Of each reply. Its observation is all that follows up to the next one, since an agent lays
    its messages out as it likes."""
    actions: list[str] = []
    seen: list[list[str]] = []
    for message in transcript.messages:
        if message.role == "assistant":
            actions.append(message.content)
            seen.append([])
        elif seen:  # before the first reply, it is the task
            seen[-1].append(message.content)
    observations = map("\n".join, seen)
    fields = zip(actions, observations, transcript.failed, strict=True)
    return [Chunk(*each) for each in fields]


def tokenize(
    transcript: Transcript, tokenizer: ChatTokenizer, mask: np.ndarray | None = None
) -> Sample:
    """Returns the transcript as a sample to imitate.

    mask: [K], which of the K replies are trained on; None: all of them. A masked reply becomes part
    of the prompt of the next one, so that it is context and not a chunk.
    """
    exchanges, new, context, first = [], [], np.zeros(0, np.int32), True
    learned = itertools.repeat(True) if mask is None else iter(mask)
    for message in transcript.messages:
        if message.role != "assistant":
            new.append(dataclasses.asdict(message))
            continue
        new_ids = tokenizer.prompt_ids(new, first, transcript.tools or None)
        prompt_ids = np.concatenate([context, new_ids])
        action_ids = tokenizer.reply_ids(message.content)
        new, first = [], False
        if next(learned):
            exchanges.append((prompt_ids, action_ids))
            context = np.zeros(0, np.int32)
        else:
            context = np.concatenate([prompt_ids, action_ids])
    return demonstration(exchanges)


def oracle_experts(
    config: RunConfig,
    tasks: Sequence[Task],
    runtime: Runtime | None,
    tokenizer: ChatTokenizer,
    on_progress: Callable[[int], None],
) -> list[Expert]:
    """Returns the oracle's trajectories as experts. ValueError if one is longer than an episode may
    be."""

    play = transcripts.demonstration
    played = demonstrate(runtime, config.sandbox, tasks, play, WORKERS, on_progress)
    experts = [oracle_expert(*each, tokenizer) for each in zip(tasks, played, strict=True)]
    check_oracles(experts, config.agent.turns, config.engine.max_sequence_length)
    return experts


def oracle_expert(task: Task, transcript: Transcript, tokenizer: ChatTokenizer) -> Expert:
    """Converts an oracle's transcript to an expert. Its chunks are encoded from text, because the
    policy did not sample them; all other experts keep the tokens that the policy sampled."""
    turns: list[Turn] = []
    new: list[Message] = []
    for message in transcript.messages:
        if message.role != "assistant":
            new.append(message)
            continue
        shown = list(map(dataclasses.asdict, new))
        prompt_ids = tokenizer.prompt_ids(shown, not turns, transcript.tools or None)
        action_ids = tokenizer.reply_ids(message.content)
        seen = new[-1].content  # before the first turn: the instruction, after the system prompt
        turns.append(text_turn(prompt_ids, action_ids, seen, message.content))
        new = []
    return Expert(task, tuple(turns), TEACHER, transcript.reward)


def check_oracles(experts: Iterable[Expert], turns: int, tokens: int) -> None:
    """Raises ValueError if an expert is longer than an episode may be."""
    for expert in experts:
        if len(expert.turns) > turns:
            raise ValueError(
                f"the oracle of {expert.task.family} {expert.task.seed} takes {len(expert.turns)} "
                f"turns, and agent.turns is {turns}: raise it, or "
                "leave the family out"
            )
        if expert.num_tokens > tokens:
            raise ValueError(
                f"the oracle of {expert.task.family} {expert.task.seed} takes {expert.num_tokens} "
                f"tokens, and engine.max_sequence_length is {tokens}: raise it, or "
                "leave the family out"
            )
