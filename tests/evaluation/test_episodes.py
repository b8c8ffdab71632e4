"""episodes.jsonl keeps what was played, and says where it is damaged."""

import dataclasses
import json
import re

import pytest

from ale_jax.evaluation.episodes import EPISODES_FILE, EpisodeWriter, read_result
from ale_jax.files import MAX_LINE_BYTES
from tests.evaluation.results import SOLVED, episode, result, write


def test_episodes_come_back_equal_and_without_their_messages_unless_asked(tmp_path):
    its = result("evals/a", {"mail-1": "1?", 7: "0T"})
    write(tmp_path / "evals", its)
    back = read_result(tmp_path / "evals" / EPISODES_FILE, "evals/a", messages=True)
    kept = [dataclasses.replace(each, messages=list(each.messages)) for each in its.episodes]
    assert (back.name, back.torn, list(back.episodes)) == ("evals/a", 0, kept)
    brief = read_result(tmp_path / "evals")
    assert brief.name == str(tmp_path / "evals")
    assert [each.messages for each in brief.episodes] == [()] * 4
    assert [each.reward for each in brief.episodes] == [1.0, None, 0.0, 0.0]


def test_a_torn_last_line_is_counted_and_removed_before_the_next(tmp_path):
    folder = write(tmp_path, result("a", ["1", "0"]))
    with (folder / EPISODES_FILE).open("a") as file:
        file.write('{"world": "su')
    torn = read_result(folder)
    assert (len(torn.episodes), torn.torn) == (2, 1)
    write(folder, result("a", {2: "1"}))
    assert [each.item for each in read_result(folder).episodes] == [0, 1, 2]


def test_an_episode_that_is_too_long_is_written_without_its_messages(tmp_path):
    long = {"role": "user", "content": "x" * MAX_LINE_BYTES}
    with EpisodeWriter(tmp_path) as writer:
        writer.write(dataclasses.replace(SOLVED, messages=(long,)))
    (back,) = read_result(tmp_path, messages=True).episodes
    assert (back.messages, back.solved) == ([], True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"solved": "false"}, "solved is 'false'"),
        ({"reward": True}, "reward is True"),
        ({"reward": -1e308}, "reward is -1e+308"),
        ({"seconds": 1e308}, "seconds is 1e+308"),
        ({"sample": -1}, "sample is -1"),
        ({"item": 1.5}, "item is 1.5"),
        ({"rewards": {"answer": "1"}}, "rewards is {'answer': '1'}"),
        ({"metadata": {"tags": ["a"]}}, "metadata is {'tags': ['a']}"),
        ({"messages": [{"content": "x"}]}, "messages is [{'content': 'x'}]"),
        ({"seconds": -0.5}, "seconds is -0.5"),
        ({"status": "lost"}, "'lost' is not a valid Status"),
        ({"reward": None}, "solved is True, but there is no reward"),
        ({"score": 1}, "unexpected keyword argument 'score'"),
    ],
)
def test_a_line_that_makes_no_sense_is_named(change, told, tmp_path):
    lines = [dataclasses.asdict(episode(item, 0, "1")) for item in range(3)]
    lines[1] |= change
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ValueError, match=f"{re.escape(str(file))}, line 2: damaged .*") as error:
        read_result(file)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{}", "KeyError('status')"),
        ("[]", "expected an object, found list"),
        ('{"reward": NaN}', "NaN is not JSON"),
        ("{", "damaged"),
    ],
)
def test_a_damaged_line_is_named(line, told, tmp_path):
    folder = write(tmp_path, result("a", ["1"]))
    with (folder / EPISODES_FILE).open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ValueError, match=r"episodes\.jsonl, line 2: ") as error:
        read_result(folder)
    assert told in str(error.value)


def test_the_same_sample_twice_is_damage(tmp_path):
    folder = write(tmp_path, result("a", ["1", "0"]))
    write(folder, result("a", {1: "0"}))
    with pytest.raises(ValueError, match=r"line 3: .*sample 0 of \('sums', 'easy', 1\) is there"):
        read_result(folder)
    # An item is what it is called: the number 1 and the word "1" are two.
    write(other := tmp_path / "other", result("a", {1: "0", "1": "1"}))
    assert len(read_result(other).episodes) == 2


def test_what_is_no_result_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"there is no .*gone: name the folder of an evaluation"):
        read_result(tmp_path / "gone")
    with pytest.raises(ValueError, match=r"there is no .*episodes\.jsonl"):
        read_result(tmp_path)
    (tmp_path / EPISODES_FILE).touch()
    with pytest.raises(ValueError, match=r"episodes\.jsonl: no finished episode"):
        read_result(tmp_path)
