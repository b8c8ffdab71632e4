"""The ledger: what the engine sampled is, id by id, what the trajectory holds."""

import dataclasses

import jax
import numpy as np
import pytest

from ale_jax.config.engine import Sampling
from ale_jax.data.packing import text_turn
from ale_jax.engine.engine import Engine
from ale_jax.engine.request import EngineStopped
from ale_jax.gateway.custody.ledger import Activity, AgentClock, ReplyLimits, conversation_key
from ale_jax.gateway.episode import MAX_NAME, MAX_UNSEEN
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import ChatRequest
from ale_jax.model.params import init_params
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.records import Episode, EpisodeKey, ReplyKind, Task
from ale_jax.status import Status
from ale_jax.worlds.api import Message
from tests.engine.shapes import engine_shape
from tests.gateway.custody.talking import TalkingLedger, same_for_all
from tests.model.shapes import MOE, changed

KEY = EpisodeKey("train", 3, 1, Task("trail", 7, "train"))
FIRST = [Message("system", "Work."), Message("user", "Read lemon.txt.")]
OBSERVATION = [Message("tool", "next: rose.txt")]


@pytest.fixture(scope="module")
def tokenizer():
    messages = [{"role": m.role, "content": m.content} for m in FIRST + OBSERVATION]
    return ChatTokenizer(train_bpe(messages * 10, 320))


@pytest.fixture(scope="module")
def engine(tokenizer):
    shape = changed(MOE, vocab_size=tokenizer.vocab_size)
    sizes = engine_shape(max_sequences=2, max_sequence_length=160, prefill_tokens=(16, 64))
    params = init_params(jax.random.key(0), shape)
    engine = Engine(shape, sizes, tokenizer.stop_ids, params)
    engine.publish(params, 5)
    yield engine
    engine.close()


def _episode(reward=1.0):
    return Episode(KEY, Status.FINISHED, reward, 2, 0, 1.0, 0.5)


def _given(turn):
    return text_turn(turn.prompt_ids, turn.action_ids, turn.prompt_text, turn.action_text)


@pytest.mark.heavy
def test_what_the_policy_is_not_shown_is_told_with_the_trajectory(engine, tokenizer):
    ledger = TalkingLedger(engine, tokenizer, seed=0, limits=same_for_all(4))
    ledger.open("a", KEY, Sampling())
    told = (ChatMessage("user", "Read lemon.txt."),)
    names = ("tool web_search", "image", "image", *(f"tool {n}" + "x" * 99 for n in range(99)))
    asked = ChatRequest("m", told, unseen=names)
    episode = ledger.episodes.find("a")
    (pending,) = episode.ask(asked)
    episode.answer(pending, asked)
    unseen = ledger.close("a", _episode()).calls.unseen
    assert unseen[:2] == ("tool web_search", "image"), "each once"
    assert len(unseen) == MAX_UNSEEN and max(map(len, unseen)) == MAX_NAME, "agents make them up"


def _play(ledger, name):
    ledger.open(name, KEY, Sampling())
    replies = [ledger.reply(name, FIRST), ledger.reply(name, OBSERVATION)]
    return replies, ledger.close(name, _episode())


@pytest.mark.heavy
def test_an_evaluation_may_cut_where_the_engine_does_not_record_it(engine, tokenizer):
    ledger = TalkingLedger(engine, tokenizer, seed=0, limits=same_for_all(9))
    key = EpisodeKey("eval/final", 0, 0, KEY.task)
    ledger.open("a", key, Sampling(top_k=3))
    ledger.reply("a", FIRST)
    trajectory = ledger.close("a", dataclasses.replace(_episode(), key=key))
    assert trajectory.turns[0].mask_id is None and trajectory.mask_Iw is None


@pytest.mark.heavy
def test_a_trajectory_holds_what_was_read_and_written(engine, tokenizer):
    ledger = TalkingLedger(engine, tokenizer, seed=0, limits=same_for_all(9))
    replies, trajectory = _play(ledger, "a")
    first, second = trajectory.turns
    assert [t.action_text for t in trajectory.turns] == [r.text for r in replies]
    assert [t.prompt_text for t in trajectory.turns] == ["Read lemon.txt.", "next: rose.txt"]
    messages = [{"role": m.role, "content": m.content} for m in FIRST]
    np.testing.assert_array_equal(first.prompt_ids, tokenizer.prompt_ids(messages, first=True))
    # A reply that was cut at 9 tokens is closed by the context before the observation.
    observation = tokenizer.prompt_ids([{"role": "tool", "content": "next: rose.txt"}], first=False)
    end_of_turn = tokenizer.stop_ids[0]
    closing = [] if first.action_ids[-1] == end_of_turn else [end_of_turn]
    np.testing.assert_array_equal(second.prompt_ids, [*closing, *observation])
    assert (first.reward, second.reward) == (0.0, 1.0)
    assert trajectory.start_version == 5
    assert set(second.version) == {5}


@pytest.mark.heavy
def test_a_reply_that_the_context_cut_is_marked_in_the_trajectory(engine, tokenizer):
    """Of those without a call, as the loop tells."""
    ledger, stops = TalkingLedger(engine, tokenizer, seed=0, limits=same_for_all(40)), []
    ledger.open("a", KEY, Sampling())
    while "context_full" not in stops:
        stops.append(ledger.reply("a", OBSERVATION if stops else FIRST).stop)
    every = tuple(range(len(stops)))
    trajectory = ledger.close("a", dataclasses.replace(_episode(), cut_replies=every))
    assert len(stops) > 1
    kinds = [ReplyKind.ACTION] * (len(stops) - 1) + [ReplyKind.CUT]
    assert [turn.kind for turn in trajectory.turns] == kinds
    assert tuple(turn.number for turn in trajectory.turns) == every


def test_a_task_may_have_a_context_of_its_own(engine, tokenizer):
    first = len(tokenizer.prompt_ids([dataclasses.asdict(m) for m in FIRST], first=True))
    limits = ReplyLimits(40, None, first + 3)
    ledger = TalkingLedger(engine, tokenizer, 0, lambda task: limits)
    ledger.open("a", KEY, Sampling())
    assert ledger.reply("a", FIRST).stop == "context_full"
    assert ledger.reply("a", OBSERVATION).stop == "context_full"
    (turn,) = ledger.close("a", _episode()).turns
    assert len(turn.prompt_ids) + len(turn.action_ids) == first + 3


@pytest.mark.heavy
def test_a_reply_that_ends_otherwise_than_its_turn_is_closed_by_the_context(tokenizer):
    shape = changed(MOE, vocab_size=tokenizer.vocab_size)
    sizes = engine_shape(max_sequences=2, max_sequence_length=160, prefill_tokens=(16, 64))
    params = init_params(jax.random.key(0), shape)
    engine = Engine(shape, sizes, tuple(range(shape.vocab_size)), params)
    _, trajectory = _play(TalkingLedger(engine, tokenizer, seed=0, limits=same_for_all(9)), "a")
    engine.close()
    first, second = trajectory.turns
    assert len(first.action_ids) == 1 and first.action_ids[0] != tokenizer.stop_ids[0]
    assert second.prompt_ids[0] == tokenizer.stop_ids[0]


def test_the_same_position_draws_the_same_tokens(engine, tokenizer):
    ledger = TalkingLedger(engine, tokenizer, seed=0, limits=same_for_all(9))
    _, once = _play(ledger, "b")
    _, again = _play(ledger, "c")
    for a, b in zip(once.turns, again.turns, strict=True):
        np.testing.assert_array_equal(a.action_ids, b.action_ids)
    _, other_run = _play(TalkingLedger(engine, tokenizer, seed=1, limits=same_for_all(9)), "d")
    assert once.turns[0].action_ids.tolist() != other_run.turns[0].action_ids.tolist()


def test_keys_differ_by_every_part_of_the_position():
    keys = [
        KEY,
        dataclasses.replace(KEY, member=2),
        dataclasses.replace(KEY, group=4),
        dataclasses.replace(KEY, phase="eval/final"),
    ]
    keys = {tuple(conversation_key(seed, key)) for key in keys for seed in (0, 1)}
    assert len(keys) == 8


def test_without_an_episode_nothing_is_kept_and_the_slot_is_free(engine, tokenizer):
    ledger = TalkingLedger(engine, tokenizer, seed=0, limits=same_for_all(9))
    for name in ("e", "f", "g"):  # more conversations than keys: they must be freed
        ledger.open(name, KEY, Sampling())
        ledger.reply(name, FIRST)
        assert ledger.close(name, None) is None


def test_a_conversation_goes_on_after_text_turns_with_their_very_ids(engine, tokenizer):
    ledger = TalkingLedger(engine, tokenizer, seed=0, limits=same_for_all(9))
    _, expert = _play(ledger, "h")
    (prefix_turn,) = prefix_turns = (_given(expert.turns[0]),)
    asked, reply = [], engine.reply
    engine.reply = lambda name, ids, *rest: (asked.append(ids), reply(name, ids, *rest))[1]
    ledger.open("i", KEY, Sampling(), prefix_turns)
    ledger.reply("i", [*FIRST, Message("assistant", prefix_turn.action_text), *OBSERVATION])
    ledger.reply("i", OBSERVATION)
    engine.reply = reply
    trajectory = ledger.close("i", _episode())
    first, second = expert.turns
    before = [first.prompt_ids, first.action_ids, second.prompt_ids]
    np.testing.assert_array_equal(asked[0], np.concatenate(before))
    assert len(asked[1]) < len(asked[0])  # they are read once
    assert trajectory.num_prefix_turns == 1
    for name, value in vars(prefix_turn).items():
        np.testing.assert_array_equal(getattr(trajectory.turns[0], name), value)
    np.testing.assert_array_equal(trajectory.turns[1].prompt_ids, second.prompt_ids)
    assert [t.reward for t in trajectory.turns] == [0.0, 0.0, 1.0]
    assert trajectory.start_version == 5
    assert trajectory.num_policy_tokens == sum(len(t.action_ids) for t in trajectory.turns[1:])


def test_members_of_a_group_share_the_pages_of_what_is_given(engine, tokenizer):
    ledger = TalkingLedger(engine, tokenizer, seed=0, limits=same_for_all(9))
    _, expert = _play(ledger, "j")
    prefix_turns = (_given(expert.turns[0]),)
    shared = []
    for member, name in enumerate(("k", "l")):
        before = engine.stats.shared_tokens
        ledger.open(name, dataclasses.replace(KEY, member=member), Sampling(), prefix_turns)
        given = Message("assistant", prefix_turns[0].action_text)
        ledger.reply(name, [*FIRST, given, *OBSERVATION])
        shared.append(engine.stats.shared_tokens - before)
    for name in ("k", "l"):
        ledger.close(name, None)
    read = prefix_turns[0].prompt_ids.size + prefix_turns[0].action_ids.size
    assert shared[1] >= read - engine_shape().page_tokens


def test_a_policy_that_never_wrote_leaves_no_turns(engine, tokenizer):
    ledger = TalkingLedger(engine, tokenizer, seed=0, limits=same_for_all(9))
    prefix_turns = (text_turn([1, 2], [3], "", ""),)
    ledger.open("m", KEY, Sampling(), prefix_turns)
    trajectory = ledger.close("m", _episode())
    assert (trajectory.turns, trajectory.num_prefix_turns, trajectory.start_version) == ((), 0, 5)


def test_an_episode_after_rejected_ones_and_its_every_conversation_draw_other_numbers():
    places = [(redraw, number) for redraw in range(4) for number in range(4)]
    keys = {tuple(conversation_key(0, KEY, *place)) for place in places}
    assert len(keys) == 16
    assert tuple(conversation_key(0, KEY)) in keys


def test_the_agents_turns_are_timed_and_the_policys_are_not():
    clock = AgentClock(100.0)
    assert clock.read(103.0) == Activity(False, False, 3.0, 0.0)  # it sets the task up
    clock.ask(104.0)
    assert clock.read(110.0) == Activity(True, True, 0.0, 0.0)
    clock.answer(120.0)
    assert clock.read(125.0) == Activity(True, False, 5.0, 5.0)
    clock.ask(127.0)
    clock.answer(130.0)
    assert clock.read(131.0) == Activity(True, False, 1.0, 8.0)
    clock.answer(131.0)  # nobody waits for it
    assert clock.replies == [(104.0, 120.0), (127.0, 130.0)]
    assert clock.waited == 16.0 + 3.0


def test_a_stopped_conversation_fails_its_replies_and_stays_open(engine, tokenizer):
    ledger = TalkingLedger(engine, tokenizer, seed=0, limits=same_for_all(9))
    ledger.open("a", KEY, Sampling())
    assert not ledger.activity("a").asked
    ledger.reply("a", FIRST)
    assert ledger.activity("a").asked and not ledger.activity("a").waits
    ledger.stop("a")
    with pytest.raises(EngineStopped, match="has ended"):
        ledger.reply("a", OBSERVATION)
    assert len(ledger.close("a", _episode(None)).turns) == 1


def test_a_conversation_starts_with_the_version_of_its_first_token(engine, tokenizer):
    ledger = TalkingLedger(engine, tokenizer, seed=0, limits=same_for_all(4))
    ledger.open("a", KEY, Sampling(), (text_turn([1], [2], "", "given"),))
    assert ledger.start_version("a") is None, "the prefix turns were not sampled here"
    ledger.reply("a", [*FIRST, Message("assistant", "given"), *OBSERVATION])
    assert ledger.start_version("a") == 5
    ledger.close("a", None)


def test_an_episode_after_a_rejected_one_samples_something_else(engine, tokenizer):
    ledger, said = TalkingLedger(engine, tokenizer, seed=0, limits=same_for_all(9)), []
    for name, redraw in zip("abc", (0, 1, 1)):
        ledger.open(name, KEY, Sampling(), redraw=redraw)
        said.append(ledger.reply(name, FIRST).text)
        ledger.close(name, None)
    assert said[0] != said[1] == said[2]


def test_an_episodes_agents_get_so_many_replies_and_no_more(engine, tokenizer):
    ledger = TalkingLedger(engine, tokenizer, seed=0, limits=same_for_all(4, 2))
    ledger.open("a", KEY, Sampling())
    for new in (FIRST, OBSERVATION):
        ledger.reply("a", new)
    with pytest.raises(EngineStopped, match="limit of 2 replies"):
        ledger.reply("a", OBSERVATION)
    assert len(ledger.close("a", _episode()).turns) == 2


def test_tasks_have_limits_of_their_own(engine, tokenizer):
    limits = {"short": ReplyLimits(2, 1), "long": ReplyLimits(5, 2)}
    ledger = TalkingLedger(engine, tokenizer, 0, lambda task: limits[task.family])
    for name, tokens in (("short", 2), ("long", 5)):
        key = dataclasses.replace(KEY, task=dataclasses.replace(KEY.task, family=name))
        ledger.open(name, key, Sampling())
        ledger.reply(name, FIRST)
        (turn,) = ledger.close(name, _episode()).turns
        assert len(turn.action_ids) == tokens
