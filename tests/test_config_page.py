"""The list of a config's fields is complete, and says of each what it means and may be."""

import re

import pytest

from ale_jax.config.fields import flat
from ale_jax.config.run import RunConfig
from ale_jax.config.setting import facts_of
from ale_jax.configs.document import Section, page

SECTIONS = list(Section("", RunConfig()).sections())


def test_the_page_has_a_row_for_every_field():
    rows = re.findall(r"^\| `([\w.]+)` \| .* \|$", page(), re.M)
    assert sorted(rows) == sorted(flat(RunConfig().to_json()))


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.path or "run")
def test_every_section_and_field_has_a_meaning(section):
    assert section.settings.__doc__.strip()
    assert all(facts.meaning for _, facts in section.leaves())


@pytest.mark.parametrize(
    ("field", "cells"),
    [
        ("rl.alpha", r"`float` \| `[\d.]+` \| .* \| in \[0.0, 1000000.0\]: 0 is synchronous"),
        ("rl.steps", r"`int` \| `\d+` \| .* \| at least 0"),
        ("algo.loss.level", r"`str` \| `'token'` \| .* \| token, chunk, sequence"),
        ("rl_optimizer.name", r"`str` \| `'adamw'` \| .* \| adamw, adafactor, muon"),
        ("weights", r"`str` \| `''` \| .* \| "),
        ("rl.fill_queue", r"`bool` \| `False` \| .* \| "),
    ],
)
def test_a_row_says_type_default_meaning_and_what_is_allowed(field, cells):
    assert re.search(rf"^\| `{re.escape(field)}` \| {cells} \|$", page(), re.M)


def test_only_sections_have_no_facts():
    leaves = [field for section in SECTIONS for field, _ in section.leaves()]
    assert len(leaves) == len(flat(RunConfig().to_json()))
    assert facts_of(RunConfig.__dataclass_fields__["rl"]) is None
