"""Questions of data sets as they are published, which are answered in one turn.

{"world": "rows", "options": {"path": "gsm8k/train.jsonl", "prompt": "{question}",
                              "answer": "answer", "after": "####", "check": "number"}}
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ale_jax.sandbox.api import JudgedSandbox
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.worlds.api import Step, World
from ale_jax.worlds.bridges import checks, program_tests
from ale_jax.worlds.bridges import judge as judges
from ale_jax.worlds.bridges.apart import apart
from ale_jax.worlds.bridges.program_tests import ProgramTests
from ale_jax.worlds.bridges.tables import Table, choices, column, columns_of, filled, text, texts
from ale_jax.worlds.finite import Row
from ale_jax.worlds.items import Item

CHECKS = ("exact", "number", "choice", "regex", "math", "tests", "judge")
APART = ("math", "judge")  # checks that wait for another process
LETTERS = "ABCDEFGHIJ"  # the labels where no column has the choices


@dataclasses.dataclass(eq=False)
class Questions(World):
    """The rows of a file. The reward is 1 for a right answer and 0 for any other.

    path: a jsonl file, which may be packed (.gz), a parquet file, or a folder, of which split and
    eval_split are played, as `Table` says. prompt: what the policy is told, with columns in
    braces. answer: the column of the answer. after: what stands before the answer in that column,
    such as "####". check: one of CHECKS. family: its name; "" for that of the file. name,
    eval_path, eval_share: as `Rows`. choices: the column with the choices. seconds: that one check
    may take.

    Of the check `tests`: tests: the column of the tests. entry_point: the column with the name of
    the function that they `check`. start: the column of the code that a reply continues. setup:
    the column of what is run before the tests, which may be empty. Of the check `judge`: judge:
    the endpoint and model as http://HOST/v1#MODEL; `answer` may be left out.
    """

    path: str
    prompt: str
    answer: str = ""
    after: str = ""
    check: str = "exact"
    system_prompt: str = ""
    family: str = ""
    name: str = "id"
    eval_path: str = ""
    eval_share: float = 0.1
    split: str = ""
    eval_split: str = ""
    choices: str = ""
    seconds: float = 20.0
    tests: str = ""
    entry_point: str = ""
    start: str = ""
    setup: str = ""
    judge: str = ""

    _said: str | None = dataclasses.field(default=None, init=False)
    _row: Row = dataclasses.field(default_factory=dict, init=False)
    _sandbox: JudgedSandbox | None = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        """ValueError for options that do not fit each other."""
        if self.check not in CHECKS:
            raise ValueError(f"check {self.check!r:.80} is unknown: choose one of {CHECKS}")
        needed = self.check if self.check in ("tests", "judge") else "answer"
        if not getattr(self, needed):
            raise ValueError(f"the check {self.check} needs the option `{needed}`")
        if self.judge:
            judges.endpoint_of(self.judge)
        if not self.seconds > 0.0:
            raise ValueError(f"seconds {self.seconds} must be above 0")
        if self.check == "math" and importlib.util.find_spec("math_verify") is None:
            raise ValueError(
                "the check math needs math-verify: pip install 'math-verify[antlr4_13_2]'"
            )
        columns_of(self.prompt)
        self.is_judged_apart = self.check in APART
        family = self.family or Path(self.path).name.partition(".")[0]
        rows = (self.path, self.eval_share, self.eval_path, self.name)
        table = Table(*rows, self.split, self.eval_split, self._examine)
        self.families = {family: table}

    def sandbox(self, item: Item, spec: SandboxSpec) -> SandboxSpec | None:
        """Returns the sandbox of programs, with image, network and runtime of the run."""
        return program_tests.spec_of(spec) if self.check == "tests" else None

    def reset(self, item: Item, sandbox: JudgedSandbox | None) -> str:
        """Returns the prompt of an item. ValueError if tests cannot be run in the sandbox."""
        self._row, self._sandbox, self._said = item.row, sandbox, None
        if self.check == "tests":
            assert sandbox, "programs are judged in a sandbox"
            program_tests.prepare(sandbox)
        return filled(self.prompt, item.row)

    def step(self, reply: str) -> Step:
        """Ends the episode, and judges the reply unless that comes later."""
        self._said = reply
        return Step(reward=0.0 if self.is_judged_apart else self._reward(reply), done=True)

    def verdict(self) -> float:
        """Judges the reply, if there was one, by another process."""
        return 0.0 if self._said is None else self._reward(self._said)

    def oracle(self, item: Item) -> Sequence[str] | None:
        """Returns the answer; None where only a pattern or the tests are known."""
        if self.check == "regex" or not self.answer:
            return None
        if self.check == "tests":
            return (f"```python\n{text(item.row, self.answer)}\n```",)
        return (self._reply(self._answer(item.row)),)

    def _reply(self, answer: str) -> str:
        is_bare = self.check == "math" and "\\boxed" not in answer
        return f"{checks.BOX}{answer}}}" if is_bare else answer

    def _reward(self, reply: str) -> float:
        if self.check == "tests":
            return self._passed(reply)
        answer = self._answer(self._row) if self.answer else ""
        match self.check:
            case "exact":
                return checks.exact(reply, answer)
            case "number":
                return checks.number(reply, answer)
            case "choice":
                return checks.choice(reply, answer, tuple(self._choices(self._row)))
            case "judge":
                question = filled(self.prompt, self._row)
                said, judge = checks.said(reply), judges.endpoint_of(self.judge)
                return float(judges.is_right(judge, question, said, answer))
            case "math":
                given, control = checks.said(reply), self._reply(answer)
            case _:
                given, control = checks.final(reply), ""
        return float(apart(self.check).is_right(given, answer, self.seconds, control))

    def _passed(self, reply: str) -> float:
        assert self._sandbox, "step needs a reset"
        start = text(self._row, self.start) if self.start else ""
        solution = text(self._row, self.answer) if self.answer else ""
        program, control = (f"{start}\n{body}" for body in (checks.code(reply), solution))
        return self._tests(self._row).reward(program, control, self._sandbox)

    def _answer(self, row: Row) -> str:
        """Returns the answer of a row as its check takes it. ValueError if it is none."""
        if self.check == "choice":
            return self._label(row)
        whole = text(row, self.answer)
        after, answer = self.after, whole
        if after:
            _, after, answer = whole.rpartition(after)
        fault = self._fault(answer.strip()) if after == self.after else f"has no {self.after!r:.80}"
        if fault:
            raise ValueError(f"the column {self.answer!r:.80}, {whole!r:.80}, {fault}")
        return answer.strip()

    def _fault(self, answer: str) -> str:
        if not answer:
            return "holds no answer"
        if self.check == "number" and checks.last_number(answer) is None:
            return "is no number"
        return _fault_of_pattern(answer) if self.check == "regex" else ""

    def _tests(self, row: Row) -> ProgramTests:
        """Returns the tests of a row. ValueError if they are none."""
        tests = texts(row, self.tests)
        are_collected = isinstance(row[self.tests], str) and not self.entry_point
        if self.entry_point:
            name = text(row, self.entry_point)
            if not name.isidentifier():
                raise ValueError(f"the column {self.entry_point!r:.80}, {name!r:.80}, is no name")
            tests = (*tests, f"check({name})")
        setup = texts(row, self.setup) if self.setup and row.get(self.setup) else ()
        return ProgramTests((*setup, *tests), are_collected, self.seconds)

    def _label(self, row: Row) -> str:
        """Returns the label of the right choice, which a row names by label, place or text."""
        told, given = self._choices(row), column(row, self.answer)
        labels = list(told)
        if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < len(labels):
            return labels[given]
        by_text = [label for label in labels if told[label] == given]
        if given in labels:
            return str(given)
        if len(by_text) == 1:
            return by_text[0]
        raise ValueError(f"the column {self.answer!r:.80} holds {given!r:.80}, which is no choice")

    def _choices(self, row: Row) -> Mapping[str, str]:
        return choices(row, self.choices) if self.choices else dict.fromkeys(LETTERS, "")

    def _examine(self, row: Row) -> None:
        filled(self.prompt, row)
        if self.check != "tests":
            if self.answer:
                self._answer(row)
            return
        self._tests(row)
        for name in filter(None, (self.start, self.answer)):
            text(row, name)


def _fault_of_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"is no pattern: {error}"
    return ""
