"""Demonstrations for the warm start: oracle transcripts from real sandboxes, and a tokenizer."""

from __future__ import annotations

import contextlib
import itertools
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ale_jax.agent import transcripts
from ale_jax.agent.tools import CLOSE, OPEN
from ale_jax.agent.transcripts import Transcript
from ale_jax.config.model import MIN_VOCAB
from ale_jax.data.experts import TEACHER, Expert
from ale_jax.data.packing import Sample, demonstration, text_turn
from ale_jax.gateway.messages import ChatMessage
from ale_jax.model.tokenizer import ChatTokenizer, tools_text, train_bpe
from ale_jax.recorded.conversation import TOOL, Conversation, with_calls
from ale_jax.recorded.messages import CALL_ID
from ale_jax.recorded.pairs import Continuation
from ale_jax.recorded.plain import Text
from ale_jax.recorded.samples import exchanges_of, learned_exchanges
from ale_jax.records import Task
from ale_jax.rollout.idle import IdleSandboxes
from ale_jax.sandbox.api import JudgedSandbox, Runtime
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.system.agent_demonstrations import played_by
from ale_jax.worlds.families import Families, PlayableFamilies
from ale_jax.worlds.schedule import Schedule

if TYPE_CHECKING:
    from ale_jax.config.run import RunConfig
    from ale_jax.monitor.progress import Progress
    from ale_jax.system.stopping import StopSignals


Play = Callable[[JudgedSandbox | None, Task], Transcript]

WORKERS = 4  # sandboxes in which this process plays oracles concurrently


def collect_demonstrations(
    config: RunConfig, runtime: Runtime | None, progress: Progress, stop: StopSignals
) -> tuple[list[list[Transcript]], list[Transcript]]:
    """Transcripts of each domain, and of the unseen tasks on which the warm start is probed."""
    warm, schedule = config.warm_start, Schedule.of(config)
    count = warm.transcripts_per_family
    lists = [schedule.demonstrations(domain, count) for domain in schedule.demonstrated]
    tasks = [*itertools.chain(*lists), *schedule.probes(warm.probe_tasks)]
    progress.phase("oracle transcripts", len(tasks), unit="episodes")

    def on_progress(done: int) -> None:
        stop.check()
        progress.update(done)

    with _player(config) as play:
        boxes = OracleSandboxes(runtime, schedule.families, config.sandbox)
        demonstrated = demonstrate(boxes, tasks, play, WORKERS, on_progress)
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
        families = Schedule.of(config).families
        with played_by(config.external_agent, families, tokenizer) as play:
            yield play
        return
    yield plain_player(config)


def plain_player(config: RunConfig, noisy: bool = True) -> Play:
    """Returns what plays oracles by our own loop. noisy: with the errors of the warm start."""
    families = Schedule.of(config).families
    share = config.warm_start.noisy_share if noisy else 0.0
    return lambda box, task: transcripts.demonstration(
        families[task.family], box, task, is_noisy(task, share)
    )


class OracleSandboxes:
    """The sandboxes in which oracles play. Thread-safe."""

    def __init__(self, runtime: Runtime | None, families: Families, spec: SandboxSpec):
        """runtime: None if no task needs a sandbox. spec: of sandboxes of which worlds say no
        more."""
        self._runtime, self._worlds = runtime, PlayableFamilies(families, spec)
        self._lock, self._idle, self._up = threading.Lock(), IdleSandboxes(), set[JudgedSandbox]()

    @contextlib.contextmanager
    def lend(self, task: Task) -> Iterator[JudgedSandbox | None]:
        """Yields the sandbox of a task; None if it needs none."""
        if (spec := self._worlds.sandbox(task)) is None:
            yield None
            return
        box = self._taken(spec)
        yield box  # what fails ends the run, and closes all of them
        with self._lock:
            self._idle.put(spec, box)

    def close(self) -> None:
        """Closes all of them."""
        for box in self._up:
            box.close()

    def _taken(self, spec: SandboxSpec) -> JudgedSandbox:
        with self._lock:
            box, other = self._idle.take(spec), None
            if box is None and (other := self._idle.give_up()):
                self._up.remove(other)
        if other:
            other.close()
        if box is None:
            assert self._runtime is not None, "some tasks need a sandbox"
            box = self._runtime.start(spec, {"role": "oracle"})
            with self._lock:
                self._up.add(box)
        return box


def demonstrate(
    sandboxes: OracleSandboxes,
    tasks: Sequence[Task],
    play: Play,
    workers: int,
    on_progress: Callable[[int], None],
) -> list[Transcript]:
    """Returns the oracle's conversation for each task, `workers` of them at a time.

    play: RuntimeError if an oracle does not solve its task, which means that its world, or its
        agent, is broken.
    """

    def play_one(task: Task) -> Transcript:
        with sandboxes.lend(task) as box:
            return play(box, task)

    with contextlib.closing(sandboxes), ThreadPoolExecutor(workers) as pool:
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
    key = [task.number, zlib.crc32(task.family.encode())]
    return bool(np.random.default_rng(key).random() < share)


def make_tokenizer(
    given: ChatTokenizer | None,
    vocab_size: int,
    told: Iterable[Conversation | Text | Continuation],
    folder: Path,
) -> ChatTokenizer:
    """Returns the tokenizer that is given, or a BPE trained on what is told, as it was saved to
    `folder`."""
    if given is None:
        messages = itertools.chain.from_iterable(map(_texts, told))
        given = ChatTokenizer(train_bpe(messages, vocab_size))
    given.save(folder)
    return ChatTokenizer.load(folder)  # with the date that the run keeps


def _texts(conversation: Conversation | Text | Continuation) -> Iterator[dict[str, str]]:
    if not isinstance(conversation, Conversation):
        yield {"role": "user", "content": conversation.text}
        return
    if conversation.tools:
        yield {"role": "system", "content": tools_text(conversation.tools)}
    for message in conversation.messages:
        yield {"role": message.role, "content": message.content}
        for call in message.tool_calls:
            body = f'{{"name": "{call.name}", "arguments": {call.arguments}}}'
            yield {"role": message.role, "content": f"{OPEN}\n{body}\n{CLOSE}"}


def conversation_of(transcript: Transcript) -> Conversation:
    """Returns a transcript as a conversation like those that were recorded."""
    messages = tuple(
        ChatMessage(each.role, each.content, answers=CALL_ID if each.role == TOOL else "")
        for each in transcript.messages
    )
    return Conversation(
        messages=with_calls(messages) if transcript.tools else messages,
        failed=transcript.failed,
        learned=(True,) * len(transcript.failed),
        tools=transcript.tools,
        as_written=not transcript.tools,
        reward=transcript.reward,
    )


def tokenize(
    transcript: Transcript, tokenizer: ChatTokenizer, mask: np.ndarray | None = None
) -> Sample:
    """Returns the transcript as a sample to imitate. mask: [K], which of the K replies are trained
    on; None: all of them."""
    conversation = conversation_of(transcript)
    mask = np.ones(conversation.num_replies, bool) if mask is None else mask
    return demonstration(learned_exchanges(exchanges_of(conversation, tokenizer), mask))


def oracle_experts(
    config: RunConfig,
    tasks: Sequence[Task],
    runtime: Runtime | None,
    tokenizer: ChatTokenizer,
    on_progress: Callable[[int], None],
) -> list[Expert]:
    """Returns the oracle's trajectories as experts. ValueError if one is longer than an episode may
    be."""
    boxes = OracleSandboxes(runtime, Schedule.of(config).families, config.sandbox)
    play = plain_player(config, noisy=False)
    played = demonstrate(boxes, tasks, play, WORKERS, on_progress)
    experts = [oracle_expert(*each, tokenizer) for each in zip(tasks, played, strict=True)]
    check_oracles(experts, config.agent.turns, config.engine.max_sequence_length)
    return experts


def oracle_expert(task: Task, transcript: Transcript, tokenizer: ChatTokenizer) -> Expert:
    """Converts an oracle's transcript to an expert. Its chunks are encoded from text, because the
    policy did not sample them; all other experts keep the tokens that the policy sampled."""
    seen = ""
    told: list[tuple[str, str]] = []
    for message in transcript.messages:
        if message.role == "assistant":
            told.append((seen, message.content))
        seen = message.content  # before the first turn: the instruction, after the system prompt
    exchanges = exchanges_of(conversation_of(transcript), tokenizer)
    turns = [text_turn(*ids, *texts) for ids, texts in zip(exchanges, told, strict=True)]
    return Expert(task, tuple(turns), TEACHER, transcript.reward)


def check_oracles(experts: Iterable[Expert], turns: int, tokens: int) -> None:
    """Raises ValueError if an expert is longer than an episode may be."""
    for expert in experts:
        if len(expert.turns) > turns:
            raise ValueError(
                f"the oracle of {expert.task.family} {expert.task.item} takes {len(expert.turns)} "
                f"turns, and agent.turns is {turns}: raise it, or "
                "leave the family out"
            )
        if expert.num_tokens > tokens:
            raise ValueError(
                f"the oracle of {expert.task.family} {expert.task.item} takes {expert.num_tokens} "
                f"tokens, and engine.max_sequence_length is {tokens}: raise it, or "
                "leave the family out"
            )
