"""From an oracle's transcript to what is learned of it: masked chunks are context and no more."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.agent.tools import bash, finish, render_tool_call
from ale_jax.agent.transcripts import Transcript
from ale_jax.algo.losses import count_loss_denominator, sft_loss
from ale_jax.config.learn import Shape
from ale_jax.data.packing import pack
from ale_jax.gateway.custody.calls import Call
from ale_jax.gateway.messages import ChatMessage
from ale_jax.learn.step import forward
from ale_jax.model.params import init_params
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.records import Task
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.system.agent_demonstrations import _Demonstration
from ale_jax.system.demonstrations import (
    OracleSandboxes,
    conversation_of,
    demonstrate,
    is_noisy,
    tokenize,
)
from ale_jax.worlds.api import Message
from tests.model.shapes import DENSE, changed
from tests.played_worlds import OurWorlds, demonstration, family_of

SHAPE = Shape(microbatch_rows=1, pack_length=256, chunks_per_pack=8)
TASK = Task("count", 1, "train")


def transcript(*turns):
    """turns: (call, answer, failed); the last one's answer is not heard."""
    messages = [Message("system", "be brief"), Message("user", "count")]
    for call, answer, _ in turns:
        messages += [Message("assistant", render_tool_call(call)), Message("tool", answer)]
    return Transcript(TASK, tuple(messages[:-1]), tuple(failed for _, _, failed in turns))


CLUMSY = transcript(
    (bash("cat a.tx"), "cat: a.tx: No such file\n[exit 1]", True),
    (bash("cat a.txt"), "7", False),
    (bash("cat  a.txt"), "7", False),
    (finish("7"), "", False),
)


@pytest.fixture(scope="module")
def tokenizer():
    return ChatTokenizer(train_bpe([dataclasses.asdict(m) for m in CLUMSY.messages], 300))


def ids(sample):
    return np.concatenate([x for t in sample.turns for x in (t.prompt_ids, t.action_ids)])


@pytest.mark.parametrize(
    ("errors", "repeats", "mask"),
    [
        (False, False, [True, True, True, True]),
        (True, False, [False, True, True, True]),
        (False, True, [True, True, False, True]),
        (True, True, [False, True, False, True]),
    ],
)
def test_what_is_left_out_of_a_clumsy_transcript(errors, repeats, mask):
    np.testing.assert_array_equal(conversation_of(CLUMSY).mask(errors, repeats), mask)


LAYOUTS = {
    "no system message": lambda system, user, *rest: (user, *rest),
    "two users": lambda system, user, *rest: (system, user, user, *rest),
    "a remark after each answer": lambda system, user, *rest: (
        system,
        user,
        *(each for m in rest for each in ((m, user) if m.role == "tool" else (m,))),
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_an_agent_may_lay_its_messages_out_as_it_likes(tokenizer, layout):
    played = dataclasses.replace(CLUMSY, messages=layout(*CLUMSY.messages))
    mask = conversation_of(played).mask(True, True)
    np.testing.assert_array_equal(mask, [False, True, False, True])
    assert len(tokenize(played, tokenizer, mask).turns) == 2


def test_a_masked_reply_stays_in_the_context_in_its_place(tokenizer):
    whole = tokenize(CLUMSY, tokenizer, np.ones(4, bool))
    masked = tokenize(CLUMSY, tokenizer, np.array([False, True, False, True]))
    np.testing.assert_array_equal(ids(masked), ids(whole))
    assert (len(whole.turns), len(masked.turns)) == (4, 2)
    for kept, turn in zip(masked.turns, (whole.turns[1], whole.turns[3])):
        np.testing.assert_array_equal(kept.action_ids, turn.action_ids)


def test_a_transcript_that_is_masked_whole_has_nothing_to_learn(tokenizer):
    sample = tokenize(CLUMSY, tokenizer, np.zeros(4, bool))
    batch, left = pack([sample], SHAPE)
    assert (sample.turns, left, batch.segment_BT.max()) == ((), [], 0)


def test_the_loss_is_the_mean_over_kept_tokens_and_masked_ones_have_no_gradient(tokenizer):
    mask = np.array([False, True, False, True])
    batch, _ = pack([tokenize(CLUMSY, tokenizer, mask)], SHAPE)
    sizes = [len(t.action_ids) for t in tokenize(CLUMSY, tokenizer, np.ones(4, bool)).turns]
    loss_denominator = count_loss_denominator([batch], "tokens")
    assert loss_denominator == sizes[1] + sizes[3]  # sum of m_k |c_k|
    # Of the two kept chunks each token of the first has log-probability -1, of the second -3.
    logp_BT = np.where(batch.chunk_BT == 0, -1.0, np.where(batch.chunk_BT == 1, -3.0, -50.0))
    (loss, _), grad_BT = jax.value_and_grad(sft_loss, has_aux=True)(
        jnp.asarray(logp_BT), batch.chunk_BT, loss_denominator
    )
    np.testing.assert_allclose(loss, (sizes[1] + 3 * sizes[3]) / (sizes[1] + sizes[3]), rtol=1e-6)
    np.testing.assert_allclose(
        grad_BT, np.where(batch.chunk_BT >= 0, -1 / loss_denominator, 0), 1e-6
    )
    assert (grad_BT != 0).sum() == sizes[1] + sizes[3]


@pytest.mark.heavy
def test_what_is_learned_depends_on_the_masked_context(tokenizer):
    """Another wrong command, and the same kept replies are less, or more, likely after it."""
    mask = np.array([False, True, True, True])
    batch, _ = pack([tokenize(CLUMSY, tokenizer, mask)], SHAPE)
    policy = changed(DENSE, vocab_size=tokenizer.vocab_size)
    params = init_params(jax.random.key(0), policy)

    def kept(tokens_BT):
        arrays = {k: v for k, v in vars(batch).items() if v is not None} | {"tokens_BT": tokens_BT}
        return np.asarray(forward(params, arrays, policy)[0].logp_BT)[batch.chunk_BT >= 0]

    first = len(tokenize(CLUMSY, tokenizer, np.ones(4, bool)).turns[0].prompt_ids)
    other_BT = batch.tokens_BT.copy()
    assert batch.chunk_BT[0, first] == -1  # where the masked reply begins
    other_BT[0, first] += 1
    assert np.abs(kept(other_BT) - kept(batch.tokens_BT)).max() > 1e-4


def test_countdown_is_demonstrated_without_a_runtime():
    tasks = [Task("countdown3", seed, "train") for seed in range(5)]
    counts = []
    boxes = OracleSandboxes(None, OurWorlds(), SandboxSpec())
    played = demonstrate(boxes, tasks, demonstration, workers=2, on_progress=counts.append)
    assert [t.task for t in played] == tasks
    assert counts == [1, 2, 3, 4, 5]


def test_a_share_of_the_training_tasks_is_clumsy_and_no_other_task():
    tasks = [Task(f, s, "train") for f in ("trail", "count") for s in range(500)]
    shares = [np.mean([is_noisy(task, share) for task in tasks]) for share in (0.0, 0.3, 1.0)]
    np.testing.assert_allclose(shares, [0.0, 0.3, 1.0], atol=0.05)
    assert not any(is_noisy(Task("trail", 2**30 + s, "eval"), 1.0) for s in range(20))


def test_replies_that_a_prompt_shows_as_examples_are_not_imitated(tokenizer):
    shown = tuple(ChatMessage(role, "Look.") for role in ("user", "assistant", "user"))
    call = Call(None, shown, np.zeros(0, np.int32), b"")
    demonstration = _Demonstration(family_of("count"), Task("count", 3, "train"), tokenizer)
    with pytest.raises(RuntimeError, match=r"replies that it did not give.*another role"):
        demonstration._transcript([call])
