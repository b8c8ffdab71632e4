"""The agent loop against a fake environment: what is said, what is counted, how it ends."""

import dataclasses
import re

import numpy as np
import pytest

from ale_jax.agent import loop
from ale_jax.agent.api import PolicyError, Reply
from ale_jax.agent.loop import ScriptedPolicy
from ale_jax.config.agent import AgentLimits
from ale_jax.records import EpisodeKey, Prefix, Task
from ale_jax.sandbox.api import SandboxError, SandboxLost, SandboxStartError
from ale_jax.status import STATUS_RULES, Status
from ale_jax.worlds.api import Message, NoVerdictError, VerifierError
from tests.agent.fake_world import FakeWorld, play
from tests.rows import each_row

KEY = EpisodeKey("train", 0, 0, Task("trail", 7, "train"))
LIMITS = AgentLimits(turns=4)


class ListeningPolicy(ScriptedPolicy):
    def __init__(self, replies):
        super().__init__(replies)
        self.heard = []

    def reply(self, new_messages):
        self.heard.append(tuple(new_messages))
        return super().reply(new_messages)


class StoppingPolicy:
    """Replies with the given stop reasons and texts, in turn."""

    def __init__(self, *stops, texts=None):
        self._replies = zip(texts or ["part"] * len(stops), stops)

    def reply(self, new_messages):
        return Reply(*next(self._replies))


def test_the_policy_hears_each_message_once():
    policy = ListeningPolicy(["a", "b", "end"])
    play(FakeWorld(), policy, KEY, LIMITS)
    assert policy.heard == [
        (Message("system", "be brief"), Message("user", "do 7")),
        (Message("tool", "saw a"),),
        (Message("tool", "saw b"),),
    ]


def test_finishing_reports_the_reward_and_the_turns():
    episode = play(FakeWorld(), ScriptedPolicy(["a", "end", "never played"]), KEY, LIMITS)
    assert (episode.status, episode.reward, episode.turns) == (Status.FINISHED, 1.0, 2)
    assert (episode.key, episode.malformed_calls, episode.detail) == (KEY, 0, "")


def test_malformed_calls_are_answered_and_counted():
    policy = ListeningPolicy(["bad", "bad", "end"])
    episode = play(FakeWorld(), policy, KEY, LIMITS)
    assert (episode.status, episode.malformed_calls, episode.turns) == (Status.FINISHED, 2, 3)
    assert policy.heard[1] == (Message("tool", "saw bad"),)


def test_the_turn_limit_grades_the_state_as_it_stands():
    env = FakeWorld(grade=0.25)
    episode = play(env, ScriptedPolicy(list("abcdef")), KEY, LIMITS)
    assert (episode.status, episode.reward, episode.turns) == (Status.TURN_LIMIT, 0.25, 4)
    assert env.actions == list("abcd")


def test_a_world_that_cuts_an_episode_short_ends_it_at_its_limit_of_turns():
    class Cutting(FakeWorld):
        def step(self, reply):
            return dataclasses.replace(super().step(reply), truncated=True)

    episode = play(Cutting(), ScriptedPolicy(["a", "b"]), KEY, LIMITS)
    assert (episode.status, episode.turns) == (Status.TURN_LIMIT, 1)
    ended = play(Cutting(), ScriptedPolicy(["end"]), KEY, LIMITS)
    assert (ended.status, ended.reward) == (Status.FINISHED, 1.0), "it was done all the same"


def test_a_finish_in_the_last_turn_is_a_finish():
    episode = play(FakeWorld(), ScriptedPolicy(["a", "b", "c", "end"]), KEY, LIMITS)
    assert (episode.status, episode.reward) == (Status.FINISHED, 1.0)


def test_a_full_context_grades_without_playing_the_unfinished_reply():
    env = FakeWorld(grade=0.25)
    episode = play(env, StoppingPolicy("stop", "context_full"), KEY, LIMITS)
    assert (episode.status, episode.reward, episode.turns) == (Status.TOKEN_LIMIT, 0.25, 1)
    assert env.actions == ["part"]
    assert episode.cut_replies == (1,), "the reply that was not played"


def test_a_reply_cut_at_its_length_is_played():
    env = FakeWorld()
    episode = play(env, StoppingPolicy("length", "context_full", texts=["part", ""]), KEY, LIMITS)
    assert env.actions == ["part"]
    assert episode.cut_replies == (), "it was an action, and nothing was written after it"


def test_which_replies_were_cut_before_they_held_a_call_is_told():
    policy = StoppingPolicy(*["stop", "length", "length", "stop"], texts=["bad", "bad", "a", "end"])
    episode = play(FakeWorld(), policy, KEY, LIMITS)
    assert (episode.status, episode.malformed_calls) == (Status.FINISHED, 2)
    assert episode.cut_replies == (1,)


def test_a_cut_reply_that_was_judged_is_an_action_at_a_limit():
    episode = play(FakeWorld(), StoppingPolicy("length", texts=["end"]), KEY, LIMITS)
    assert (episode.status, episode.reward, episode.cut_replies) == (Status.REPLY_LIMIT, 1.0, ())
    limits = [status for status, rule in STATUS_RULES.items() if rule.truncated]
    assert limits == [f"{name}_limit" for name in ("turn", "time", "token", "reply")]


@each_row("where", ["reset", "step", "grade"])
@each_row(
    "error, status",
    [
        (SandboxStartError("no image"), Status.SANDBOX_START_FAILED),
        (SandboxLost("runner gone"), Status.SANDBOX_LOST),
        (SandboxError("broken pipe"), Status.SANDBOX_LOST),
        (VerifierError("no verdict"), Status.VERIFIER_ERROR),
    ],
)
def test_trouble_has_a_status_and_no_reward(where, error, status):
    replies = ["a"] * LIMITS.turns
    episode = play(FakeWorld(where, error), ScriptedPolicy(replies), KEY, LIMITS)
    assert (episode.status, episode.reward) == (status, None)
    assert not STATUS_RULES[status].reward_valid
    assert episode.turns == (LIMITS.turns if where == "grade" else 0)
    assert episode.detail == f"{type(error).__name__}: {error}"


@each_row("where", ["step", "grade"])
def test_work_that_keeps_its_verifier_from_a_verdict_has_earned_0(where):
    env = FakeWorld(where, NoVerdictError("no verdict within 6 s"))
    limits = AgentLimits(turns=4, replay_share=1.0)
    episode = play(env, ScriptedPolicy(["a"] * 4), KEY, limits)
    assert (episode.status, episode.reward) == (Status.NO_VERDICT, 0.0)
    assert episode.turns == (4 if where == "grade" else 1)
    assert episode.verifier_seconds > 0.0
    assert episode.detail == "no verdict within 6 s"
    rule = STATUS_RULES[Status.NO_VERDICT]
    assert rule.reward_valid and not rule.retry and not rule.infra


def test_a_policy_that_does_not_answer_is_a_model_error():
    episode = play(FakeWorld(), ScriptedPolicy(["a", "bad"]), KEY, LIMITS)
    assert (episode.status, episode.reward) == (Status.MODEL_ERROR, None)
    assert (episode.turns, episode.malformed_calls) == (2, 1)


@each_row("where", ["reset", "step", "grade"])
def test_a_bug_in_a_world_ends_its_episode_and_names_its_line(where):
    env = FakeWorld(where, KeyError("typo"))
    episode = play(env, ScriptedPolicy(["a"] * LIMITS.turns), KEY, LIMITS)
    assert (episode.status, episode.reward) == (Status.ENV_ERROR, None)
    assert re.fullmatch(r"WorldError: KeyError: 'typo' \(fake_world\.py:\d+\)", episode.detail)
    rule = STATUS_RULES[Status.ENV_ERROR]
    assert rule.retry and not rule.reward_valid


class BrokenPolicy:
    def reply(self, new_messages):
        raise KeyError("typo")


def test_a_bug_of_our_own_is_not_taken_for_trouble():
    with pytest.raises(KeyError):
        play(FakeWorld(), BrokenPolicy(), KEY, LIMITS)


def test_time_in_the_environment_is_told_from_the_rest(monkeypatch):
    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(loop, "time", clock)

    class SlowWorld(FakeWorld):
        def step(self, action):
            clock.now += 2.0
            return super().step(action)

    class SlowPolicy(ScriptedPolicy):
        def reply(self, new_messages):
            clock.now += 5.0
            return super().reply(new_messages)

    episode = play(SlowWorld(), SlowPolicy(["a", "end"]), KEY, LIMITS)
    assert (episode.seconds, episode.env_seconds, episode.policy_seconds) == (14.0, 4.0, 10.0)
    assert episode.verifier_seconds == 2.0  # of the step that ended the episode

    class SlowToGrade(FakeWorld):
        def grade(self, answer=None):
            clock.now += 3.0
            return super().grade()

    cut = play(SlowToGrade(), SlowPolicy(["a"]), KEY, AgentLimits(turns=1))
    assert (cut.env_seconds, cut.verifier_seconds) == (3.0, 3.0)

    failing = SlowWorld("step", SandboxLost("gone"))
    assert play(failing, SlowPolicy(["a"]), KEY, LIMITS).env_seconds == 2.0


GIVEN = Prefix(seen=("do 7", "saw a", "saw b"), actions=("a", "b"))


def test_text_turns_are_replayed_and_the_policy_goes_on_after_them():
    env, policy = FakeWorld(), ListeningPolicy(["bad", "end"])
    episode = play(env, policy, KEY, LIMITS, GIVEN)
    assert env.actions == ["a", "b", "bad", "end"]
    told = [
        *(Message("system", "be brief"), Message("user", "do 7"), Message("assistant", "a")),
        *(Message("tool", "saw a"), Message("assistant", "b"), Message("tool", "saw b")),
    ]
    assert policy.heard == [tuple(told), (Message("tool", "saw bad"),)]
    assert (episode.status, episode.reward) == (Status.FINISHED, 1.0)
    assert (episode.turns, episode.malformed_calls) == (2, 1)  # the policy's own


def test_text_turns_leave_as_many_turns_as_were_left_then():
    env = FakeWorld()
    episode = play(env, ScriptedPolicy(list("cdef")), KEY, LIMITS, GIVEN)
    assert (episode.status, episode.turns, env.actions) == (Status.TURN_LIMIT, 2, list("abcd"))


def test_a_whole_episode_is_replayed_without_a_policy():
    whole = Prefix(seen=("do 7", "saw a"), actions=("a", "end"))
    episode = play(FakeWorld(), ScriptedPolicy([]), KEY, LIMITS, whole)
    assert (episode.status, episode.reward, episode.turns) == (Status.FINISHED, 1.0, 0)


@each_row(
    "seen, actions, reason",
    [
        (("do 8", "saw a"), ("a",), "before turn 1 the environment showed 'do 7'"),
        (("do 7", "saw c"), ("a",), "before turn 2 the environment showed 'saw a' instead of"),
        (("do 7", "saw c", "saw b"), ("a", "b"), "before turn 2"),
        (("do 7", "saw end"), ("end",), "prefix turn 1 ended the episode"),
        (("do 7", "saw a"), ("a", "b"), "prefix turn 2 did not end the episode"),
    ],
)
def test_a_replay_that_leads_elsewhere_is_rejected_before_the_policy_speaks(seen, actions, reason):
    policy = ListeningPolicy(["end"])
    episode = play(FakeWorld(), policy, KEY, LIMITS, Prefix(seen, actions))
    assert (episode.status, episode.reward) == (Status.REPLAY_DIVERGED, None)
    assert reason in episode.detail
    assert policy.heard == []


def test_an_ending_prefix_without_its_verdict_has_diverged():
    env = FakeWorld("step", NoVerdictError("late"))
    prefix = Prefix(seen=("do 7",), actions=("end",))
    episode = play(env, ScriptedPolicy([]), KEY, LIMITS, prefix)
    assert (episode.status, episode.reward) == (Status.REPLAY_DIVERGED, None)
    assert "prefix turn 1: late" in episode.detail


def test_illegal_calls_in_a_row_end_the_episode_unjudged():
    limits = AgentLimits(turns=9, malformed_limit=2)
    replies = ["bad", "a", "bad", "bad", "end"]
    episode = play(FakeWorld(), ScriptedPolicy(replies), KEY, limits)
    assert (episode.status, episode.reward) == (Status.ILLEGAL_CALLS, None)
    assert (episode.turns, episode.malformed_calls) == (4, 3)
    rule = STATUS_RULES[Status.ILLEGAL_CALLS]
    assert not rule.reward_valid and rule.retry and rule.redraw and not rule.infra


def test_a_test_judges_illegal_calls_like_all_else():
    key = EpisodeKey("eval/final", 0, 0, KEY.task)
    limits = AgentLimits(turns=4, malformed_limit=2)
    episode = play(FakeWorld(grade=0.0), ScriptedPolicy(["bad"] * 4), key, limits)
    assert (episode.status, episode.reward) == (Status.TURN_LIMIT, 0.0)


def test_without_a_limit_illegal_calls_go_on():
    episode = play(FakeWorld(), ScriptedPolicy(["bad"] * 4), KEY, LIMITS)
    assert (episode.status, episode.malformed_calls) == (Status.TURN_LIMIT, 4)


def test_a_negative_limit_of_illegal_calls_is_refused():
    with pytest.raises(ValueError, match="malformed_limit -1"):
        AgentLimits(turns=1, malformed_limit=-1)


ALL_TWICE = AgentLimits(turns=4, replay_share=1.0)


class ChancyWorld(FakeWorld):
    """What the how-manieth step of its life shows depends on `chance`, and what is graded too;
    a grade of None is no verdict."""

    def __init__(self, chance, grades=(0.5,)):
        super().__init__()
        self._chance, self._grades = iter(chance), iter(grades)

    def step(self, reply):
        step = super().step(reply)
        return dataclasses.replace(step, observation=step.observation + next(self._chance))

    def grade(self, answer=None):
        if (grade := next(self._grades)) is None:
            raise NoVerdictError("late")
        return grade


def test_an_episode_that_is_played_twice_counts_once():
    env = FakeWorld()
    episode = play(env, ScriptedPolicy(["bad", "end"]), KEY, ALL_TWICE)
    assert env.actions == ["bad", "end", "bad", "end"]
    assert (episode.status, episode.reward) == (Status.FINISHED, 1.0)
    assert (episode.turns, episode.malformed_calls) == (2, 1)

    env = FakeWorld()
    episode = play(env, ScriptedPolicy(["c", "end"]), KEY, ALL_TWICE, GIVEN)
    assert env.actions == ["a", "b", "c", "end"] * 2
    assert (episode.status, episode.turns) == (Status.FINISHED, 2)


@pytest.mark.parametrize(
    ("env", "actions", "reason"),
    [
        (ChancyWorld("1112"), ["a", "b", "end"], "before turn 2 the environment showed 'saw a2'"),
        (ChancyWorld("11111112"), list("abcd"), "before turn 5 the environment showed 'saw d2'"),
        (
            ChancyWorld("11111111", (1.0, 0.0)),
            list("abcd"),
            "the replay earned 0.0, the episode 1.0",
        ),
        (ChancyWorld("11111111", (1.0, None)), list("abcd"), "late"),
    ],
)
def test_answers_that_differ_the_second_time_reject_the_episode(env, actions, reason):
    episode = play(env, ScriptedPolicy(actions), KEY, ALL_TWICE)
    assert (episode.status, episode.reward) == (Status.NOT_REPRODUCED, None)
    assert reason in episode.detail
    rule = STATUS_RULES[Status.NOT_REPRODUCED]
    assert not rule.reward_valid and rule.retry and rule.redraw


def test_an_episode_without_a_reply_has_nothing_to_be_played_again():
    episode = play(FakeWorld(grade=0.25), StoppingPolicy("context_full"), KEY, ALL_TWICE)
    assert (episode.status, episode.reward) == (Status.TOKEN_LIMIT, 0.25)


def is_played_twice(key, share):
    env = FakeWorld()
    play(env, ScriptedPolicy(["end"]), key, AgentLimits(turns=4, replay_share=share))
    return len(env.actions) == 2


def test_the_stated_share_of_training_is_played_twice_and_no_test():
    keys = [EpisodeKey("train", g, m, KEY.task) for g in range(100) for m in range(4)]
    twice = [is_played_twice(key, 0.25) for key in keys]
    assert 0.18 < sum(twice) / len(twice) < 0.32  # three standard deviations
    assert twice == [is_played_twice(key, 0.25) for key in keys]  # a retry, too
    assert not any(is_played_twice(key, 0.0) for key in keys)
    assert not is_played_twice(EpisodeKey("eval/final", 0, 0, KEY.task), 1.0)


@each_row("given", [1, True, np.float32(1)])
def test_a_reward_is_a_float_whatever_number_the_world_gives(given):
    """The journal reads nothing else back."""
    episode = play(FakeWorld(grade=given), ScriptedPolicy(["a"] * 4), KEY, LIMITS)
    assert type(episode.reward) is float and episode.reward == 1.0


@each_row("given", [float("nan"), float("inf"), None, "much", 10**400])
def test_a_reward_that_is_no_finite_number_is_an_error_of_the_world(given):
    episode = play(FakeWorld(grade=given), ScriptedPolicy(["a"] * 4), KEY, LIMITS)
    assert (episode.status, episode.reward) == (Status.ENV_ERROR, None)
    assert f"reward {given!r:.80} must be" in episode.detail


def test_limits_without_a_turn_are_refused():
    with pytest.raises(ValueError, match="turns 0"):
        AgentLimits(turns=0)


def test_a_script_that_is_over_says_so():
    with pytest.raises(PolicyError, match="no further replies"):
        ScriptedPolicy([]).reply(())
