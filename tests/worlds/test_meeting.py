"""Equal rows of several families are on one side, or the run is refused."""

import dataclasses
import json

import pytest

from ale_jax.config.worlds import Domain
from ale_jax.worlds.families import open_families
from ale_jax.worlds.items import TRAIN
from ale_jax.worlds.meeting import require_apart
from tests.worlds.test_schedule import config_with, schedule

QUESTION = (("prompt", "{question}"), ("answer", "answer"))


def write(path, numbers):
    rows = [{"id": f"{path.stem}{n}", "question": f"{n}+1?", "answer": n + 1} for n in numbers]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def domain(file, **options):
    return Domain("rows", options=(("path", file), *QUESTION, *options.items()))


def checked(folder, trained, evaluated):
    families = open_families((*trained, *evaluated), str(folder))
    sides = ([families[name] for name in families.of(*side)] for side in (trained, evaluated))
    require_apart(*sides)
    return families


@pytest.fixture
def folder(tmp_path):
    """Of the second file, the first half is in the first file as well."""
    write(tmp_path / "one.jsonl", range(100))
    write(tmp_path / "two.jsonl", range(50, 150))
    write(tmp_path / "else.jsonl", range(200, 250))
    return tmp_path


def test_rows_that_are_divided_otherwise_elsewhere_are_refused(folder):
    one = domain("one.jsonl", eval_share=0.1)
    both = domain("two.jsonl", eval_share=0.5)
    words = (
        r"family one trains on \d+ rows that are evaluated, such as 'one\d+', which two has, too: "
        r"give their files one `eval_share`, or name the file of two as the `eval_path` of one"
    )
    with pytest.raises(ValueError, match=words):
        checked(folder, [one], [one, both])
    with pytest.raises(ValueError, match="family one trains on"):
        checked(folder, [one], [domain("two.jsonl", eval_share=1.0)])


def test_one_share_another_file_or_an_eval_path_keep_them_apart(folder):
    one, same = domain("one.jsonl", eval_share=0.3), domain("two.jsonl", eval_share=0.3)
    checked(folder, [one, same], [one, same])
    other = domain("else.jsonl", eval_share=0.9)
    checked(folder, [one, other], [one, other])
    left_out = domain("one.jsonl", eval_path="two.jsonl")
    held_out = domain("two.jsonl", eval_share=1.0)
    families = checked(folder, [left_out], [left_out, held_out])
    assert families["one"].items.count(TRAIN) == 50


def test_rows_that_are_not_chosen_are_not_trained_on(folder):
    two = domain("two.jsonl", eval_share=1.0)
    (folder / "rates").mkdir()
    alone = dataclasses.replace(domain("one.jsonl"), pass_rates="rates")
    names = open_families((domain("one.jsonl"),), str(folder))["one"].items.rows(TRAIN)
    numbers = sorted(int(name.removeprefix("one")) for name in names)
    for number, is_shared in ((numbers[-1], True), (numbers[0], False)):
        rates = {"rows": {"one": [[f"one{number}", 1, 2]]}}
        (folder / "rates" / "pass_rates.json").write_text(json.dumps(rates))
        open_families.cache_clear()
        if is_shared:
            with pytest.raises(ValueError, match=f"family one trains on 1 rows .* 'one{number}'"):
                checked(folder, [alone], [two])
        else:
            checked(folder, [alone], [two])


def test_a_run_looks_at_what_it_trains_on_and_at_what_it_demonstrates(folder):
    domains = domain("one.jsonl"), domain("two.jsonl", eval_share=0.6)
    with pytest.raises(ValueError, match="family one trains on"):
        schedule(domains[:1], held_out=domains[1:], folder=str(folder)).check(config_with(1, 1))
    run = schedule(domains[1:], folder=str(folder))
    run.check(config_with(1, 1))
    families = open_families(domains, str(folder))
    run = dataclasses.replace(run, families=families, demonstrated=domains[:1])
    with pytest.raises(ValueError, match="family one trains on"):
        run.check(config_with(1, 1))


OTHER = """
from ale_jax.worlds import Rows, Step, World

class Other(World):
    families = {"two": Rows("two.jsonl", eval_share=1.0)}

    def reset(self, item, sandbox):
        return ""

    def step(self, reply):
        return Step(done=True)
"""


def test_rows_of_another_world_are_other_tasks(folder):
    (folder / "meeting_other.py").write_text(OTHER)
    checked(folder, [domain("one.jsonl")], [Domain("meeting_other:Other")])
