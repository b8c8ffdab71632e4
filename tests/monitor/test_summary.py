"""summary.json is a Summary or an error."""

import dataclasses
import json

import pytest

from ale_jax.monitor.evaluations import SUMMARY_FILE, read_summary, write_summary
from tests.monitor.fake_run import SUMMARY


def test_a_summary_comes_back_equal(tmp_path):
    summary = dataclasses.replace(
        SUMMARY, success_final=None, success_final_families={"trail": 0.5, "relay": None}
    )
    assert read_summary(write_summary(tmp_path, summary)) == summary


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"episodes": "many"}, "episodes"),
        ({"episodes": None}, "episodes"),
        ({"success_final_families": {"a": "x"}}, "success_final_families"),
        ({"invented": 1}, "invented"),
    ],
)
def test_a_wrong_field_is_named(tmp_path, change, words):
    content = dataclasses.asdict(SUMMARY) | change
    (tmp_path / SUMMARY_FILE).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=words):
        read_summary(tmp_path / SUMMARY_FILE)
