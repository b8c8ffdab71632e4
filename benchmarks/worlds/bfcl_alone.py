"""Plays bfcl-eval's tasks without ALE-JAX, in its own Python, as the library's own loop does.

Reads the names of tasks, each a line of JSON, and answers each with a line: a list of episodes,
{"turns": of each user turn a list of replies, each a list of [name, arguments, result], "valid":
the library's verdict}. The calls are those that the library expects, and some that are wrong. It
imports nothing of ours.
"""

import ast
import copy
import inspect
import json
import os
import random
import sys

import bfcl_eval
from bfcl_eval.constants.default_prompts import MAXIMUM_STEP_LIMIT
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker, multi_turn_utils

DATA = os.path.join(os.path.dirname(bfcl_eval.__file__), "data")


def main():
    for line in sys.stdin:
        print(json.dumps(list(episodes(json.loads(line)))), flush=True)


def episodes(name):
    row, rng = row_of(name), random.Random(name)
    right = [[each] if (each := [call(row, one) for one in turn]) else [] for turn in expected(row)]
    single = [[[one] for reply in turn for one in reply] for turn in right]
    for number, turns in enumerate(
        (
            right,
            single,
            [[] for _ in right],
            changed(rng, right, lambda calls, place: calls.pop(place)),
            changed(rng, right, lambda calls, place: calls.insert(place, calls[place])),
            changed(rng, right, wrong_argument),
            changed(rng, right, lambda calls, place: calls.insert(place, ["nope", {"a": "b"}])),
            changed(rng, right, lambda calls, place: calls[place][1].update(nope=[1.5, None])),
            list(reversed(right)),
        )
    ):
        yield played(row, turns, f"alone{number}")


def played(row, turns, model):
    turns, truth = within_limit(turns), expected(row)
    told, written = [], [[list(map(expression, calls)) for calls in turn] for turn in turns]
    for turn, texts in zip(turns, written):
        told.append([])
        for calls, reply in zip(turn, texts):
            results = executed(row, reply, model)
            told[-1].append([[*one, result] for one, result in zip(calls, results)])
    if len(turns) < len(truth):
        return {"turns": told, "valid": False}
    category = row["id"].rsplit("_", 1)[0]
    checked = multi_turn_checker.multi_turn_checker(written, truth, row, category, model)
    return {"turns": told, "valid": checked["valid"]}


def within_limit(turns):
    """The library ends an episode after so many replies in a turn."""
    most, played = MAXIMUM_STEP_LIMIT + 1, []
    for turn in turns:
        played.append(turn[:most])
        if len(turn) >= most:
            break
    return played


def executed(row, reply, model):
    long = "long_context" in row["id"]
    acted = row["initial_config"], row["involved_classes"], model, row["id"], long
    return multi_turn_utils.execute_multi_turn_func_call(reply, *acted)[0]


def changed(rng, turns, change):
    turns = copy.deepcopy(turns)
    replies = [calls for turn in turns for calls in turn]
    if replies:
        calls = rng.choice(replies)
        change(calls, rng.randrange(len(calls)))
    return [[calls for calls in turn if calls] for turn in turns]


def wrong_argument(calls, place):
    arguments = calls[place][1]
    for key, value in arguments.items():
        arguments[key] = f"{value}x" if isinstance(value, str) else 7


def call(row, text):
    called = ast.parse(text, mode="eval").body
    values = [ast.literal_eval(each) for each in called.args]
    named = {each.arg: ast.literal_eval(each.value) for each in called.keywords}
    executed(row, [], "signatures")
    held = vars(multi_turn_utils).items()
    (method,) = {
        getattr(type(value), called.func.id)
        for key, value in held
        if key.startswith("signatures") and hasattr(value, called.func.id)
        if key == f"signatures_{row['id']}_{type(value).__name__}_instance"
    }
    _, *bound = inspect.signature(method).bind(None, *values, **named).arguments.items()
    return [called.func.id, dict(bound)]


def expression(one):
    name, arguments = one
    return f"{name}({','.join(f'{key}={value!r}' for key, value in arguments.items())})"


def row_of(name):
    rows = lines(f"BFCL_v4_{name.rsplit('_', 1)[0]}.json")
    return next(row for row in rows if row["id"] == name)


def expected(row):
    file = os.path.join("possible_answer", f"BFCL_v4_{row['id'].rsplit('_', 1)[0]}.json")
    return next(each["ground_truth"] for each in lines(file) if each["id"] == row["id"])


def lines(file):
    with open(os.path.join(DATA, file)) as opened:
        return [json.loads(line) for line in opened]


if __name__ == "__main__":
    main()
