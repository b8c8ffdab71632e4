"""Our own loop with models of each family: the template tells of its tools, and the model's own
calls are played."""

import contextlib

import numpy as np
import pytest

from ale_jax.agent import tool_steps
from ale_jax.agent.loop import play
from ale_jax.agent.tools import OFFERED, SYSTEM_PROMPT, bash, finish, render_tool_call
from ale_jax.agent.transcripts import play_oracle
from ale_jax.config.agent import AgentLimits
from ale_jax.config.worlds import Domain
from ale_jax.gateway.app import make_app
from ale_jax.gateway.custody.engine_policy import ChatRender, language_of
from ale_jax.gateway.custody.token_tree import TokenTree
from ale_jax.gateway.episode import EpisodeOptions, GatewayEpisode
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.server import served
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.recorded.samples import exchanges_of
from ale_jax.records import EpisodeKey, Task
from ale_jax.rollout.policy_client import PolicyClient
from ale_jax.status import Status
from ale_jax.system.agent_demonstrations import Script
from ale_jax.system.demonstrations import conversation_of
from ale_jax.worlds import Seeds, World
from ale_jax.worlds.families import open_families
from tests.model.chat_families import FAMILIES

TASK = Task("echo", 7, "train")
KEY = EpisodeKey("train", 0, 0, TASK)
# Stand-ins of formats that are no family's template.
LEFT_OUT = ("trimmed_before", "mistral_sentencepiece")
NAMES = [name for name in FAMILIES if name not in LEFT_OUT]


class Echo(World):
    """Is solved by a command and the answer that it prints."""

    families = {"echo": Seeds()}  # noqa: RUF012
    system_prompt, role, loop_tools = SYSTEM_PROMPT, "tool", OFFERED

    def reset(self, item, sandbox):
        self.ran = []
        return "Run ls."

    def step(self, reply):
        return tool_steps.play(reply, self.run, self.grade)

    def run(self, command):
        self.ran.append(command)
        return f"{command}: a.txt", False

    def grade(self, answer=None):
        return float(self.ran == ["ls"] and answer == "a.txt")

    def oracle(self, item):
        return [render_tool_call(bash("ls")), render_tool_call(finish("a.txt"))]


def family(in_template=True):
    domain = Domain("tests.agent.test_family_tools:Echo")
    return open_families((domain,), in_template=in_template)["echo"]


def demonstrated(tokenizer):
    """The ids of the oracle's conversation: those before each reply, and its own."""
    _, transcript = play_oracle(family(), None, TASK)
    assert transcript.tools == tuple(OFFERED)
    return exchanges_of(conversation_of(transcript), tokenizer)


def played(tokenizer, replies):
    tree = TokenTree(ChatRender(tokenizer))
    episode = GatewayEpisode(
        tree,
        Script(replies),
        language_of(tokenizer),
        lambda number: np.zeros(2, np.uint32),
        EpisodeOptions(obeys=False),
    )
    episodes = Episodes()
    token = episodes.open(episode)
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(served(make_app(episodes, "policy")))
        policy = stack.enter_context(PolicyClient(url, token, lambda: family().offer(TASK)))
        limits = AgentLimits(turns=len(replies))
        return play(family().checked(TASK, None), policy, KEY, limits), tree.answered()


@pytest.mark.parametrize("name", NAMES)
def test_an_oracle_calls_as_the_family_does_and_is_read(name):
    tokenizer = ChatTokenizer(FAMILIES[name]())
    exchanges = demonstrated(tokenizer)
    episode, calls = played(tokenizer, [reply for _, reply in exchanges])
    assert (episode.status, episode.reward) == (Status.FINISHED, 1.0), episode.detail
    for call, (prompt_ids, _) in zip(calls, exchanges, strict=True):
        if name == "mistral":  # which shows the ids of calls, and has none of the model's
            assert len(call.prompt_ids) == len(prompt_ids)
        else:
            np.testing.assert_array_equal(call.prompt_ids, prompt_ids)
    assert "Run a command in the shell" in tokenizer.decode(calls[0].prompt_ids)


@pytest.mark.parametrize("name", NAMES)
def test_a_reply_without_a_call_is_told_so_in_words(name):
    tokenizer = ChatTokenizer(FAMILIES[name]())
    replies = [reply for _, reply in demonstrated(tokenizer)]
    said = tokenizer.turn_ids({"role": "assistant", "content": "I look."})
    episode, calls = played(tokenizer, [said, *replies])
    assert (episode.status, episode.malformed_calls) == (Status.FINISHED, 1), episode.detail
    assert "no <tool_call> in the reply" in tokenizer._tokenizer.decode(calls[1].prompt_ids)


def test_a_policy_that_is_trained_here_reads_a_sentence():
    assert family(in_template=False).offer(TASK).tools == ()
