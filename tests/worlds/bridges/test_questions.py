"""Data sets in files, as the world `rows` reads and plays them."""

import gzip
import importlib.util
import json

import pytest

from ale_jax.config.build import build_domain
from ale_jax.records import Task
from ale_jax.worlds.families import Families
from ale_jax.worlds.items import EVAL, TRAIN
from tests.rows import each_row

GSM8K = {"question": "How many?", "answer": "9 + 9 = <<9+9=18>>18\n#### 18"}
GSM8K_OPTIONS = {"answer": "answer", "after": "####", "check": "number"}
MMLU = {"question": "Which?", "choices": ["a cat", "a dog", "a cow"], "answer": 1}
ARC = {
    "question": "Which?",
    "choices": {"text": ["a cat", "a dog"], "label": ["1", "2"]},
    "answer": "2",
}
CHOICE = {"answer": "answer", "check": "choice", "choices": "choices"}


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def family_of(folder, file="set.jsonl", **options):
    options = {"path": file, "prompt": "{question}", "eval_share": 0.0} | options
    (family,) = Families([build_domain({"world": "rows", "options": options})], str(folder))
    return family


def task_of(family, split=TRAIN):
    items = family.items
    return Task(
        family.name, items.train(0, 0, 0) if split == TRAIN else items.evaluation(0, 0), split
    )


def played(family, reply):
    """What the policy is told, and what its reply earns."""
    world = family.checked(task_of(family), None)
    told = world.reset()
    step = world.step(reply)
    assert step.done
    return told, step.reward + world.verdict() if world.is_judged_apart else step.reward


@each_row(
    "row, options, told, oracle",
    [
        (GSM8K, GSM8K_OPTIONS, "How many?", "18"),
        (MMLU, CHOICE, "Which?\nA. a cat\nB. a dog\nC. a cow", "B"),
        (MMLU | {"answer": "a cow"}, CHOICE, "Which?\nA. a cat\nB. a dog\nC. a cow", "C"),
        (ARC, CHOICE, "Which?\n1. a cat\n2. a dog", "2"),
        (MMLU | {"answer": "C"}, {"answer": "answer", "check": "choice"}, None, "C"),
        ({"question": "2 + 2", "answer": 4}, {"answer": "answer"}, "2 + 2", "4"),
    ],
)
def test_the_formats_of_published_sets_are_played(row, options, told, oracle, tmp_path):
    write(tmp_path / "set.jsonl", row)
    prompt = "{question}\n{choices}" if "choices" in options else "{question}"
    family = family_of(tmp_path, prompt=prompt, system_prompt="Be brief.", **options)
    assert family.name == "set"
    assert family.oracle(task_of(family)) == (oracle,)
    messages, reward = played(family, oracle)
    assert [each.role for each in messages] == ["system", "user"] and reward == 1.0
    assert told in (None, messages[1].content)
    for wrong in ("", "nothing", "0", "A"):
        assert played(family, wrong)[1] == 0.0


@pytest.mark.heavy
def test_a_pattern_is_an_answer_and_has_no_oracle(tmp_path):
    write(tmp_path / "set.jsonl", {"question": "When?", "answer": r"(19|20)\d\d"})
    family = family_of(tmp_path, answer="answer", check="regex")
    assert played(family, "Answer: 1969")[1] == 1.0
    assert played(family, "1969 or 1970")[1] == 0.0
    with pytest.raises(ValueError, match="has no oracle"):
        family.oracle(task_of(family))


def test_packed_files_are_read_and_files_may_be_the_splits(tmp_path):
    (tmp_path / "set.jsonl.gz").write_bytes(gzip.compress(json.dumps(GSM8K).encode()))
    write(tmp_path / "test.jsonl", {"question": "How few?", "answer": "#### 2", "key": "few"})
    options = {"eval_path": "test.jsonl", "name": "key"} | GSM8K_OPTIONS
    family = family_of(tmp_path, "set.jsonl.gz", **options)
    assert family.name == "set" and played(family, "18")[1] == 1.0
    assert task_of(family, EVAL).item == "few"


@each_row(
    "row, options, said",
    [
        ({"answer": "#### 1"}, {}, "no column 'question': there are answer"),
        ({"question": "Why?"}, {}, "no column 'answer': there are question"),
        ({"question": "Why?", "answer": None}, {}, "column 'answer' is empty"),
        ({"question": "Why?", "answer": ""}, {}, "column 'answer' is empty"),
        ({"question": "", "answer": "#### 1"}, {}, "column 'question' is empty"),
        ({"question": "Why?", "answer": "1"}, {}, "'answer', '1', has no '####'"),
        ({"question": "Why?", "answer": "####"}, {}, "'answer', '####', holds no answer"),
        ({"question": "Why?", "answer": "#### one"}, {}, "is no number"),
        ({"question": "Why?", "answer": ["1"]}, {}, "which is no text"),
        ({"question": "Why?", "answer": "#### ("}, {"check": "regex"}, "is no pattern"),
        (MMLU | {"answer": 3}, CHOICE, "column 'answer' holds 3, which is no choice"),
        (MMLU | {"answer": "a pig"}, CHOICE, "'a pig', which is no choice"),
        (MMLU | {"choices": "cat"}, CHOICE, "'cat', which are no choices"),
        (MMLU | {"choices": [1, 2]}, CHOICE, "which are no choices"),
    ],
)
def test_a_row_that_cannot_be_played_is_named_with_its_line(row, options, said, tmp_path):
    good = MMLU if "choices" in options else GSM8K
    good = good | ({"answer": "#### x"} if options.get("check") == "regex" else {})
    write(tmp_path / "set.jsonl", good | {"question": "first"}, row)
    with pytest.raises(ValueError) as refused:
        family_of(tmp_path, **GSM8K_OPTIONS | options).items.count(TRAIN)
    assert f"{tmp_path}/set.jsonl, line 2: " in str(refused.value) and said in str(refused.value)


@each_row(
    "options, said",
    [
        ({"check": "guess"}, "check 'guess' is unknown: choose one of"),
        ({"answer": ""}, "the check number needs the option `answer`"),
        ({"check": "tests"}, "the check tests needs the option `tests`"),
        ({"check": "judge"}, "the check judge needs the option `judge`"),
        (
            {"check": "judge", "judge": "http://HOST/v1"},
            "'http://HOST/v1' must be http://HOST/v1#MODEL",
        ),
        ({"check": "judge", "judge": "x#m"}, "'x#m' must be http://HOST/v1#MODEL"),
        ({"prompt": "{}"}, "must be the name of a column; write a brace as {{ or }}"),
        ({"prompt": "{question.__class__}"}, "must be the name of a column"),
        ({"prompt": "{question!r}"}, "must be the name of a column"),
        ({"prompt": "{question"}, "write a brace as {{ or }}"),
        ({"seconds": 0.0}, "seconds 0.0 must be above 0"),
        ({"pth": "x"}, "cannot be made with the options"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, said, tmp_path):
    write(tmp_path / "set.jsonl", GSM8K)
    with pytest.raises(ValueError) as refused:
        family_of(tmp_path, **GSM8K_OPTIONS | options)
    assert said in str(refused.value)


@each_row("content", [b"{", b"\x1f\x8b damaged"])
def test_a_damaged_file_is_named(content, tmp_path):
    (tmp_path / "set.jsonl.gz").write_bytes(content)
    with pytest.raises(ValueError, match=r"set.jsonl.gz cannot be read"):
        family_of(tmp_path, "set.jsonl.gz", **GSM8K_OPTIONS).items.count(TRAIN)


def test_math_without_its_library_is_refused_with_the_command(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: found(name) if name != "math_verify" else None
    )
    with pytest.raises(ValueError, match=r"pip install 'math-verify\[antlr4_13_2\]'"):
        family_of(tmp_path, answer="answer", check="math")


@pytest.mark.heavy
def test_math_is_played(tmp_path):
    pytest.importorskip(
        "math_verify", reason="math-verify is not installed; type: make install-test"
    )
    for answer in (r"\frac{3}{4}", r"Thus it is $\boxed{\frac{3}{4}}$."):
        write(tmp_path / "set.jsonl", {"question": "How much?", "answer": answer})
        family = family_of(tmp_path, answer="answer", check="math")
        (oracle,) = family.oracle(task_of(family))
        for reply, reward in ((oracle, 1.0), ("$0.75$", 1.0), (r"\boxed{0.7}", 0.0)):
            assert played(family, reply)[1] == reward
        assert played(family, f"<think>{oracle}")[1] == 0.0
