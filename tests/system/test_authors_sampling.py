"""How a model's authors want it sampled, where the config does not say."""

import json

import pytest

from ale_jax.config.build import build_config
from ale_jax.config.engine import Sampling
from ale_jax.system.authors_sampling import FILE, serving_defaults
from tests.config.smoke import smoke_with
from tests.rows import each_row


def defaults(folder, content, **changes):
    (folder / FILE).write_text(json.dumps(content))
    plain = {f"eval_sampling.{name}": value for name, value in vars(Sampling()).items()}
    values = smoke_with({"weights": str(folder), **plain, **changes})
    return serving_defaults(build_config(values))


@each_row(
    "content, sampling, not_applied",
    [
        ({"temperature": 0.6, "top_k": 20}, Sampling(temperature=0.6, top_k=20), ()),
        ({"do_sample": False, "top_p": 0.9}, Sampling(temperature=0.0), ()),
        (
            {"top_p": 0.9, "repetition_penalty": 1.05},
            Sampling(top_p=0.9),
            ("repetition_penalty 1.05",),
        ),
        ({"eos_token_id": 3, "repetition_penalty": 1.0}, Sampling(), ()),
        (
            {"num_beams": 1, "typical_p": 1.0, "bad_words_ids": [], "max_new_tokens": 99},
            Sampling(),
            (),
        ),
        (
            {"suppress_tokens": [7], "forced_eos_token_id": 2, "min_length": 3, "num_beams": 4},
            Sampling(),
            ("suppress_tokens [7]", "forced_eos_token_id 2", "min_length 3", "num_beams 4"),
        ),
        ({"presence_penalty": 1.5}, Sampling(), ("presence_penalty 1.5",)),
    ],
)
def test_the_authors_file_counts(tmp_path, content, sampling, not_applied):
    found = defaults(tmp_path, content)
    assert (found.sampling, found.not_applied) == (sampling, not_applied)


def test_a_config_that_says_how_counts_more(tmp_path):
    found = defaults(tmp_path, {"temperature": 0.6}, **{"eval_sampling.top_p": 0.5})
    assert found.sampling == Sampling(top_p=0.5) and "config.eval_sampling" in str(found)


def test_a_file_that_makes_no_sense_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"generation_config.json: .*temperature"):
        defaults(tmp_path, {"temperature": -1})
    with pytest.raises(ValueError, match=r"generation_config.json"):
        defaults(tmp_path, {"temperature": "hot"})
    with pytest.raises(ValueError, match=r"generation_config.json: do_sample 'no' must be"):
        defaults(tmp_path, {"do_sample": "no"})
