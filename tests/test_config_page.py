"""The list of a config's fields is complete, and the code says what each field means."""

import re

import pytest

from ale_jax.configs.document import Section, allowed, page
from ale_jax.system.config import RunConfig

SECTIONS = list(Section("", RunConfig).sections())


def test_the_page_has_a_row_for_every_field():
    rows = re.findall(r"^\| `([\w.]+)` \| .* \|$", page(), re.M)
    assert rows == [section.path + name for section in SECTIONS for name in section.leaves()]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.path or "run")
def test_every_section_and_field_has_a_meaning(section):
    whole, meanings = section.meanings()
    assert whole and all(meanings.get(name) for name in section.leaves())


@pytest.mark.parametrize(
    ("path", "kind", "answer"),
    [
        ("rl.alpha", "float", "in [0.0, 1000000.0]: 0 is synchronous"),
        ("rl.steps", "int", "at least 0"),
        ("algo.loss.level", "str", "token, chunk, sequence"),
        ("lora.targets", "tuple[str, ...]", "q, k, v, o, gate, up, down"),
        ("weights", "str", ""),
        ("rl.fill_queue", "bool", ""),
    ],
)
def test_what_a_field_may_be_is_what_a_wrong_value_is_answered_with(path, kind, answer):
    assert allowed(path, kind) == answer
