"""`ale-agent` as a person starts it: at a real terminal, before a real gateway."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.assistant.scripted import call, endpoint_that, in_turn
from tests.agent.assistant.terminals import CTRL_D, LEFT, UP, person_at

pytestmark = pytest.mark.heavy
ROOT = Path(__file__).parents[3]
PROGRAM = (sys.executable, "-m", "ale_jax.agent.assistant.main")


def environment(endpoint, folder):
    """What a person has set up once."""
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "OPENAI_API_KEY": endpoint.token,
        "OPENAI_BASE_URL": endpoint.url,
        "OPENAI_MODEL": "policy",
        "XDG_STATE_HOME": str(folder.parent / "state"),
        "XDG_CONFIG_HOME": str(folder.parent / "config"),
        "TERM": "xterm",
    }


@pytest.fixture
def at_terminal(folder):
    return lambda endpoint, *words: person_at(
        (*PROGRAM, *words, f"--cwd={folder}"), environment(endpoint, folder)
    )


@pytest.fixture
def piped(folder):
    """Exit code, standard output and standard error."""

    def run(endpoint, *words, **stdin):
        line, env = (*PROGRAM, *words, f"--cwd={folder}"), environment(endpoint, folder)
        ended = subprocess.run(line, env=env, capture_output=True, text=True, **stdin)
        return ended.returncode, ended.stdout, ended.stderr

    return run


def echo(messages):
    return f"<{messages[-1][1]}>"


def test_bare_it_talks_and_lines_can_be_edited(at_terminal):
    with endpoint_that(echo) as endpoint, at_terminal(endpoint) as person:
        person.wait_for("> ")
        person.type(f"Helo{LEFT}l\n")
        person.wait_for("<Hello>")
        person.wait_for("> ")
        person.type(CTRL_D)
        assert person.exit_code() == 0


def test_requests_and_no_answers_are_in_the_history_of_the_next_session(at_terminal, folder):
    replies = (call("write", path="a", content="x"), "Written.", "Again.", "And again.")
    with endpoint_that(in_turn(*replies)) as endpoint:
        with at_terminal(endpoint) as person:
            person.wait_for("> ")
            person.type("Write.\n")
            person.wait_for("[y]es, [a]lways, [n]o: ")
            person.type("y\n")
            person.wait_for("Written.")
            person.wait_for("> ")
            person.type(f"{UP}\n")
            person.wait_for("Again.")
            person.wait_for("> ")
            person.type("/quit\n")
            assert person.exit_code() == 0
        with at_terminal(endpoint) as person:
            person.wait_for("> ")
            person.type(f"{UP}{UP}\n")  # beyond /quit
            person.wait_for("And again.")
    assert (folder / "a").read_text() == "x"
    assert [messages[-1][1] for messages in endpoint.seen[2:]] == ["Write.", "Write."]
    history = folder.parent / "state" / "ale-agent" / "history"
    assert history.read_text() == "Write.\nWrite.\n/quit\nWrite.\n"
    assert history.stat().st_mode & 0o777 == 0o600


def test_one_ctrl_c_ends_a_command_and_two_the_talk(at_terminal):
    replies = (call("bash", command="exec sleep 1000"), "Still here.", "Still here.")
    with endpoint_that(in_turn(*replies)) as endpoint:
        with at_terminal(endpoint, "--mode=auto") as person:
            person.wait_for("> ")
            person.type("Sleep.\n")
            person.wait_for("● bash")
            person.press_ctrl_c()
            person.wait_for("not finished (cancelled)")
            person.wait_for("Ctrl-C again quits")
            person.wait_for("> ")
            person.type("There?\n")
            person.wait_for("Still here.")
            person.wait_for("> ")
            person.type("half a line")
            person.press_ctrl_c()
            person.wait_for("Ctrl-C again quits")
            person.wait_for("> ")
            person.type("There?\n")
            person.wait_for("Still here.")
            person.wait_for("> ")
            person.press_ctrl_c()
            person.wait_for("> ")
            person.press_ctrl_c()
            assert person.exit_code() == 130
    assert [messages[-1][1] for messages in endpoint.seen] == ["Sleep.", "There?", "There?"]


def test_ctrl_c_at_a_question_ends_the_work_and_not_the_talk(at_terminal, folder):
    with endpoint_that(in_turn(call("write", path="a", content="x"), "Here.")) as endpoint:
        with at_terminal(endpoint) as person:
            person.wait_for("> ")
            person.type("Write.\n")
            person.wait_for("[y]es, [a]lways, [n]o: ")
            person.press_ctrl_c()
            person.wait_for("Ctrl-C again quits")
            person.wait_for("> ")
            person.type("There?\n")
            person.wait_for("Here.")
    assert not (folder / "a").exists()


def test_sigterm_ends_the_work_and_the_talk(at_terminal):
    with endpoint_that(lambda messages: None) as endpoint, at_terminal(endpoint) as person:
        person.wait_for("> ")
        person.type("Wait.\n")
        person.wait_for("I wait")
        person.send(signal.SIGTERM)
        assert person.exit_code() == 130


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 3)])
def test_with_a_text_it_works_on_it_asks_and_ends(at_terminal, folder, answer, code):
    with endpoint_that(in_turn(call("write", path="a", content="x"), "Well.")) as endpoint:
        with at_terminal(endpoint, "Write a file.") as person:
            person.wait_for("[y]es, [a]lways, [n]o: ")
            person.type(f"{answer}\n")
            person.wait_for("Well.")
            assert person.exit_code() == code
    assert (folder / "a").exists() == (code == 0)


def test_ctrl_c_ends_the_work_on_a_text(at_terminal):
    with endpoint_that(lambda messages: None) as endpoint:
        with at_terminal(endpoint, "Wait.") as person:
            person.wait_for("I wait")
            person.press_ctrl_c()
            person.wait_for("not finished (cancelled)")
            assert person.exit_code() == 130


def test_with_print_the_answer_alone_is_printed(at_terminal):
    with endpoint_that(echo) as endpoint, at_terminal(endpoint, "-p", "Hi") as person:
        assert person.wait_for(">") == "<Hi>"
        assert person.exit_code() == 0


def test_with_print_and_no_request_a_person_is_told_to_name_one(at_terminal):
    with endpoint_that(echo) as endpoint, at_terminal(endpoint, "-p") as person:
        person.wait_for("ale-agent run: name the request, or pipe it to standard input")
        assert person.exit_code() == 1


def test_what_is_piped_is_the_request_or_belongs_to_it(piped, tmp_path):
    with endpoint_that(echo) as endpoint:
        assert piped(endpoint, "-p", input="Hi") == (0, "<Hi>\n", "")
        assert piped(endpoint, "-p", "Why?", input="a log") == (0, "<Why?\n\na log>\n", "")
        assert piped(endpoint, "-", "--output=text", input="Hi") == (0, "<Hi>\n", "")
        code, shown, _ = piped(endpoint, input="Hi")
        assert code == 0 and "<Hi>" in shown
        assert piped(endpoint, "-p", "Hi", stdin=subprocess.DEVNULL) == (0, "<Hi>\n", "")
        code, _, told = piped(endpoint, "-p", stdin=subprocess.DEVNULL)
        assert code == 1 and "the request is empty" in told


def test_a_program_that_starts_it_with_a_pipe_need_not_close_it(piped):
    reads, writes = os.pipe()
    try:
        with endpoint_that(echo) as endpoint:
            found = piped(endpoint, "run", "Hi", "--output=text", stdin=reads)
    finally:
        os.close(reads), os.close(writes)
    assert found == (0, "<Hi>\n", "")
