"""Questions to a library's process and its answers, with programs that stand in for it."""

import pytest

from ale_jax.worlds.bridges.process import Player, PlayerError

pytestmark = pytest.mark.heavy


@pytest.fixture
def player(tmp_path):
    """Starts a process with a script in place of the interpreter."""
    started = []

    def start(script: str) -> Player:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        started.append(Player("gem", str(path)))
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_questions_and_answers_are_lines_that_may_come_in_pieces(player):
    asked = player("""while read line; do printf '{"answer"'; sleep 0.2; echo ": $line}"; done""")
    assert asked.ask("reset", 7) == {"ask": "reset", "with": [7]}
    assert asked.ask("step", "left") == {"ask": "step", "with": ["left"]}


@pytest.mark.parametrize(
    ("answers", "told", "is_alive"),
    [
        ('echo \'{"error": "no such seed"}\'; read line', "^no such seed$", True),
        ("echo '{\"other\": 1}'; read line", "^{'other': 1}$", True),
        ("exit 1", "gem ended unexpectedly", False),
        ("head -c 2000000 /dev/zero; exec sleep 3600", "gem ended unexpectedly", False),
    ],
)
def test_an_answer_that_is_none_is_an_error(player, answers, told, is_alive):
    asked = player(f"read line; {answers}")
    with pytest.raises(PlayerError, match=told):
        asked.ask("reset", 7)
    assert asked.is_alive == is_alive


def test_a_process_that_does_not_answer_in_time_is_ended(player, monkeypatch):
    monkeypatch.setattr("ale_jax.worlds.bridges.process.START_S", 0.1)
    asked = player("exec sleep 3600")
    with pytest.raises(PlayerError, match=r"did not answer within 0\.1 s"):
        asked.ask("names")
    assert not asked.is_alive


def test_the_users_secrets_are_not_told(player, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    asked = player("""read line; echo "{\\"answer\\": \\"$WANDB_API_KEY,$PYTHONHASHSEED\\"}" """)
    assert asked.ask("names") == ",0"
