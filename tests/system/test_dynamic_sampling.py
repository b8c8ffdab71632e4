"""Dynamic sampling in a whole run: groups whose outcomes are equal are replaced, and counted."""

import pytest

from ale_jax.data.replay import REPLACEABLE_STEPS
from tests.system.untimed import rl_lines
from tests.system.whole_runs import SYNCHRONOUS, broken_off, run_here

pytestmark = pytest.mark.heavy

GROUPS, MEMBERS = 3, 2  # as in SYNCHRONOUS and configs/smoke.py
OVERRIDES = [
    "--config=configs/smoke.py:dapo",
    "--config.worlds.train=({'world':'countdown','families':('countdown3',)},)",
    "--config.worlds.held_out=()",
    "--config.eval.held_out_tasks=0",
    "--config.checkpoint.keep=4",
    *SYNCHRONOUS,
]


def test_groups_without_a_signal_are_replaced_also_after_a_resume(tmp_path):
    run_here(tmp_path / "run", "auto", *OVERRIDES)
    lines = rl_lines(tmp_path / "run")
    # This policy solves nothing, so that each step replaces as many groups as it may.
    each = REPLACEABLE_STEPS * GROUPS * MEMBERS
    assert [line["dropped_equal"] for line in lines] == [each, 2 * each, 3 * each, 4 * each]
    assert [line["success"] for line in lines] == [0.0] * 4

    resumed = broken_off(tmp_path / "run", tmp_path / "resumed", after=2)
    assert "continuing the unfinished run" in run_here(resumed, "auto", *OVERRIDES)
    assert rl_lines(resumed) == lines
