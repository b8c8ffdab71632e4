"""What may be done in each mode, and what a rule is worth against a cunning command."""

import asyncio
from pathlib import Path

import pytest

from ale_jax.agent.assistant.permissions import Gatekeeper, Rule
from ale_jax.agent.assistant.workspace import Workspace
from tests.rows import each_row

HERE = Workspace(Path.cwd())


@each_row(
    "rule, tool, subject, allowed",
    [
        ("bash(git diff *)", "bash", "git diff a", True),
        ("bash(git diff *)", "bash", "git push", False),
        ("bash(git diff *)", "bash", "git diff a; rm x", False),
        ("bash(git diff *)", "bash", "git diff a\nrm x", False),
        ("bash(git diff *)", "bash", "git diff $(rm x)", False),
        ("bash(git diff *)", "bash", "git diff `rm x`", False),
        ("bash(git diff *)", "bash", "git diff a > b", False),
        ("bash(ls | wc)", "bash", "ls | wc", True),
        ("bash", "bash", "anything; rm x", True),
        ("write(src/*)", "write", "src/a.py", True),
        ("write(src/*)", "write", "a.py", False),
        ("write(src/*)", "edit", "src/a.py", False),
        ("mcp__files__*", "mcp__files__read", "{}", True),
        ("mcp__files__*", "mcp__web__get", "{}", False),
    ],
)
def test_a_rule_allows_what_it_says_and_no_more(rule, tool, subject, allowed):
    assert Rule.parse(rule).allows(tool, subject) is allowed


@each_row(
    "subject, denied",
    [
        ("git push", True),
        ("true && git push origin", True),
        ("git commit -m 'push'", False),
        ("git status", False),
    ],
)
def test_a_rule_denies_a_part_of_a_command(subject, denied):
    assert Rule.parse("bash(git push*)").denies("bash", subject) is denied


@each_row("text", ["", "bash(", "a b", "bash)x("])
def test_what_is_no_rule_is_refused(text):
    with pytest.raises(ValueError, match="must be TOOL"):
        Rule.parse(text)


class Person:
    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    async def __call__(self, call_id, tool, arguments):
        self.asked.append(tool)
        return self.answers.pop(0)


def test_a_person_is_asked_one_question_at_a_time():
    asked, open_questions = [], 0

    async def person(call_id, tool, arguments):
        nonlocal open_questions
        open_questions += 1
        assert open_questions == 1
        await asyncio.sleep(0.01)
        open_questions -= 1
        asked.append(arguments["path"])
        return "always"

    async def both():
        gatekeeper = Gatekeeper("ask", [], [], person, HERE)
        calls = [gatekeeper.refusal(str(n), "write", {"path": str(n)}, False) for n in range(3)]
        return await asyncio.gather(*calls)

    assert asyncio.run(both()) == [None] * 3
    assert asked == ["0"], "the others are allowed for good by then"


def refusals(gatekeeper, *calls):
    """calls: tool, arguments and whether it only reads."""

    async def all_of_them():
        return [await gatekeeper.refusal("c", *call) for call in calls]

    return asyncio.run(all_of_them())


LS, RM = ("bash", {"command": "ls"}, False), ("bash", {"command": "rm x"}, False)
READ, WRITE = ("read", {"path": "a"}, True), ("write", {"path": "a"}, False)


def test_in_mode_ask_only_changes_are_asked_about():
    person = Person("once", "no", "no")
    found = refusals(Gatekeeper("ask", ["bash(ls)"], [], person, HERE), READ, LS, RM, RM, WRITE)
    assert found == [None, None, None, "the user refused this", "the user refused this"]
    assert person.asked == ["bash", "bash", "write"]


def test_always_is_for_a_tool_but_for_one_command_only():
    person = Person("always", "no", "always")
    found = refusals(Gatekeeper("ask", [], [], person, HERE), LS, LS, RM, WRITE, WRITE)
    assert found == [None, None, "the user refused this", None, None]
    assert person.asked == ["bash", "bash", "write"]


def test_an_allow_list_refuses_the_rest_without_asking():
    person = Person()
    found = refusals(Gatekeeper("allow-list", ["bash(ls)"], [], person, HERE), READ, LS, RM)
    assert found == [None, None, "no rule allows this"] and person.asked == []


def test_what_a_rule_denies_is_refused_in_every_mode():
    for mode in ("ask", "allow-list", "auto"):
        gatekeeper = Gatekeeper(mode, ["bash"], ["bash(rm *)", "read"], None, HERE)
        assert refusals(gatekeeper, LS, RM, READ) == [None, *["a rule denies this"] * 2]


@pytest.fixture
def linked(folder):
    """`src/out` leads to `other`, and `link` to `secrets`."""
    for name in ("src", "other", "secrets"):
        (folder / name).mkdir()
    (folder / "src/out").symlink_to("../other")
    (folder / "link").symlink_to("secrets")
    return Workspace(folder)


@each_row(
    "path, allowed",
    [
        ("src/a.py", True),
        ("./src//deep/../a.py", True),
        ("{root}/src/a.py", True),
        ("src/../.git/hooks/pre-commit", False),
        ("src/out/a.py", False),
        ("{root}/src/../a.py", False),
    ],
)
@pytest.mark.parametrize("pattern", ["src/*", "{root}/src/*"])
def test_a_rule_allows_files_and_not_spellings(linked, pattern, path, allowed):
    rule = f"write({pattern.format(root=linked.root)})"
    gatekeeper = Gatekeeper("allow-list", [rule], [], None, linked)
    call = ("write", {"path": path.format(root=linked.root)}, False)
    assert refusals(gatekeeper, call) == [None if allowed else "no rule allows this"]


@pytest.mark.parametrize("path", ["secrets/k", "./secrets/k", "src/../secrets/k", "{root}/link/k"])
@pytest.mark.parametrize("pattern", ["secrets/*", "{root}/secrets/*"])
def test_a_rule_denies_a_file_however_it_is_spelt(linked, pattern, path):
    rule = f"*({pattern.format(root=linked.root)})"
    gatekeeper = Gatekeeper("auto", [], [rule], None, linked)
    arguments = {"path": path.format(root=linked.root)}
    calls = [(tool, arguments, tool == "read") for tool in ("read", "write", "edit")]
    assert refusals(gatekeeper, *calls) == ["a rule denies this"] * 3


def test_a_rule_may_deny_a_link(linked):
    gatekeeper = Gatekeeper("auto", [], ["read(link/*)"], None, linked)
    calls = [("read", {"path": path}, True) for path in ("link/k", "secrets/k")]
    assert refusals(gatekeeper, *calls) == ["a rule denies this", None]


def test_where_there_is_nobody_to_ask_the_remedy_is_named():
    (refusal,) = refusals(Gatekeeper("ask", [], [], None, HERE), LS)
    assert "--mode=auto" in refusal
