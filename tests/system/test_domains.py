"""Several domains in one asynchronous run: each step has their ratios exactly."""

import signal

import pytest

from tests.system.untimed import rl_lines
from tests.system.whole_runs import begin, interrupt, run

pytestmark = pytest.mark.slow

DOMAINS = [
    "--config.worlds.train=({'world':'shell','families':('trail',),'ratio':5},"
    "{'world':'shell','families':('log',),'ratio':2},"
    "{'world':'countdown','families':('countdown3',),'turns':1})",
    "--config.worlds.held_out=()",
    "--config.eval.tasks=3",
    "--config.warm_start.probe_tasks=3",
    "--config.eval.held_out_tasks=0",
    "--config.rl.alpha=1.5",
    "--config.rl.steps=6",
    "--config.rl.groups_per_step=8",
]


def test_each_step_has_the_ratios_of_three_domains_also_over_a_kill(tmp_path):
    process = begin(tmp_path, "auto", *DOMAINS)
    interrupt(process, tmp_path, signal.SIGKILL, step=3)
    process.communicate(timeout=30)
    run(tmp_path, "auto", *DOMAINS)
    steps = rl_lines(tmp_path)
    names = ("trained_groups/trail", "trained_groups/log", "trained_groups/countdown3")
    assert [[step[name] for name in names] for step in steps] == [[5, 2, 1]] * 6
    assert any(step["staleness_max"] > 0 for step in steps), "it was asynchronous"
