"""Who decides whether a call of a tool may be made: rules, and in mode "ask" a person.

This protects against mistakes. Against a model that means harm only a sandbox does: a command that
is permitted may do whatever its user may.
"""

from __future__ import annotations

import asyncio
import dataclasses
import fnmatch
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from ale_jax.agent.assistant.workspace import Workspace

MODES: Mapping[str, str] = {
    "ask": "a person is asked before a tool changes anything",
    "allow-list": "what no rule allows is refused",
    "auto": "whatever no rule denies is done",
}

RULE = re.compile(r"([\w*?-]{1,128})(?:\((.*)\))?", re.DOTALL)
# What can make of one command two, or redirect it.
SHELL_OPERATORS = re.compile(r"[;&|<>`$(){}\n\\]")
# Which argument of a tool a rule is about.
SUBJECTS = {"bash": "command", "read": "path", "write": "path", "edit": "path", "search": "path"}

ONCE, ALWAYS, NO = "once", "always", "no"
Ask = Callable[
    [str, str, Mapping[str, Any]], Awaitable[str]
]  # call's id, tool, arguments -> answer


@dataclasses.dataclass(frozen=True)
class Rule:
    """Which calls are meant. tool: pattern of names. subject: pattern of the command, the path or,
    for other tools, the arguments in JSON. A path is that of the file itself, from the working
    directory unless the pattern begins with /."""

    tool: str
    subject: str = "*"

    @staticmethod
    def parse(text: str) -> Rule:
        found = RULE.fullmatch(text)
        if not found:
            raise ValueError(f"rule {text!r:.80} must be TOOL or TOOL(PATTERN)")
        return Rule(found[1], "*" if found[2] is None else found[2])

    def allows(self, tool: str, subject: str) -> bool:
        """Returns whether the rule allows a call. A pattern of commands does not reach over an
        operator of the shell: "git diff *" does not allow "git diff; rm x". To allow all commands,
        leave out the pattern."""
        if not fnmatch.fnmatchcase(tool, self.tool):
            return False
        if tool == "bash" and self.subject != "*" and SHELL_OPERATORS.search(subject):
            return subject == self.subject
        return fnmatch.fnmatchcase(subject, self.subject)

    def denies(self, tool: str, subject: str) -> bool:
        """Returns whether the rule denies a call; for commands also if a part of it between
        operators is denied."""
        if not fnmatch.fnmatchcase(tool, self.tool):
            return False
        parts = [subject]
        if tool == "bash":
            parts += [part.strip() for part in SHELL_OPERATORS.split(subject)]
        return any(fnmatch.fnmatchcase(part, self.subject) for part in parts)


def subject_of(tool: str, arguments: Mapping[str, Any]) -> str:
    """Returns what a rule's pattern is matched against: a command, a path, or all arguments in
    JSON."""
    name = SUBJECTS.get(tool)
    if name is not None:
        return str(arguments.get(name, ""))
    return json.dumps(arguments, sort_keys=True, ensure_ascii=False)


class Gatekeeper:
    """The rules of a session, to which answers of "always" are added."""

    def __init__(
        self,
        mode: str,
        allow: Iterable[str],
        deny: Iterable[str],
        ask: Ask | None,
        workspace: Workspace,
    ):
        """ask: None where there is nobody to ask, so that it is refused."""
        self.mode, self._workspace = mode, workspace
        self._allow = [Rule.parse(each) for each in allow]
        self._deny = [Rule.parse(each) for each in deny]
        self._always: set[tuple[str, str]] = set()
        self._ask = ask
        self._asking = asyncio.Lock()  # sub-agents may want to ask at the same time

    async def refusal(
        self, call_id: str, tool: str, arguments: Mapping[str, Any], only_reads: bool
    ) -> str | None:
        """Returns why the call may not be made; None if it may. ToolError for what is no path."""
        subject = subject_of(tool, arguments)
        for rule in self._deny:
            # Also as the model calls it, which may be a link that the rule names.
            if any(rule.denies(tool, each) for each in (subject, self._met(rule, tool, subject))):
                return "a rule denies this"
        if only_reads or self.mode == "auto":
            return None
        if any(rule.allows(tool, self._met(rule, tool, subject)) for rule in self._allow):
            return None
        if self.mode == "allow-list":
            return "no rule allows this"
        if self._ask is None:
            return "there is nobody to ask; start with --mode=auto, or allow it by a rule"
        # A person who allows a command for good has read this one and no other.
        remembered = (tool, subject if tool == "bash" else "")
        async with self._asking:
            if remembered in self._always:
                return None
            answer = await self._ask(call_id, tool, arguments)
            if answer == ALWAYS:
                self._always.add(remembered)
        return None if answer in (ONCE, ALWAYS) else "the user refused this"

    def _met(self, rule: Rule, tool: str, subject: str) -> str:
        """What the rule's pattern is compared with: of a path, the file that it leads to."""
        if SUBJECTS.get(tool) != "path":
            return subject
        path = self._workspace.resolved(subject)
        return str(path) if rule.subject.startswith("/") else self._workspace.shown(path)
