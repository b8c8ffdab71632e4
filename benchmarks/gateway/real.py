"""An unmodified client before a real model: it plays a shell task in a sandbox without a network.

Nothing is scripted: whether the task is solved is up to the model, and is reported. What has to
hold, whatever it writes, is that each of its tokens is trained on once, behind what it had read.
The client's libraries are copied into a sandbox of bubblewrap, which needs no image.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ale_jax.agent import external
from ale_jax.agent.external import ExternalAgent, PolicyAccess
from ale_jax.gateway.app import make_app
from ale_jax.gateway.conversations import Watch
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.requests import SampleOptions
from ale_jax.gateway.server import served
from ale_jax.model.sampler import Sampling
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.model.weights.load import load_params, open_checkpoint
from ale_jax.rollout.engine import Engine
from ale_jax.rollout.engine_shape import EngineShape
from ale_jax.rollout.policy_gateway import EnginePolicy
from ale_jax.rollout.slots import Sampled
from ale_jax.sandbox.blocking import BlockingSandbox
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.spec import SandboxSpec
from benchmarks.gateway.catalogue import CLIENTS, HOME, INSIDE, Client
from benchmarks.gateway.clients import KEY
from benchmarks.gateway.ids import delivered
from benchmarks.gateway.installs import install
from benchmarks.gateway.scripted import Stage, Written
from envs.registry import make_env

CLIENT = "openai"
SECONDS = 600.0  # of an episode; a model of this size is slow without an accelerator
MAX_REPLY_TOKENS, MAX_REPLIES = 160, 8
SAID = 200  # characters
SPEC = SandboxSpec(memory_mb=4096, pids=512, files_mb=512, command_seconds=60.0, writable=(INSIDE,))
ENGINE = EngineShape(
    max_sequences=2,
    max_sequence_length=2048,
    prefill_tokens=(64, 512),
    pages=2 * 2048 // 16,
    share_replies=True,
)


@dataclasses.dataclass(frozen=True)
class Played:
    """solved: the verifier's verdict. calls: replies that call a tool. said: the beginning of the
    last reply. tokens: that the model has written; of these, lost: not trained on, or not where
    they were written. foreign: trained on, and not written."""

    client: str
    version: str
    solved: bool
    status: str
    replies: int
    calls: int
    said: str
    tokens: int
    lost: int
    foreign: int
    seconds: float


class Heard:
    """A policy of the gateway, and what it has read and written."""

    def __init__(self, policy: EnginePolicy):
        self._policy = policy
        # Per conversation, what was read and, in turn, what was written.
        self._said: dict[int, list[np.ndarray | Future[Sampled]]] = {}

    def open(self) -> int:
        number = self._policy.open()
        self._said[number] = []
        return number

    def reply(
        self,
        conversation: int,
        new_ids: np.ndarray,
        options: SampleOptions,
        key: np.ndarray,
        watch: Watch | None,
    ) -> Future[Sampled]:
        sampled = self._policy.reply(conversation, new_ids, options, key, watch)
        self._said[conversation] += [np.asarray(new_ids, np.int32), sampled]
        return sampled

    def end(self, conversation: int) -> None:
        self._policy.end(conversation)

    def written(self) -> Iterator[Written]:
        """Once all replies are there. Without those that the context had no room for."""
        for said in self._said.values():
            read: list[np.ndarray] = []
            for each in said:
                if isinstance(each, np.ndarray):
                    read.append(each)
                    continue
                ids = each.result().ids
                if len(ids):
                    yield Written(np.concatenate(read), ids, int(each.result().version[0]))
                read.append(ids)


@dataclasses.dataclass(frozen=True)
class _Equipped:
    """A sandbox that the client's libraries are copied into before it starts: the reset at an
    episode's beginning has removed those of an earlier one."""

    box: BlockingSandbox
    files: Mapping[str, bytes]
    place: str

    def relay(self, port: int, host: str, target: int) -> contextlib.AbstractContextManager[None]:
        return self.box.relay(port, host, target)

    def exec(self, argv: Sequence[str] | str, *more: Any, **options: Any) -> Any:
        self.box.replace_directory(self.place, self.files)
        return self.box.exec(argv, *more, **options)


def measure(cache: Path, weights: str) -> dict[str, Any]:
    folder = cache / "clients"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer, checkpoint = ChatTokenizer.load(weights), open_checkpoint(weights)
    engine = Engine(checkpoint.shape, ENGINE, tokenizer.stop_ids, load_params(checkpoint))
    policy = EnginePolicy(engine, tokenizer, Sampling(temperature=0.0), MAX_REPLY_TOKENS)
    (client,) = (client for client in CLIENTS if client.name == CLIENT)
    with contextlib.closing(engine):
        played = _played(Stage(tokenizer), policy, client, folder)
    about = {"weights": Path(weights).name, "device": jax.devices()[0].device_kind}
    found = about | dataclasses.asdict(played)
    return {f"real_{name}": value for name, value in found.items()}


def _played(stage: Stage, policy: EnginePolicy, client: Client, folder: Path) -> Played:
    version = install(client, folder)
    print(f"{client.name} {version} plays", file=sys.stderr, flush=True)
    heard, episodes = Heard(policy), Episodes()
    # As in training, the options are ours: temperature 0, so that the same weights say the same.
    episode = stage.episode(heard, kept=1, obeys=False, max_replies=MAX_REPLIES)
    token = episodes.open(episode)
    command = ("sh", "-c", f'mkdir -p {HOME} && exec "$@"', "sh", *client.command)
    agent = ExternalAgent(command=command, env=client.variables, seconds=SECONDS)
    lib = folder / client.name / "lib"
    files = {str(p.relative_to(lib)): p.read_bytes() for p in lib.rglob("*") if p.is_file()}
    with (
        served(make_app(episodes, "policy")) as url,
        pick_runtime("bubblewrap", SPEC).start(SPEC, {}) as box,
    ):
        machine = _Equipped(box, files, f"{INSIDE}/{client.name}/lib")
        access = PolicyAccess(url, token)
        result = external.play(make_env(KEY.task, box), machine, agent, access, KEY)
    branches, written = episodes.end(token, "all"), list(heard.written())
    lost, foreign = delivered(branches, written, stage.tokenizer.decode)
    replies = [call.reply for branch in branches for call in branch.calls[branch.num_shared :]]
    return Played(
        client.name,
        version,
        solved=result.reward == 1.0,
        status=f"{result.status.value} {result.detail[:200]}".strip(),
        replies=len(replies),
        calls=sum(bool(reply.tool_calls) for reply in replies),
        said=replies[-1].content[:SAID] if replies else "",
        tokens=sum(len(each.ids) for each in written),
        lost=lost,
        foreign=foreign,
        seconds=round(result.seconds, 1),
    )
