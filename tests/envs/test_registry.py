"""The oracles of our worlds are paid, those that err as well."""

import pytest

from ale_jax.agent.tools import bash, finish
from ale_jax.envs.shell.families import FAMILIES, generate
from ale_jax.envs.shell.noisy_oracle import noisy
from ale_jax.records import Task
from tests.played_worlds import OurWorlds, demonstration, family_of, play_oracle


def test_countdown_needs_no_sandbox_and_is_played_without_one():
    task, worlds = Task("countdown3", 5, "train"), OurWorlds()
    assert worlds.sandbox(task) is None and worlds.sandbox(Task("trail", 5, "train"))
    transcript = demonstration(None, task)
    assert [m.role for m in transcript.messages] == ["system", "user", "assistant"]
    assert transcript.messages[0].content == family_of("countdown3").world.system_prompt
    assert transcript.failed == (False,)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_clumsy_oracle_errs_once_repeats_once_and_earns_1(sandbox, family):
    for seed in range(5):
        calls = generate(family, seed).oracle
        episode, transcript = play_oracle(sandbox, Task(family, seed, "train"), noisy=True)
        assert (episode.reward, episode.turns) == (1.0, len(calls) + 2)
        _, straight = play_oracle(sandbox, Task(family, seed, "train"))
        assert sum(transcript.failed) - sum(straight.failed) in (1, 2)  # what fails may be repeated
        assert transcript == play_oracle(sandbox, Task(family, seed, "train"), noisy=True)[1]


def test_only_what_reads_is_done_wrong_or_twice():
    look, move, done = bash("cat a.txt"), bash("mv a.txt b/"), finish()
    assert noisy([look, move, done], seed=1) == (bash("cat a.tx"), look, look, move, done)
    others = {repr(noisy([look, bash("ls b"), done], seed)) for seed in range(50)}
    assert len(others) == 4  # two places for each of the two
