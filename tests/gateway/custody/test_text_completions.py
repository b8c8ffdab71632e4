"""OpenAI's text completions, from the official client to the engine and back."""

import jax
import numpy as np
import openai
import pytest

from ale_jax.config.engine import Sampling
from ale_jax.engine.engine import Engine
from ale_jax.gateway.app import make_app
from ale_jax.gateway.custody.engine_policy import ChatRender, EnginePolicy, language_of
from ale_jax.gateway.custody.token_tree import TokenTree
from ale_jax.gateway.episode import GatewayEpisode
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.server import served
from ale_jax.model.params import init_params
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from tests.engine.shapes import engine_shape
from tests.model.shapes import MOE, changed

TEXT = "Read lemon.txt, then <|im_end|> go on"
ASKED = {"model": "m", "max_tokens": 9, "seed": 7}


class Served:
    def __init__(self, engine, tokenizer):
        policy = EnginePolicy(engine, tokenizer, Sampling(), 64)
        self.tokenizer, self.episodes = tokenizer, Episodes()
        keys = lambda number: np.array([0, number], np.uint32)  # noqa: E731
        tree = TokenTree(ChatRender(tokenizer))
        self.episode = GatewayEpisode(tree, policy, language_of(tokenizer), keys)
        self.token = self.episodes.open(self.episode)

    def calls(self):
        """In the order in which they were made."""
        return [call for branch in self.episodes.end(self.token, "all") for call in branch.calls]


@pytest.fixture(scope="module")
def engine_and_tokenizer():
    tokenizer = ChatTokenizer(train_bpe([{"role": "user", "content": TEXT}] * 10, 320))
    shape = changed(MOE, vocab_size=tokenizer.vocab_size)
    sizes = engine_shape(max_sequences=4, max_sequence_length=128, prefill_tokens=(16, 64))
    engine = Engine(shape, sizes, tokenizer.stop_ids, init_params(jax.random.key(0), shape))
    yield engine, tokenizer
    engine.close()


@pytest.fixture
def gateway(engine_and_tokenizer):
    gateway = Served(*engine_and_tokenizer)
    with served(make_app(gateway.episodes, "policy")) as url:
        client = openai.OpenAI(base_url=url, api_key=gateway.token, max_retries=0)
        gateway.completions = client.completions
        yield gateway


@pytest.mark.heavy
def test_the_policy_reads_the_text_alone_and_goes_on(gateway):
    found = gateway.completions.create(prompt=TEXT, logprobs=2, **ASKED)
    (call,) = gateway.calls()
    ids = call.context_ids()
    assert gateway.tokenizer.stop_ids[0] in ids, "special tokens may be named"
    assert len(ids) == len(gateway.tokenizer.text_ids(TEXT)) == found.usage.prompt_tokens
    (choice,) = found.choices
    assert choice.text == gateway.tokenizer.decode(call.sampled.ids)
    assert found.usage.completion_tokens == len(call.sampled.ids) <= 9
    shown = choice.logprobs
    assert shown.token_logprobs == call.sampled.logp_plain.tolist()
    assert shown.text_offset[0] == 0 and shown.text_offset[1] == len(shown.tokens[0])
    assert all(1 <= len(each) <= 2 for each in shown.top_logprobs)


@pytest.mark.heavy
def test_ids_are_read_as_they_are(gateway):
    ids = gateway.tokenizer.text_ids(TEXT).tolist()
    by_text = gateway.completions.create(prompt=TEXT, **ASKED).choices[0].text
    assert gateway.completions.create(prompt=ids, **ASKED).choices[0].text == by_text
    for call in gateway.calls():
        assert call.context_ids().tolist() == ids


def test_each_prompt_gets_its_replies_in_order(gateway):
    prompts = ["Read", "then go"]
    found = gateway.completions.create(prompt=prompts, n=2, echo=True, **ASKED)
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    for choice, prompt in zip(found.choices, ("Read", "Read", "then go", "then go"), strict=True):
        assert choice.text.startswith(prompt)
    lengths = [len(gateway.tokenizer.text_ids(prompt)) for prompt in prompts]
    assert found.usage.prompt_tokens == sum(lengths), "each prompt once"
    contexts = sorted(len(call.context_ids()) for call in gateway.calls())
    assert contexts == sorted(2 * lengths)


def test_a_streamed_text_is_the_whole_one(gateway):
    asked = ASKED | {"prompt": ["Read", "then"], "max_tokens": 40, "echo": True}
    whole = gateway.completions.create(**asked).choices
    texts, finished, used = ["", ""], [None, None], None
    for event in gateway.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    ):
        used = event.usage or used
        for choice in event.choices:
            texts[choice.index] += choice.text
            finished[choice.index] = choice.finish_reason or finished[choice.index]
    assert texts == [choice.text for choice in whole]
    assert finished == [choice.finish_reason for choice in whole]
    assert used.completion_tokens > 0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"prompt": ""}, "an empty prompt"),
        ({"prompt": []}, "prompts times n"),
        ({"prompt": [[]]}, "an empty prompt"),
        ({"prompt": ["a"] * 100, "n": 2}, "prompts times n"),
        ({"prompt": [5, 10**6]}, "there is no token 1000000"),
        ({"prompt": [10**30]}, "prompt.str"),
        ({"suffix": "end"}, "what follows a text"),
        ({"best_of": 3}, "best_of must be n"),
        ({"echo": True, "logprobs": 1}, "not of a prompt"),
        ({"echo": True, "prompt": [5]}, "only a text can be echoed"),
        ({"prompt": "Read lemon.txt. " * 90}, "exceeds the context window"),
    ],
)
def test_what_there_is_not_is_refused(gateway, changes, why):
    with pytest.raises(openai.BadRequestError, match=why):
        gateway.completions.create(**(ASKED | {"prompt": TEXT} | changes))


def test_what_is_wrong_names_its_field(gateway):
    with pytest.raises(openai.BadRequestError) as refused:
        gateway.completions.create(prompt="", **ASKED)
    assert refused.value.param == "prompt"
    with pytest.raises(openai.BadRequestError, match="99999") as refused:
        gateway.completions.create(prompt=TEXT, logit_bias={99999: 1.0}, **ASKED)
    assert refused.value.param is None


def test_a_reply_in_training_has_its_loss_once(gateway):
    for _ in range(2):
        gateway.completions.create(prompt=TEXT, model="m", max_tokens=9)
    branches = gateway.episodes.end(gateway.token, "all")
    assert [branch.num_shared for branch in branches] == [0, 0]
    assert len({id(call) for branch in branches for call in branch.calls}) == 2


def test_the_first_id_that_there_is_not_is_refused(gateway):
    """The device would take the last one instead."""
    size = gateway.tokenizer.vocab_size
    gateway.completions.create(prompt=[size - 1], **ASKED)
    with pytest.raises(openai.BadRequestError, match=f"there is no token {size}"):
        gateway.completions.create(prompt=[size], **ASKED)
