"""The oracles' transcripts: what a policy starts from can be learned by copying."""

import re

import pytest

from ale_jax.agent.tools import SYSTEM_PROMPT, parse_tool_call
from ale_jax.envs.shell.families import FAMILIES
from ale_jax.envs.shell.words import WORDS
from ale_jax.records import Task
from tests.played_worlds import demonstration


def collect(sandbox, seeds):
    tasks = [Task(family, seed, "train") for seed in seeds for family in FAMILIES]
    return [demonstration(sandbox, task) for task in tasks]


@pytest.fixture(scope="module")
def transcripts(sandbox):
    return collect(sandbox, range(5))


def test_the_roles_alternate_and_the_last_call_finishes(transcripts):
    for transcript in transcripts:
        roles = [m.role for m in transcript.messages]
        middle = len(roles) - 3
        assert roles == ["system", "user", *["assistant", "tool"] * (middle // 2), "assistant"]
        assert transcript.messages[0].content == SYSTEM_PROMPT
        assert parse_tool_call(transcript.messages[-1].content).name == "finish"


def test_whatever_the_oracle_writes_was_read_before(transcripts):
    for transcript in transcripts:
        read = ""
        for message in transcript.messages:
            if message.role == "assistant":
                drawn = [w for w in re.findall(r"[a-z]+|\d+", message.content) if _is_drawn(w)]
                assert [word for word in drawn if word not in read] == [], transcript.task
            read += f"\n{message.content}"


def _is_drawn(word: str) -> bool:
    return word.isdigit() or word in WORDS


def test_observations_are_short(transcripts):
    seen = [m.content for t in transcripts for m in t.messages if m.role == "tool"]
    assert max(len(text) for text in seen) <= 100
    assert max(text.count("\n") for text in seen) <= 5


def test_the_same_task_is_the_same_transcript(sandbox, transcripts):
    assert collect(sandbox, [4]) == transcripts[-len(FAMILIES) :]
