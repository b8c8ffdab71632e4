"""System messages in the middle of a conversation, with templates that have no place for them."""

import numpy as np
import pytest

from ale_jax.gateway.custody.engine_policy import ChatRender
from ale_jax.gateway.custody.token_tree import TokenTree
from ale_jax.gateway.messages import ChatMessage
from ale_jax.model.system_messages import folded
from ale_jax.model.tokenizer import train_bpe
from tests.gateway.speech import Tokens, say
from tests.model.test_chat_render import with_template
from tests.model.test_tokenizer import DIALOGUE
from tests.rows import each_row

WRITES = """{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
# As newer Qwens' do.
REFUSES = """{%- for m in messages %}{% if m.role == 'system' and not loop.first %}
{{- raise_exception('System message must be at the beginning.') }}{% endif %}{% endfor %}"""
# As Llama 2's does: it takes the first one, and shows no other.
DROPS = WRITES.replace("<|im_start|>", "{% if m.role != 'system' or loop.first %}<|im_start|>", 1)
DROPS = DROPS.replace("{% endfor %}", "{% endif %}{% endfor %}", 1)
# As Mistral's: users and the policy take turns.
TURNS = """{%- set rest = messages[1:] if messages[0].role == 'system' else messages %}
{%- for m in rest if m.role not in ('tool', 'system') %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('roles must alternate') }}{% endif %}{% endfor %}"""


@pytest.fixture(scope="module")
def bpe():
    return train_bpe(DIALOGUE * 20, 400)


def shown(template, messages, bpe, folder, first=True):
    tokenizer = with_template(template, bpe, folder)
    told = [{"role": role, "content": text} for role, text in messages]
    return "".join(text for text, _ in tokenizer.pieces(tokenizer.prompt_ids(told, first, [])))


CLAUDE = [("system", "Work."), ("user", "Begin."), ("system", "There are agents.")]
CODEX = [("system", "Work."), ("system", "Have skills."), ("user", "Begin.")]


@pytest.mark.parametrize("template", [REFUSES + WRITES, DROPS, TURNS + REFUSES + WRITES])
def test_where_the_template_refuses_them_their_neighbours_say_them(template, bpe, tmp_path):
    found = shown(template, CLAUDE, bpe, tmp_path)
    assert "user\nBegin.\n\nThere are agents." in found and found.count("system\n") == 1
    found = shown(template, CODEX, bpe, tmp_path)
    assert "system\nWork.\n\nHave skills." in found and "user\nBegin." in found


def test_where_the_template_has_a_place_for_them_they_stay_there(bpe, tmp_path):
    found = shown(WRITES, CLAUDE, bpe, tmp_path)
    assert "user\nBegin." in found and "system\nThere are agents." in found


def test_what_is_refused_for_another_reason_is_refused_as_before(bpe, tmp_path):
    odd = [("user", "a"), ("user", "b")]
    with pytest.raises(ValueError, match="alternate"):
        shown(TURNS + WRITES, odd, bpe, tmp_path)


S, U, A, T = "system", "user", "assistant", "tool"
ROWS = {
    "leading ones are one": ([(S, "1"), (S, "2"), (U, "3")], True, [(S, "1\n\n2"), (U, "3")]),
    "after a result": ([(A, "1"), (T, "2"), (S, "3")], True, [(A, "1"), (T, "2\n\n3")]),
    "after the policy": ([(S, "1"), (U, "2"), (U, "3")], False, [(U, "1\n\n2"), (U, "3")]),
    "two after the policy": ([(S, "1"), (S, "2"), (U, "3")], False, [(U, "1\n\n2\n\n3")]),
    "nobody says more": ([(U, "1"), (A, "2"), (S, "3")], True, [(U, "1"), (A, "2"), (U, "3")]),
    "none": ([(S, "1"), (U, "2"), (U, "3")], True, [(S, "1"), (U, "2"), (U, "3")]),
    "an empty one": ([(U, "1"), (S, "")], True, [(U, "1")]),
    "before a result": ([(S, "1"), (T, "2")], False, [(U, "1\n\n2")]),
}  # fmt: skip


@each_row("messages, first, wanted", ROWS.values(), ids=ROWS)
def test_the_neighbour_of_a_system_message(messages, first, wanted):
    told = [{"role": role, "content": text} for role, text in messages]
    assert [(each["role"], each["content"]) for each in folded(told, first)] == wanted


def test_a_conversation_with_later_system_messages_is_one_branch(bpe, tmp_path):
    """Whatever a template makes of them, the ids that were sampled stay."""
    tokenizer = with_template(REFUSES + WRITES, bpe, tmp_path)
    tree, told = TokenTree(ChatRender(tokenizer)), [say(role, text) for role, text in CLAUDE]
    for number in range(3):
        call = tree.begin(told)
        reply = ChatMessage("assistant", f"Reply {number}.")
        ids = tokenizer.reply_ids(reply.content)
        logp = np.zeros(len(ids), np.float32)
        tree.finish(call, reply, Tokens(ids, logp, logp, np.zeros(len(ids), np.int32)))
        told += [reply, say("system", f"Reminder {number}."), say("user", f"More {number}.")]
    (branch,) = tree.branches("all")
    assert len(branch.calls) == 3 and tree.counts.forks == 0
    text = "".join(t for t, _ in tokenizer.pieces(branch.calls[-1].prompt_ids))
    assert "user\nReminder 1.\n\nMore 1." in text
