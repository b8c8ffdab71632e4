"""Training items by their pass rates: only those in the range, each once an epoch; evaluations stay
as they are."""

import dataclasses
import json

import pytest

from ale_jax.config.worlds import Domain
from ale_jax.evaluation.pass_rates import write_pass_rates
from ale_jax.status import Status
from ale_jax.worlds.digests import choices, digests, selections
from ale_jax.worlds.families import open_families
from ale_jax.worlds.items import EVAL, TRAIN
from ale_jax.worlds.schedule import Schedule
from tests.evaluation.results import SOLVED
from tests.system.configs import smoke_config

WORLD, FAMILY = "countdown", "countdown3"


def play(folder, solved, samples=8, world=WORLD, family=FAMILY):
    """Writes the rates of an evaluation. solved: of so many samples, by item."""
    of = {"world": world, "family": family}
    episodes = [
        dataclasses.replace(SOLVED, **of, item=item, sample=n, solved=n < count)
        for item, count in solved.items()
        for n in range(samples)
    ]
    without = {"solved": False, "reward": None, "status": Status.VERIFIER_ERROR}
    lost = dataclasses.replace(SOLVED, **of, item=99, **without)
    write_pass_rates(folder, [*episodes, lost])


def domain(folder, low=0.1, high=0.9, **fields):
    named = {"world": WORLD, "families": (FAMILY,), "pass_rates": str(folder)}
    return Domain(**named, pass_at_least=low, pass_at_most=high, **fields)


def items_of(folder, **fields):
    return open_families((domain(folder, **fields),))[fields.get("prefix", "") + FAMILY].items


def test_items_in_the_range_come_up_once_an_epoch(tmp_path):
    play(tmp_path, {7: 0, 8: 1, 9: 4, 10: 7, 11: 8})
    items = items_of(tmp_path)
    assert items.count(TRAIN) == 3
    epochs = [[items.train(5, n, 3 * epoch + n) for n in range(3)] for epoch in range(6)]
    assert all(sorted(epoch) == [8, 9, 10] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert [items.train(5, n, n) for n in range(3)] == epochs[0] == items.demonstrated(5, 9)
    assert items.probe(5, 0, 0) == (epochs[0][-1], TRAIN)


def test_the_ends_of_the_range_belong_to_it(tmp_path):
    play(tmp_path, {7: 0, 8: 1, 9: 4, 10: 7, 11: 8})
    assert items_of(tmp_path, low=0.125, high=0.5).names == (8, 9)
    assert items_of(tmp_path, low=0.0, high=1.0).names == (7, 8, 9, 10, 11)


def test_evaluations_stay_as_they_are(tmp_path):
    play(tmp_path, {8: 4})
    whole = open_families((Domain(WORLD, (FAMILY,)),))
    chosen = open_families((domain(tmp_path),))
    theirs, ours = whole[FAMILY].items, chosen[FAMILY].items
    assert [ours.evaluation(n, n) for n in range(9)] == [theirs.evaluation(n, n) for n in range(9)]
    assert ours.count(EVAL) == theirs.count(EVAL) and digests(chosen) == digests(whole)
    assert ours.find(FAMILY, 12, TRAIN) == theirs.find(FAMILY, 12, TRAIN)


def test_a_run_says_what_was_chosen_and_notices_another_choice(tmp_path):
    play(tmp_path, {7: 0, 8: 4})
    before = open_families((domain(tmp_path),))
    assert selections(before) == [f"{FAMILY}: 1 of 2 items, those with a pass rate from 0.1 to 0.9"]
    known = choices(before)
    play(tmp_path, {7: 3, 8: 4})
    open_families.cache_clear()
    assert choices(open_families((domain(tmp_path),))) != known
    assert not choices(open_families((Domain(WORLD, (FAMILY,)),)))


def test_a_family_with_a_prefix_has_its_rates_under_its_whole_name(tmp_path):
    play(tmp_path, {8: 4}, family=f"my_{FAMILY}")
    assert items_of(tmp_path, prefix="my_").names == (8,)


def test_rows_are_chosen_by_name(tmp_path):
    rows = [{"id": f"r{n}", "question": f"{n}?", "answer": str(n)} for n in range(20)]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = (("answer", "answer"), ("path", "q.jsonl"), ("prompt", "{question}"))
    fields = {"world": "rows", "options": options}
    (family,) = open_families((Domain(**fields),), str(tmp_path))
    trained, *others = list(family.items.rows(TRAIN))
    play(tmp_path / "evals", {trained: 4, others[0]: 0}, world="rows", family=family.name)
    low = {"pass_rates": "evals", "pass_at_least": 0.1}
    (chosen,) = open_families((Domain(**fields, **low),), str(tmp_path))
    assert chosen.items.names == (trained,)
    evaluated = next(iter(family.items.rows(EVAL)))
    play(tmp_path / "wrong", {evaluated: 4}, world="rows", family=family.name)
    (wrong,) = open_families((Domain(**fields, pass_rates="wrong"),), str(tmp_path))
    with pytest.raises(ValueError, match=r"wrong/pass_rates\.json: .*evaluate with --split=train"):
        wrong.items.count(TRAIN)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"there is no .*pass_rates\.json: `ale-jax eval --split=train"),
        ("{", r"pass_rates\.json: damaged"),
        ({}, "has no pass rates of family countdown3 of world countdown"),
        ({WORLD: {FAMILY: [[1, 2]]}}, "has no pass rates"),
        ({WORLD: {FAMILY: [[1, 3, 2]]}}, r"has no pass rates .*\[1, 3, 2\]"),
        ({WORLD: {FAMILY: []}}, "no item of family countdown3 was judged"),
        ({WORLD: {FAMILY: [[1, 0, 8], [2, 8, 8]]}}, "none of 2 items .*: they are from 0 to 1"),
    ],
)
def test_rates_that_cannot_be_used_are_named(tmp_path, content, message):
    if content is not None:
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / "pass_rates.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        items_of(tmp_path).count(TRAIN)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pass_at_least": 0.1}, "pass_at_least 0.1 and pass_at_most 1.0 need pass_rates"),
        ({"pass_rates": "a", "pass_at_least": 0.9, "pass_at_most": 0.1}, "0.9 is above"),
        ({"pass_rates": "a", "pass_at_most": 1.5}, "pass_at_most 1.5 must be in"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Domain(WORLD, **fields)


def test_what_is_only_evaluated_has_no_items_to_choose(tmp_path):
    held_out = (domain(tmp_path),)
    with pytest.raises(ValueError, match=r"worlds\.held_out: pass_rates choose training items"):
        smoke_config(worlds={"held_out": held_out})


def test_two_domains_must_agree_on_the_choice(tmp_path):
    play(tmp_path, {8: 4})
    with pytest.raises(ValueError, match="stands in two domains with other pass_rates"):
        open_families((domain(tmp_path), Domain(WORLD, (FAMILY,))))


def test_a_run_trains_on_what_was_chosen(tmp_path):
    play(tmp_path, {8: 4, 9: 0})
    train = (domain(tmp_path),)
    families = open_families(train)
    schedule = Schedule(families, train, (), (), seed=3)
    assert {schedule.train_task(group).item for group in range(5)} == {8}
