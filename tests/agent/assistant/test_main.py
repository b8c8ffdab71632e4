"""The command line, with a real gateway."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ale_jax.agent.assistant import extra
from ale_jax.agent.assistant.main import main
from tests.agent.assistant.scripted import call, endpoint_that, in_turn
from tests.rows import each_row

ROOT = Path(__file__).parents[3]


@pytest.fixture
def ale_agent(folder, monkeypatch, capfd):
    """Runs a command; returns exit code, standard output and standard error."""
    config = folder.parent / "config.toml"
    config.touch()

    def run(command, *words, endpoint=None, settings=""):
        config.write_text(settings)
        options = ["--state", str(folder.parent / "state")]
        if endpoint is not None:
            monkeypatch.setenv("OPENAI_API_KEY", endpoint.token)
            options += ["--cwd", str(folder), "--config", str(config)]
            options += ["--base-url", endpoint.url, "--model", "policy"]
        return main([command, *options, *words]), *capfd.readouterr()

    return run


def test_text_is_the_answer_alone(ale_agent):
    with endpoint_that(in_turn("Hello.", call("finish", answer="42"))) as endpoint:
        assert ale_agent("run", "Greet.", "--output=text", endpoint=endpoint) == (0, "Hello.\n", "")
        assert ale_agent("run", "6 * 7?", "--output=text", endpoint=endpoint) == (0, "42\n", "")


@pytest.mark.heavy
def test_a_stream_tells_of_all_that_programs_want_to_know(ale_agent, folder):
    say = in_turn(
        f"<think>so</think>I look.{call('bash', command='echo hi')}",
        call("write", path="a", content=""),
        call("finish", answer="hi"),
    )
    with endpoint_that(say) as endpoint:
        code, out, _ = ale_agent(
            *("run", "Look.", "--output=stream-json", "--mode=allow-list"),
            endpoint=endpoint,
            settings='permissions.allow = ["bash"]',
        )
    init, first, result, _, refused, _, _, last = map(json.loads, out.splitlines())
    assert code == 0 and (init["type"], init["subtype"]) == ("system", "init")
    assert "bash" in init["tools"] and init["permissionMode"] == "allow-list"
    thinking, text, use = first["message"]["content"]
    assert (thinking["thinking"], text["text"]) == ("so", "I look.")
    assert (use["name"], use["input"]) == ("bash", {"command": "echo hi"})
    assert first["message"]["stop_reason"] == "tool_use" and first["parent_tool_use_id"] is None
    assert result["message"]["content"] == [
        {"type": "tool_result", "tool_use_id": use["id"], "content": "hi", "is_error": False}
    ]
    assert refused["message"]["content"][0]["is_error"] and not (folder / "a").exists()
    assert (last["subtype"], last["is_error"], last["result"]) == ("success", False, "hi")
    assert last["num_turns"] == 3 and last["usage"]["output_tokens"] > 0
    assert [each["tool_name"] for each in last["permission_denials"]] == ["write"]
    assert len({each["session_id"] for each in map(json.loads, out.splitlines())}) == 1


def test_a_session_is_resumed_listed_and_exported(ale_agent, folder):
    with endpoint_that(in_turn("One.", "Two.")) as endpoint:
        ale_agent("run", "1", "--output=text", endpoint=endpoint)
        ale_agent("run", "2", "--output=text", "--resume=newest", endpoint=endpoint)
    assert endpoint.seen[1][1:] == [("user", "1"), ("assistant", "One."), ("user", "2")]
    _, listed, _ = ale_agent("sessions")
    (line,) = listed.splitlines()[1:]
    assert str(folder) in line
    out = folder.parent / "t.json"
    assert ale_agent("export", line.split()[0], f"--out={out}")[0] == 0
    messages = [step["message"] for step in json.loads(out.read_text())["steps"]]
    assert messages[1:] == ["1", "One.", "2", "Two."]


@pytest.mark.heavy
def test_a_session_goes_on_where_it_began(ale_agent, folder, monkeypatch):
    with endpoint_that(in_turn("One.", call("bash", command="pwd"), "Two.")) as endpoint:
        ale_agent("run", "1", "--output=text", endpoint=endpoint)
        code, _, told = ale_agent("run", "2", "--resume=newest", "--cwd=/", endpoint=endpoint)
        assert code == 1 and f"works in {folder}" in told
        words = ("--resume=newest", f"--state={folder.parent / 'state'}", "--mode=auto")
        options = ("--base-url", endpoint.url, "--model=policy", "--config=/dev/null")
        assert main(["run", "2", *words, *options, "--output=text"]) == 0
    assert endpoint.seen[-1][-1] == ("tool", str(folder))


@pytest.mark.heavy
def test_a_session_whose_process_was_killed_goes_on_after_its_last_event(ale_agent, folder):
    replies = {"Go.": call("bash", command="echo hi"), "Go on.": "On."}
    # After the call's result it does not answer, whether or not it is still asked.
    with endpoint_that(lambda messages: replies.get(messages[-1][1])) as endpoint:
        line = [sys.executable, "-m", "ale_jax.agent.assistant.main", "run", "Go."]
        line += ["--output=stream-json", "--mode=auto", "--config=/dev/null", f"--cwd={folder}"]
        line += ["--base-url", endpoint.url, "--model=policy", f"--state={folder.parent / 'state'}"]
        environment = os.environ | {"OPENAI_API_KEY": endpoint.token, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(line, stdout=subprocess.PIPE, env=environment) as running:
            next(line for line in running.stdout if b"tool_result" in line)
            running.kill()
        words = ("Go on.", "--resume=newest", "--output=text")
        assert ale_agent("run", *words, endpoint=endpoint) == (0, "On.\n", "")
    roles = [role for role, _ in endpoint.seen[-1]]
    assert roles == ["system", "user", "assistant", "tool", "user"]


@each_row(
    "calls, mode, code",
    [
        ([("write", "a")], "ask", 3),
        ([("write", "a"), ("write", "b")], "allow-list", 3),
        ([("write", "a"), ("read", "config.toml")], "ask", 0),
        ([("write", "a")], "auto", 0),
        ([("task", "Write.")], "ask", 3),
        ([], "ask", 0),
    ],
)
def test_a_run_that_was_permitted_nothing_has_an_exit_code_of_its_own(
    ale_agent, folder, calls, mode, code
):
    (folder / "a").unlink(missing_ok=True)
    arguments = {"write": ("path", {"content": ""}), "read": ("path", {}), "task": ("task", {})}
    replies = []
    for tool, value in calls:
        name, more = arguments[tool]
        replies.append(call(tool, **{name: value}, **more))
        if tool == "task":
            replies += [call("write", path="a", content=""), "I could not."]
    with endpoint_that(in_turn(*replies, "That is it.")) as endpoint:
        words = ("run", "Go.", "--output=text", f"--mode={mode}")
        found, out, told = ale_agent(*words, endpoint=endpoint)
    assert (found, out) == (code, "That is it.\n")
    assert ("not finished (refused): no call of a tool was permitted" in told) == (code == 3)
    assert (folder / "a").exists() == (mode == "auto")


def test_work_that_does_not_finish_is_an_exit_code_and_a_reason(ale_agent):
    with endpoint_that(lambda messages: call("read", path="a")) as endpoint:
        code, _, told = ale_agent("run", "Go.", "--max-turns=2", "--output=text", endpoint=endpoint)
    assert code == 1 and "not finished (max_turns)" in told


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("limits.turns = 0", "limits.turns 0 must be at least 1"),
        ("limits.turn = 1", "limits.turn is no setting; there are: turns"),
        ('limits.turns = "1"', "limits.turns '1' must be of type int"),
        ('permissions.mode = "yes"', "must be one of ask, allow-list, auto"),
        ('permissions.allow = ["a b"]', "must be TOOL"),
        ('[[mcp_servers]]\nname = "a_b"\ncommand = ["x"]', "letters, digits and dashes"),
        ('[[mcp_servers]]\nname = "a"', "command"),
        ("features = 1", "must be a table"),
        ("[", "config.toml"),
    ],
)
def test_a_config_that_is_not_valid_is_refused_by_name(ale_agent, settings, reason):
    with endpoint_that(in_turn()) as endpoint:
        code, _, told = ale_agent("run", "Go.", endpoint=endpoint, settings=settings)
    assert code == 1 and reason in told and told.count("\n") == 1


def test_settings_may_come_in_the_environment_in_place_of_a_file(ale_agent, monkeypatch, folder):
    monkeypatch.setenv("ALE_AGENT_CONFIG", 'how_to_work = "Be brief."\nfeatures.bash = false')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder.parent))
    with endpoint_that(in_turn("1", "2")) as endpoint:
        monkeypatch.setenv("OPENAI_API_KEY", endpoint.token)
        words = ("--base-url", endpoint.url, "--model=m", f"--state={folder.parent / 'state'}")
        assert main(["run", "Go.", *words, f"--cwd={folder}", "--output=text"]) == 0
        ale_agent("run", "Go.", endpoint=endpoint, settings='how_to_work = "By a file."')
    assert [messages[0] for messages in endpoint.seen] == [
        ("system", "Be brief."),
        ("system", "By a file."),
    ]


def test_settings_of_the_environment_that_are_not_valid_are_named(ale_agent, monkeypatch, capfd):
    monkeypatch.setenv("ALE_AGENT_CONFIG", "limits.turns = 0")
    assert main(["run", "Go.", "--output=text"]) == 1
    assert "ALE_AGENT_CONFIG: limits.turns 0 must be" in capfd.readouterr().err


def test_what_is_missing_is_named_with_its_option(ale_agent, monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    assert "--base-url, OPENAI_BASE_URL or base_url" in ale_agent("run", "Go.")[2]
    endpoint = ("--base-url=http://localhost", "--model=m")
    assert "is no directory" in ale_agent("run", "Go.", "--cwd=absent", *endpoint)[2]
    assert "no session" in ale_agent("export", "absent", "--out=x")[2]


IMPORT_ALL = """
import importlib, pkgutil, sys
import ale_jax.agent.assistant as package
for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(found.name)
print({"acp", "mcp"} & sys.modules.keys())
"""


@pytest.mark.heavy
def test_the_base_install_needs_no_library_of_the_extra():
    line = [sys.executable, "-c", IMPORT_ALL]
    assert subprocess.run(line, cwd=ROOT, capture_output=True, text=True).stdout == "set()\n"


def test_a_library_that_is_not_installed_is_named_with_its_remedy():
    remedy = re.escape(f"{shlex.quote(sys.executable)} -m pip install '.[agent]'")
    with pytest.raises(ValueError, match=f"in a clone of ALE-JAX, run {remedy}$"):
        extra.load("a_library_that_there_is_not.of_it")
