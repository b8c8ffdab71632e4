"""The vocabulary: words that a command can name without hitting anything else."""

import re

from ale_jax.envs.shell import task
from ale_jax.envs.shell.families import FAMILIES, generate
from ale_jax.envs.shell.words import WORDS


def test_there_are_100_different_words_of_4_to_8_small_letters():
    assert len(WORDS) == len(set(WORDS)) == 100
    assert [w for w in WORDS if not re.fullmatch("[a-z]{4,8}", w)] == []


def test_no_word_is_a_part_of_another():
    assert [(a, b) for a in WORDS for b in WORDS if a != b and a in b] == []


def test_no_drawn_word_hits_a_fixed_one(monkeypatch):
    """Fixed are the words of instructions, tools, commands, keys and marks: what stays small."""
    monkeypatch.setattr(task, "WORDS", tuple(word.upper() for word in WORDS))
    texts = [_all_text(generate(family, seed)) for family in FAMILIES for seed in range(20)]
    fixed = set(re.findall("[a-z]+", " ".join(texts))) | {"failed"}
    assert {"next", "follow", "grep", "echo", "cat", "sed", "finish", "passed"} <= fixed
    assert [(word, text) for word in WORDS for text in fixed if word in text] == []


def _all_text(drawn) -> str:
    calls = [f"{call.name} {' '.join(call.arguments.values())}" for call in drawn.oracle]
    files = [f"{path} {content.decode()}" for path, content in drawn.files.items()]
    return " ".join([drawn.instruction, *calls, *files])
