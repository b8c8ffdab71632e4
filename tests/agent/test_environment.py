"""GEM's contract: what an environment may answer is played, and anything else names itself."""

import numpy as np
import pytest

from ale_jax.agent.api import ReachedState, StateMemory
from ale_jax.agent.environment import CheckedEnvironment, EnvError
from ale_jax.agent.loop import ScriptedPolicy, play
from ale_jax.config.agent import AgentLimits
from ale_jax.records import EpisodeKey, Prefix, Status, Task
from ale_jax.sandbox.api import SavedState
from tests.rows import each_row

KEY = EpisodeKey("train", 0, 0, Task("dense", 7, "train"))
LIMITS = AgentLimits(turns=5)


class GemEnv:
    """Has `reset` and `step` only, and rewards each of its three steps. answer: what `step`
    returns in places of its own, by index."""

    def __init__(self, rewards=(0.25, -0.5, 1.0), answer=(), opening=("go", {})):
        self._rewards, self._answer, self._opening = rewards, dict(answer), opening
        self._steps = 0

    def reset(self, seed):
        self._steps = 0
        return self._opening

    def step(self, action):
        self._steps += 1
        ends = self._steps == len(self._rewards)
        answer = [f"saw {action}", self._rewards[self._steps - 1], ends, False, {}]
        for place, value in self._answer.items():
            answer[place] = value
        return tuple(answer)


def played(env, turns=5, prefix=None, memory=None):
    policy, limits = ScriptedPolicy(list("abcde")), AgentLimits(turns=turns)
    return play(env, policy, KEY, limits, prefix, memory)


def test_the_rewards_of_all_steps_add_up():
    episode = played(GemEnv())
    assert (episode.status, episode.reward) == (Status.FINISHED, 0.75)
    assert episode.step_rewards == (0.25, -0.5, 1.0)


def test_an_episode_that_is_cut_short_keeps_what_it_has_earned():
    assert played(GemEnv(), turns=2).reward == -0.25

    class Graded(GemEnv):
        def grade(self):
            return 0.5

    cut = played(Graded(), turns=2)
    assert (cut.status, cut.reward, cut.step_rewards) == (Status.TURN_LIMIT, 0.25, (0.25, -0.5))


@each_row(
    "answer, status",
    [
        ({3: True}, Status.TURN_LIMIT),
        ({3: np.True_, 0: None}, Status.TURN_LIMIT),  # what is seen at the end, nobody reads
        ({2: True, 3: True}, Status.FINISHED),
        ({2: np.True_}, Status.FINISHED),
    ],
)
def test_an_environment_may_end_an_episode_in_either_way(answer, status):
    episode = played(GemEnv(answer=answer.items()))
    assert (episode.status, episode.turns, episode.reward) == (status, 1, 0.25)


@each_row("reward", [1, True, np.float32(1), np.array(1.0)])
def test_a_reward_may_be_any_number(reward):
    episode = played(GemEnv(rewards=(reward,)))
    assert type(episode.reward) is float and episode.reward == 1.0
    assert type(episode.step_rewards[0]) is float


@each_row(
    "place, given, said",
    [
        (0, None, "observation None must be text"),
        (0, ["saw"], "observation ['saw'] must be text"),
        (1, float("nan"), "reward nan must be a finite number"),
        (1, 1e39, "reward 1e+39 must be a finite number"),  # infinite as float32
        (1, None, "reward None must be"),
        (1, "1", "reward '1' must be"),
        (2, 1, "terminated 1 must be True or False"),
        (3, None, "truncated None must be True or False"),
        (4, None, "info None must be a dict"),
        (4, {"suffix": 3}, "observation 3 must be text"),
    ],
)
def test_what_the_contract_does_not_allow_is_refused_with_family_and_value(place, given, said):
    episode = played(GemEnv(answer=[(place, given)]))
    assert (episode.status, episode.reward) == (Status.ENV_ERROR, None)
    assert episode.detail.startswith("EnvError: family 'dense' (GemEnv): ")
    assert said in episode.detail


@each_row("answer", ["go", None, ("go",), ("go", {}, 1)])
def test_an_opening_of_another_shape_is_refused(answer):
    with pytest.raises(EnvError, match=r"answer of reset.* must be \(observation, info\)"):
        CheckedEnvironment(GemEnv(opening=answer), "dense").reset(7)


def test_a_step_of_older_gym_is_refused_with_what_is_missing():
    class Gym(GemEnv):
        def step(self, action):
            return super().step(action)[:4]

    assert "must be (observation, reward, terminated, truncated, info)" in played(Gym()).detail


def test_prefix_and_suffix_are_read_with_the_observation():
    env = GemEnv(
        answer={4: {"prefix": "1: ", "suffix": "!"}}.items(), opening=("go", {"suffix": "?"})
    )
    checked = CheckedEnvironment(env, "dense")
    assert checked.reset(7) == "go?" and checked.step("a").seen == "1: saw a!"


FIRST_TURN = Prefix(seen=("go", "saw a"), actions=("a",))


def test_what_a_prefix_has_earned_counts_however_its_state_was_reached():
    class Saving(GemEnv):
        def save(self):
            return SavedState(b"", "")

        def load(self, seed, saved):
            self._steps = 1
            return True

    memory = StateMemory(slow_s=0.0)
    key = EpisodeKey("train", 0, 0, KEY.task, num_prefix_turns=1)
    replayed, restored = (
        play(Saving(), ScriptedPolicy(list("bc")), key, LIMITS, FIRST_TURN, memory)
        for _ in range(2)
    )
    assert memory.get((KEY.task, FIRST_TURN)) == ReachedState(SavedState(b"", ""), (0.25,))
    for episode in (replayed, restored):
        assert (episode.reward, episode.step_rewards) == (0.75, (0.25, -0.5, 1.0))


def test_a_reward_that_differs_in_the_middle_is_not_reproduced():
    class Chancy(GemEnv):
        reset_before = 0

        def reset(self, seed):
            self._rewards = (0.25 + self.reset_before, -0.5, 1.0)
            self.reset_before += 1
            return super().reset(seed)

    limits = AgentLimits(turns=5, replay_share=1.0)
    episode = play(Chancy(), ScriptedPolicy(list("abc")), KEY, limits)
    assert episode.status is Status.NOT_REPRODUCED
    assert played(GemEnv()).status is Status.FINISHED


@each_row("solved_at, is_solved", [(None, False), (0.75, True), (0.8, False)])
def test_the_world_says_from_which_reward_a_task_is_solved(solved_at, is_solved):
    env = GemEnv()
    if solved_at is not None:
        env.solved_at = solved_at
    episode = played(env)
    assert (episode.reward, episode.is_solved) == (0.75, is_solved)


@each_row("solved_at", [0.0, -1.0, float("nan"), None])
def test_a_threshold_that_is_not_above_0_is_refused(solved_at):
    env = GemEnv()
    env.solved_at = solved_at
    episode = played(env)
    assert episode.status is Status.ENV_ERROR and "must be" in episode.detail


def test_a_rounding_error_does_not_make_a_failure():
    parts = [np.float32(each) for each in (0.9, 0.1)]
    assert played(GemEnv(rewards=parts)).reward < 1.0
    assert played(GemEnv(rewards=parts)).is_solved
    assert not played(GemEnv(rewards=(0.9999,))).is_solved
