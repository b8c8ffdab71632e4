"""The texts of a trajectory's turns are those that the agent and its environment had."""

import dataclasses
from concurrent.futures import Future

import numpy as np
import pytest

from ale_jax.agent.tools import ToolCallError, bash, parse_tool_call, render_tool_call
from ale_jax.gateway.custody.engine_policy import ChatRender, language_of
from ale_jax.gateway.custody.token_tree import TokenTree
from ale_jax.gateway.custody.trajectories import GivenTokens, trajectory_of
from ale_jax.gateway.episode import GatewayEpisode
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import NONE, ChatRequest
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.records import Episode, EpisodeKey, Task
from ale_jax.status import Status
from tests.gateway.fake_policy import Written

KEY = EpisodeKey("train", 3, 1, Task("trail", 7, "train"))
EPISODE = Episode(KEY, Status.FINISHED, 1.0, 1, 0, 1.0, 0.5)
TASK = (ChatMessage("user", "Read lemon.txt."),)
TOOLS = ({"type": "function", "function": {"name": "bash", "parameters": {}}},)
CALL = render_tool_call(bash("ls"))


@pytest.fixture(scope="module")
def tokenizer():
    return ChatTokenizer(train_bpe([{"role": m.role, "content": m.content} for m in TASK], 320))


class Scripted:
    """Writes the ids that it is given."""

    def __init__(self, ids):
        logp = np.zeros(len(ids), np.float32)
        self._tokens = GivenTokens(ids, logp, np.zeros(len(ids), np.int32))

    def open(self):
        return 0

    def reply(self, *asked):
        future = Future()
        future.set_result(Written(self._tokens, "stop"))
        return future

    def end(self, conversation):
        pass


def opened(tokenizer, ids):
    tree = TokenTree(ChatRender(tokenizer))
    keys = lambda number: np.array([0, number], np.uint32)  # noqa: E731
    return GatewayEpisode(tree, Scripted(ids), language_of(tokenizer), keys)


def played(tokenizer, ids, **request):
    """What the agent got, and the turn that it becomes."""
    episode = opened(tokenizer, ids)
    asked = ChatRequest("", TASK, **request)
    (pending,) = episode.ask(asked)
    message = episode.answer(pending, asked).message
    (turn,) = trajectory_of(EPISODE, episode.end("all"), 0, tokenizer.decode).turns
    return message, turn


def test_a_call_that_the_environment_rejected_for_a_special_token_stays_rejected(tokenizer):
    *call, end_of_turn = tokenizer.reply_ids(f"I look.\n{CALL}")
    begin = tokenizer.text_ids("<|im_start|>")
    ids = np.array([*call, *begin, end_of_turn], np.int32)
    message, turn = played(tokenizer, ids, tool_choice=NONE)  # as our own loop asks
    assert turn.action_text == message.content == f"I look.\n{CALL}<|im_start|>"
    with pytest.raises(ToolCallError, match="text after"):
        parse_tool_call(turn.action_text)
    parse_tool_call(tokenizer.decode(ids))  # without the token it is another action


def test_a_turn_has_the_call_that_the_gateway_has_read_from_it(tokenizer):
    ids = tokenizer.reply_ids(f"I look.\n{CALL}")
    message, turn = played(tokenizer, ids, tools=TOOLS)
    assert message.content == "I look." and [call.name for call in message.tool_calls] == ["bash"]
    assert turn.action_text == f"I look.\n{CALL}"


def rewarded(tokenizer, reward, step_rewards):
    """The rewards of three turns."""
    episode, told = opened(tokenizer, tokenizer.reply_ids("I look.")), TASK
    for _ in range(3):
        (pending,) = episode.ask(asked := ChatRequest("", told, tool_choice=NONE))
        told += (episode.answer(pending, asked).message, ChatMessage("user", "Go on."))
    played = dataclasses.replace(EPISODE, reward=reward, step_rewards=step_rewards)
    turns = trajectory_of(played, episode.end("all"), 0, tokenizer.decode).turns
    return [turn.reward for turn in turns]


def test_each_turn_has_the_reward_of_its_step_and_the_last_the_rest(tokenizer):
    assert rewarded(tokenizer, 0.75, (0.25, -0.5, 1.0)) == [0.25, -0.5, 1.0]
    assert rewarded(tokenizer, 0.25, (0.25, -0.5)) == [0.25, -0.5, 0.5]  # a reply that was cut
    assert rewarded(tokenizer, 1.0, ()) == [0.0, 0.0, 1.0]  # of an agent's program
    assert rewarded(tokenizer, None, (0.25,)) == [0.0, 0.0, 0.0]
