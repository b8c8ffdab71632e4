"""The recipes of docs/agents.md, and what the policy writes to the clients that they start."""

import dataclasses
import json

import pytest

from ale_jax.gateway.messages import ChatMessage
from ale_jax.records import Task
from benchmarks.gateway import clients, installs, recipes
from benchmarks.gateway.catalogue import CLIENTS, Call
from benchmarks.gateway.installs import NotInstalled
from benchmarks.gateway.plan import QUICK
from benchmarks.gateway.scripted import Stage, small_tokenizer
from benchmarks.gateway.scripts import DELEGATED, DONE, Script

ORACLE = ["cat cactus.txt", "grep -c ladder cattle.log", "echo 43 > turkey.txt"]
TASK = Task("count", 3, "train")


@pytest.fixture(scope="module")
def stage():
    return Stage(small_tokenizer())


def named(name):
    return next(each for each in CLIENTS if each.name == name)


def told(stage, messages, tool):
    tools = [{"type": "function", "function": {"name": tool}}] if tool else []
    return stage.render([ChatMessage(*each) for each in messages], tools, None)


def written(stage, script, messages, tool):
    """What the policy writes in a conversation to its end, each answered by "seen"."""
    messages = list(messages)
    while (text := stage.tokenizer.decode(script(told(stage, messages, tool)))) != DONE:
        yield text
        messages += [("assistant", text), ("tool", "seen 01-ab")]


def call_of(text):
    call = json.loads(text.partition("<tool_call>")[2].partition("</tool_call>")[0])
    return call["name"], call["arguments"]


def test_every_recipe_of_the_docs_is_played():
    played = {client.recipe.package for client in CLIENTS}
    assert {recipe.package for recipe in recipes.recipes().values()} <= played
    assert len(recipes.recipes()) == 9 and len(CLIENTS) == 13
    assert len({client.name for client in CLIENTS}) == 13


def test_a_recipe_is_what_its_block_says(monkeypatch, tmp_path):
    page = """
## Recipes

Words.

### Mine

    npm install --global --prefix=/opt/mine @mine/agent
    at = "{url}"
    c.external_agent.command = ("/opt/mine/bin/agent", f"-c={at}", "{instruction}")
    c.external_agent.env = (("HOME", "/tmp"),)

## Another section

### No recipe

    no line
"""
    monkeypatch.setattr(recipes, "PAGE", tmp_path / "agents.md")
    recipes.PAGE.write_text(page)
    (name, recipe), *more = recipes.recipes().items()
    assert (name, more) == ("Mine", [])
    assert recipe.install.startswith("npm install") and recipe.package == "@mine/agent"
    assert recipe.agent.command == ("/opt/mine/bin/agent", "-c={url}", "{instruction}")
    assert recipe.agent.env == (("HOME", "/tmp"),)


@pytest.mark.parametrize(
    ("line", "package"),
    [
        (
            "python3 -m venv /opt/a && /opt/a/bin/pip install 'smolagents[openai,toolkit]'",
            "smolagents",
        ),
        ("/opt/a/bin/pip install --no-cache-dir openhands-sdk openhands-tools", "openhands-sdk"),
    ],
)
def test_the_package_is_the_first_that_is_installed(line, package):
    assert recipes.Recipe(line, named("codex").recipe.agent).package == package


@pytest.mark.parametrize("last", ["", "submit"])
def test_the_script_plays_the_oracles_commands_one_by_one(stage, last):
    act = Call("bash", "command", {"why": "so"})
    script = Script(stage, dataclasses.replace(named("openai"), last=last, act=act), TASK)
    begun = [("user", "you?"), ("assistant", "I am here."), ("user", "task")]
    seen = [call_of(text) for text in written(stage, script, begun, "bash")]
    done = [*ORACLE, *([last] if last else [])]
    assert seen == [("bash", {"command": command, "why": "so"}) for command in done]
    assert list(written(stage, script, [("user", "a title, please")], "")) == []


def test_a_client_that_runs_code_gets_code_and_ends_by_code(stage):
    script = Script(stage, named("smolagents"), TASK)
    *steps, end = written(stage, script, [("user", "task")], "")
    assert [command in text for command, text in zip(ORACLE, steps, strict=True)] == [True] * 3
    assert "final_answer('Done.')" in end and end.endswith("</code>")


def test_a_sub_agent_gets_the_commands_and_is_waited_for(stage):
    codex = dataclasses.replace(named("codex"), agent_id=r"seen ([0-9a-f-]+)")
    script = Script(stage, codex, TASK, delegates=True)
    main = [call_of(text) for text in written(stage, script, [("user", "task")], "exec_command")]
    assert codex.delegate and codex.wait
    assert main == [
        (codex.delegate.tool, {"message": DELEGATED}),
        (codex.wait.tool, {"targets": ["01-ab"]}),
    ]
    begun = [("user", DELEGATED)]
    sub = [call_of(text)[1]["cmd"] for text in written(stage, script, begun, "exec_command")]
    assert sub == ORACLE
    contexts = [told(stage, each, "exec_command") for each in ([("user", "task")], begun)]
    contexts.append(told(stage, [("user", "a title")], "other"))
    assert [script.role(each) for each in contexts] == ["main", "sub-agent", "other"]


@pytest.mark.parametrize("source", ["npm", "pypi"])
def test_a_client_is_installed_once_and_never_half(monkeypatch, tmp_path, source):
    client, version = named("codex" if source == "npm" else "mini-swe-agent"), "1.2.3"
    (tmp_path / "base").mkdir()
    left = tmp_path / f"{client.name}.partial" / "of an earlier try"
    left.mkdir(parents=True)
    lines = []

    def run(line):
        lines.append(line)
        place = tmp_path / f"{client.name}.partial"
        assert not left.exists() and str(place) in line
        if source == "npm":
            about = place / "lib/node_modules/@openai/codex/package.json"
            about.parent.mkdir(parents=True)
            about.write_text(json.dumps({"version": version}))
        else:
            name = "mini_swe_agent-1.2.3.dist-info"
            (place / "lib/python3.13/site-packages" / name).mkdir(parents=True)

    monkeypatch.setattr(installs, "_run", run)
    assert [installs.install(client, tmp_path) for _ in range(2)] == [version] * 2
    (line,) = lines
    assert line[0] == "bwrap" and line[-1] == client.recipe.install


def test_a_client_that_cannot_be_had_is_tried_and_not_passed(monkeypatch, tmp_path):
    def refuse(client, folder):
        raise NotInstalled("no network")

    monkeypatch.setattr(clients, "install", refuse)
    found = clients.measure(QUICK, tmp_path)
    assert (found["clients_passed"], found["clients_tried"]) == (0, 13)
    assert {each["reason"] for each in found["clients"]} == {"not installed: no network"}
