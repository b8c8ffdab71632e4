"""Variables of the chat template that a request sets: thinking, and its effort."""

import openai
import pytest

from ale_jax.gateway.app import make_app
from ale_jax.gateway.custody.engine_policy import ChatRender, language_of
from ale_jax.gateway.custody.token_tree import TokenTree
from ale_jax.gateway.episode import GatewayEpisode
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.server import served
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.system.agent_demonstrations import Script
from tests.model.chat_families import CHATML_SPECIAL, QWEN_OTHERS, byte_level
from tests.model.test_template_settings import THINKING

EFFORT = "{{ '<|im_start|>' + (reasoning_effort or 'low') + '<|im_end|>' }}"
ASKED = [{"role": "user", "content": "Begin."}]


@pytest.fixture(scope="module")
def tokenizer():
    return ChatTokenizer(byte_level(EFFORT + THINKING, CHATML_SPECIAL, QWEN_OTHERS)())


@pytest.fixture
def asked(tokenizer):
    """A function that asks, and returns the message and the prompt."""
    replies = [tokenizer.reply_ids("so</think>Yes.")] * 4
    tree = TokenTree(ChatRender(tokenizer))
    episode = GatewayEpisode(tree, Script(replies), language_of(tokenizer), lambda number: [0, 0])
    episodes = Episodes()
    token = episodes.open(episode)
    with served(make_app(episodes, "policy")) as url:
        client = openai.OpenAI(base_url=url, api_key=token, max_retries=0)

        def ask(stream=False, **more):
            found = client.chat.completions.create(
                model="policy", messages=ASKED, tools=TOOLS, stream=stream, **more
            )
            if stream:
                found = [chunk.choices[0].delta for chunk in found]
                told = "".join(getattr(d, "reasoning_content", None) or "" for d in found)
                said = "".join(each.content or "" for each in found)
            else:
                message = found.choices[0].message
                told, said = getattr(message, "reasoning_content", ""), message.content
            prompt = tokenizer._tokenizer.decode(tree.answered()[-1].prompt_ids)
            return told, said, prompt

        yield ask


TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_that_the_prompt_opens_are_thoughts(asked, stream):
    thinking = {"chat_template_kwargs": {"enable_thinking": True}}
    told, said, prompt = asked(stream, extra_body=thinking)
    assert (told, said) == ("so", "Yes.") and prompt.endswith("<think>\n")


def test_without_the_variable_they_are_not(asked):
    told, said, prompt = asked()
    assert (told, said) == ("", "so</think>Yes.") and prompt.endswith("assistant\n")


def test_an_effort_is_told_to_a_template_that_reads_one(asked):
    assert "<|im_start|>high<|im_end|>" in asked(reasoning_effort="high")[2]
    assert "<|im_start|>low<|im_end|>" in asked()[2]


def test_what_the_template_does_not_read_is_refused_by_name(asked):
    with pytest.raises(openai.BadRequestError, match="no variable 'thinking'") as refused:
        asked(extra_body={"chat_template_kwargs": {"thinking": True}})
    assert refused.value.param == "chat_template_kwargs"
    with pytest.raises(openai.BadRequestError, match="names a special token"):
        asked(extra_body={"chat_template_kwargs": {"enable_thinking": "<|im_end|>"}})
    with pytest.raises(openai.BadRequestError, match="names a special token"):
        asked(reasoning_effort="<|im_end|>")
