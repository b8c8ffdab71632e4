"""Environments that answer with tuples: what they may answer is played, all else names itself."""

import numpy as np
import pytest

from ale_jax.agent.api import StateMemory
from ale_jax.agent.loop import ScriptedPolicy, play
from ale_jax.config.agent import AgentLimits
from ale_jax.records import EpisodeKey, Prefix, Status, Task
from ale_jax.sandbox.api import SavedState
from ale_jax.worlds.api import Step, World
from ale_jax.worlds.checked import CheckedWorld, Terms, WorldError, text_of
from ale_jax.worlds.gym import GymWorld
from ale_jax.worlds.items import Item
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


class OneEnv(GymWorld):
    """Plays the environment that it is given."""

    def __init__(self, env):
        self._given = env

    def make(self, item):
        return self._given


def checked(env, world=OneEnv):
    return CheckedWorld(world(env), Item("dense", 7, "train"), None)


def played(env, turns=5, world=OneEnv):
    policy, limits = ScriptedPolicy(list("abcde")), AgentLimits(turns=turns)
    return play(checked(env, world), policy, KEY, limits)


def test_the_rewards_of_all_steps_add_up():
    episode = played(GemEnv())
    assert (episode.status, episode.reward) == (Status.FINISHED, 0.75)
    assert episode.step_rewards == (0.25, -0.5, 1.0)


def test_an_episode_that_is_cut_short_keeps_what_it_has_earned():
    assert played(GemEnv(), turns=2).reward == -0.25

    class Graded(OneEnv):
        def grade(self, answer=None):
            return 0.5

    cut = played(GemEnv(), 2, Graded)
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
        (2, 1, "done 1 must be True or False"),
        (3, None, "truncated None must be True or False"),
        (4, None, "info None must be a dict"),
        (4, {"suffix": 3}, "observation 3 must be text"),
    ],
)
def test_what_the_contract_does_not_allow_is_refused_with_its_value(place, given, said):
    episode = played(GemEnv(answer=[(place, given)]))
    assert (episode.status, episode.reward) == (Status.ENV_ERROR, None)
    assert episode.detail.startswith("WorldError: ") and said in episode.detail


@each_row("answer", ["go", None, ("go",), ("go", {}, 1)])
def test_an_opening_of_another_shape_is_refused(answer):
    with pytest.raises(WorldError, match=r"answer of reset.* must be \(observation, info\)"):
        checked(GemEnv(opening=answer)).reset()


def test_the_four_values_of_tunix_are_played_and_three_are_refused():
    class Tunix(GemEnv):
        def step(self, action):
            observation, reward, done, _, info = super().step(action)
            return (observation, reward, done, info)[: self.values]

        values = 4

    assert played(Tunix()).reward == 0.75
    three = Tunix()
    three.values = 3
    wanted = "must be (observation, reward, terminated, truncated, info)"
    assert wanted in played(three).detail


def test_prefix_and_suffix_are_read_with_the_observation():
    env = GemEnv(
        answer={4: {"prefix": "1: ", "suffix": "!"}}.items(), opening=("go", {"suffix": "?"})
    )
    world = checked(env)
    assert text_of(world.reset()) == "go?" and text_of(world.step("a").told) == "1: saw a!"


FIRST_TURN = Prefix(seen=("go", "saw a"), actions=("a",))


def test_what_a_prefix_has_earned_counts_however_its_state_was_reached():
    class Saving(OneEnv):
        def save(self):
            return SavedState(b"", "")

        def load(self, item, sandbox, saved):
            self._env = self.make(item)
            self._env.reset(item.seed)
            self._env.step("a")
            return True

    memory = StateMemory(slow_s=0.0)
    key = EpisodeKey("train", 0, 0, KEY.task, num_prefix_turns=1)
    replayed, restored = (
        play(checked(GemEnv(), Saving), ScriptedPolicy(list("bc")), key, LIMITS, FIRST_TURN, memory)
        for _ in range(2)
    )
    kept = memory.get((KEY.task, FIRST_TURN))
    assert (kept.saved, kept.step_rewards) == (SavedState(b"", ""), (0.25,))
    assert [each.content for each in kept.told] == ["go", "a", "saw a"]
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
    episode = play(checked(Chancy()), ScriptedPolicy(list("abc")), KEY, limits)
    assert episode.status is Status.NOT_REPRODUCED
    assert played(GemEnv()).status is Status.FINISHED


def solved_from(threshold):
    class Paid(OneEnv):
        solved_at = threshold

    return Paid


@each_row("solved_at, is_solved", [(1.0, False), (0.75, True), (0.8, False)])
def test_the_world_says_from_which_reward_a_task_is_solved(solved_at, is_solved):
    episode = played(GemEnv(), world=solved_from(solved_at))
    assert (episode.reward, episode.is_solved) == (0.75, is_solved)


@each_row("solved_at", [0.0, -1.0, float("nan"), None])
def test_a_threshold_that_is_not_above_0_is_refused(solved_at):
    episode = played(GemEnv(), world=solved_from(solved_at))
    assert episode.status is Status.ENV_ERROR and "must be" in episode.detail


def test_a_rounding_error_does_not_make_a_failure():
    parts = [np.float32(each) for each in (0.9, 0.1)]
    assert played(GemEnv(rewards=parts)).reward < 1.0
    assert played(GemEnv(rewards=parts)).is_solved
    assert not played(GemEnv(rewards=(0.9999,))).is_solved


class Graded(World):
    """Pays by name in two steps, and for the state that is left."""

    def reset(self, item, sandbox):
        return "go"

    def step(self, reply):
        rewards = {"a": {"right": 1, "short": 0.5}, "b": {"short": np.float32(0.25)}, "c": 2.0}
        return Step("on", rewards[reply], done=reply == "c")

    def grade(self, answer=None):
        return {"tidy": 1.0}


def graded(replies, weights, **limits):
    terms = Terms("graded", weights=weights)
    world = CheckedWorld(Graded(), Item("graded", 7, "train"), None, terms)
    return play(world, ScriptedPolicy(list(replies)), KEY, AgentLimits(**limits))


def test_rewards_by_name_are_weighed_and_kept_by_name():
    episode = graded("abc", {"short": 0.5, "unheard": 3.0}, turns=5)
    assert episode.step_rewards == (1.25, 0.125, 2.0)
    assert episode.rewards == (("right", 1.0), ("short", 0.75)) and episode.reward == 3.375
    cut = graded("b", {"tidy": -2.0}, turns=1)
    assert (cut.reward, cut.rewards) == (-1.75, (("short", 0.25), ("tidy", 1.0)))


def test_what_a_prefix_has_earned_by_name_is_restored_with_its_state():
    class Saved(Graded):
        def save(self):
            return SavedState(b"", "")

        def load(self, item, sandbox, saved):
            return True

    memory, prefix = StateMemory(slow_s=0.0), Prefix(seen=("go", "on"), actions=("a",))
    key = EpisodeKey("train", 0, 0, KEY.task, num_prefix_turns=1)
    for _ in ("replayed", "restored"):
        world = CheckedWorld(Saved(), Item("graded", 7, "train"), None)
        episode = play(world, ScriptedPolicy(["b", "c"]), key, LIMITS, prefix, memory)
        assert episode.rewards == (("right", 1.0), ("short", 0.75))


def test_an_episode_that_is_played_again_earns_by_name_only_once():
    episode = graded("abc", {}, turns=5, replay_share=1.0)
    assert episode.status is Status.FINISHED and dict(episode.rewards)["short"] == 0.75


@each_row(
    "reward, said",
    [
        ({"": 1.0}, "the name of a reward, '' must be text"),
        ({3: 1.0}, "the name of a reward, 3 must be text"),
        ({"a": "x"}, "reward a 'x' must be a finite number"),
        ({"a": 3e38, "b": 3e38}, "reward 6e+38 must be a finite number"),
    ],
)
def test_a_reward_by_name_is_refused_with_its_name(reward, said):
    episode = played(GemEnv(answer={1: reward}))
    assert episode.status is Status.ENV_ERROR and said in episode.detail
