"""A run is the same whoever plays its episodes: threads of its process, or Ray's actors."""

import jax
import numpy as np
import pytest

from tests.system.untimed import rl_lines
from tests.system.whole_runs import last_state, run

SMALL = (
    "--config.rl.alpha=0.0",
    "--config.worlds.train=({'world':'countdown','families':('countdown3',)},)",
    "--config.worlds.held_out=()",
    "--config.eval.held_out_tasks=0",
)


@pytest.mark.slow
def test_threads_compute_what_actors_compute_and_need_no_ray(tmp_path):
    (tmp_path / "ray.py").write_text("raise ImportError('a run with threads has loaded Ray')")
    without_ray = {"PYTHONPATH": f"{tmp_path}:."}
    run(tmp_path / "threads", "auto", *SMALL, "--config.rollout.workers=threads", **without_ray)
    run(tmp_path / "actors", "auto", *SMALL, "--config.rollout.workers=ray")
    lines = rl_lines(tmp_path / "threads")
    assert len(lines) == 2 and lines == rl_lines(tmp_path / "actors")
    ours, theirs = (
        jax.tree.leaves(last_state(tmp_path / n, step=2)) for n in ("threads", "actors")
    )
    for found, expected in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(found, expected)
