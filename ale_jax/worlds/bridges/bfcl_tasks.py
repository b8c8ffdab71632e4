"""The multi-turn tasks of bfcl-eval, which are answered for in a process of their own (player.py).

It imports nothing of ours.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import keyword
import os
from typing import Any, ClassVar


class BfclLibrary:
    """One episode at a time. The library keeps the objects that calls act on in the globals of a
    module, by names, so that those of an earlier episode have to be removed."""

    MODEL, UNKNOWN = "policy", "no_such_function()"
    # As the library offers them; of functions that come later, it tells in a prompt.
    TYPES: ClassVar = {"dict": "object", "float": "number"}

    def __init__(self) -> None:
        import bfcl_eval
        from bfcl_eval.constants import default_prompts, executable_backend_config
        from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker, multi_turn_utils

        self._data = os.path.join(os.path.dirname(bfcl_eval.__file__), "data")
        self._prompts, self._backends = default_prompts, executable_backend_config
        self._checker, self._executor = multi_turn_checker, multi_turn_utils
        self._rows = functools.cache(self._read)

    def names(self) -> list[str]:
        return [
            f"multi_turn_{kind}" for kind in ("base", "long_context", "miss_func", "miss_param")
        ]

    def items(self, category: str) -> list[list[Any]]:
        """Of each: its name, the classes that it acts on, and the requests of its user."""
        return [
            [name, ", ".join(row["involved_classes"]), [_asked(turn) for turn in row["question"]]]
            for name, row in self._rows(category).items()
        ]

    def digest(self, category: str) -> str:
        told = json.dumps(self._rows(category), sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()

    def tools(self, name: str) -> list[dict[str, Any]]:
        row = self._row(name)
        later = {each for names in row.get("missed_function", {}).values() for each in names}
        return [each for each in self._functions(row) if each["function"]["name"] not in later]

    def oracle(self, name: str) -> list[list[list[Any]]]:
        """Of each user turn, the calls that the library expects."""
        self._begin(name)
        return [list(map(self._call, turn)) for turn in self._row(name)["ground_truth"]]

    def begin(self, name: str) -> str:
        self._begin(name)
        self._name = name
        self._written: list[list[list[str]]] = []  # of each turn, of each reply, the calls
        told = self.turn()
        assert told is not None
        return told

    def turn(self) -> str | None:
        """Begins the next turn of the user; None if there is none."""
        row, number = self._row(self._name), len(self._written)
        if number == len(row["question"]):
            return None
        self._written.append([])
        if later := row.get("missed_function", {}).get(str(number)):
            added = [t for t in self._functions(row) if t["function"]["name"] in later]
            functions = "\n".join(map(json.dumps, added))
            prompt = self._prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING
            return str(prompt.format(functions=functions))
        return _asked(row["question"][number])

    def step(self, calls: list[list[Any]]) -> list[Any]:
        """Executes calls; returns their results, and whether the turn has become too long."""
        self._written[-1].append([])
        told = [self._result(*call) for call in calls]
        return [told, len(self._written[-1]) > self._prompts.MAXIMUM_STEP_LIMIT]

    def score(self) -> bool:
        """Tells whether the task is solved, which it is not before the user's last turn."""
        row = self._row(self._name)
        if len(self._written) < len(row["question"]):
            return False
        steps = [[step for step in turn if step] for turn in self._written]
        category = self._name.rsplit("_", 1)[0]
        expected = row["ground_truth"]
        told = self._checker.multi_turn_checker(steps, expected, row, category, self.MODEL)
        return bool(told["valid"])

    def _begin(self, name: str) -> None:
        for known in [known for known in vars(self._executor) if known.endswith("_instance")]:
            del vars(self._executor)[known]
        self._name = name
        self._execute([])
        held = vars(self._executor).items()
        instances = [value for known, value in held if known.endswith("_instance")]
        self._methods = {
            found: method
            for instance in instances
            for found, method in inspect.getmembers(instance, predicate=inspect.ismethod)
            if not found.startswith("_")
        }

    def _execute(self, calls: list[str]) -> list[str]:
        row = self._row(self._name)
        told, _ = self._executor.execute_multi_turn_func_call(
            calls,
            row["initial_config"],
            row["involved_classes"],
            self.MODEL,
            self._name,
            long_context="long_context" in self._name,
        )
        return list(told)

    def _result(self, name: str, arguments: dict[str, Any]) -> str:
        """Executes a call as the library does, which evaluates it. So nothing is evaluated but one
        of its functions, with constants."""
        calls = self._written[-1][-1]
        if name not in self._methods or not all(map(_is_name, arguments)):
            calls.append(self.UNKNOWN)  # which the library counts as a call, and as an error
            is_syntax = all(map(_is_name, (name, *arguments)))
            what = f"name {name!r} is not defined" if is_syntax else "invalid syntax"
            return f"Error during execution: {what}"
        told = ",".join(f"{each}={value!r}" for each, value in arguments.items())
        calls.append(f"{name}({told})")
        (result,) = self._execute(calls[-1:])
        return result

    def _call(self, expected: str) -> list[Any]:
        """From an expression to a name and arguments by name."""
        called = ast.parse(expected, mode="eval").body
        assert isinstance(called, ast.Call) and isinstance(called.func, ast.Name), expected
        values = map(ast.literal_eval, called.args)
        named = {str(each.arg): ast.literal_eval(each.value) for each in called.keywords}
        bound = inspect.signature(self._methods[called.func.id]).bind(*values, **named)
        return [called.func.id, dict(bound.arguments)]

    def _functions(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        files = self._backends.MULTI_TURN_FUNC_DOC_FILE_MAPPING
        found = []
        for owner in row["involved_classes"]:
            for function in self._lines("multi_turn_func_doc", files[owner]):
                schema = self._schema(function["parameters"])
                told = {"name": function["name"], "description": function["description"]}
                found.append({"type": "function", "function": {**told, "parameters": schema}})
        return found

    def _schema(self, value: Any) -> Any:
        if isinstance(value, list):
            return list(map(self._schema, value))
        if not isinstance(value, dict):
            return value
        schema = {key: self._schema(each) for key, each in value.items()}
        if isinstance(kind := schema.get("type"), str):
            schema["type"] = self.TYPES.get(kind, kind)
        return schema

    def _row(self, name: str) -> dict[str, Any]:
        return self._rows(name.rsplit("_", 1)[0])[name]

    def _read(self, category: str) -> dict[str, dict[str, Any]]:
        file = f"BFCL_v4_{category}.json"
        expected = {each["id"]: each for each in self._lines("possible_answer", file)}
        return {row["id"]: {**row, **expected[row["id"]]} for row in self._lines(file)}

    def _lines(self, *path: str) -> list[dict[str, Any]]:
        with open(os.path.join(self._data, *path)) as file:
            return [json.loads(line) for line in file]


def _asked(turn: list[dict[str, str]]) -> str:
    return "\n".join(message["content"] for message in turn)


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)
