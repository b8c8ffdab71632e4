"""Which episodes an evaluation plays."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale_jax.config.worlds import Domain
from ale_jax.evaluation.plan import ENDLESS, Plan, claim
from ale_jax.system.lease import Lease
from ale_jax.worlds.families import Families, open_families
from tests.rows import each_row

DOMAINS = (Domain("countdown"), Domain("shell", ("sort",)))
FAMILIES = open_families(DOMAINS)

counts = st.integers(1, 12)


@settings(max_examples=50)
@given(counts, counts, counts, counts)
def test_a_larger_plan_has_all_episodes_of_a_smaller_one(samples, more, limit, higher):
    small = Plan(FAMILIES, samples, limit).episodes()
    large = Plan(FAMILIES, samples + more, limit + higher).episodes()
    assert len(set(small)) == len(small) == samples * limit and set(small) < set(large)


def test_the_families_share_a_limit_evenly_and_one_without_end_has_one():
    families = [key.task.family for key in Plan(FAMILIES, limit=8).episodes()]
    assert [families.count(name) for name in ("countdown3", "countdown4", "sort")] == [3, 3, 2]
    assert len(Plan(FAMILIES).episodes()) == 3 * ENDLESS


def test_what_is_finished_is_not_played_again():
    plan = Plan(FAMILIES, samples=2, limit=3)
    done = [(plan.item(key.task), key.member) for key in plan.episodes()[:4]]
    assert plan.left(set(done)) == plan.episodes()[4:] and not plan.left(
        {(plan.item(key.task), key.member) for key in plan.episodes()}
    )


def test_finite_items_are_played_once_each(tmp_path):
    (tmp_path / "tasks.jsonl").write_text(
        "".join(f'{{"id": "t{n}", "n": {n}}}\n' for n in range(40))
    )
    (tmp_path / "few.py").write_text(
        "from ale_jax.worlds import Rows, World\n"
        "class Few(World):\n"
        '    families = {"few": Rows("tasks.jsonl", eval_share=0.5)}\n'
        '    def reset(self, item, sandbox): return ""\n'
        "    def step(self, reply): ...\n"
    )
    families = Families((Domain("few:Few"),), str(tmp_path))
    played = {
        split: [key.task.item for key in Plan(families, split=split).episodes()]
        for split in ("train", "eval")
    }
    assert sorted(played["train"] + played["eval"]) == sorted(f"t{n}" for n in range(40))
    assert 8 < len(played["eval"]) < 32
    assert len(Plan(families, limit=5).episodes()) == 5


@each_row("options", [{"samples": 0}, {"limit": -1}])
def test_a_plan_without_episodes_is_refused(options):
    with pytest.raises(ValueError, match=f"--{next(iter(options))}="):
        Plan(FAMILIES, **options)


def test_a_folder_holds_one_evaluation(tmp_path):
    claim(tmp_path / "a", {"policy": "x", "families": ["f"]})
    claim(tmp_path / "a", {"policy": "x", "families": ["f"]})
    with pytest.raises(ValueError, match=r"holds episodes with policy 'x', not 'y': .* --out"):
        claim(tmp_path / "a", {"policy": "y", "families": ["f"]})
    with pytest.raises(ValueError, match=r"does not tell split, as older .* --out"):
        claim(tmp_path / "a", {"policy": "x", "split": "eval"})


@each_row("content", ["[]", "null", "3", "{"])
def test_settings_that_are_damaged_are_named(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("a")
    (folder / "eval.json").write_text(content)
    with pytest.raises(ValueError, match=r"eval\.json: damaged"):
        claim(folder, {"policy": "x"})


def test_a_folder_with_something_else_is_refused_and_left_alone(tmp_path):
    (tmp_path / "config.json").write_text("a run's")
    with pytest.raises(ValueError, match=r"holds no evaluation, but 'config.json': .* --out"):
        claim(tmp_path, {"policy": "x"})
    assert [each.name for each in tmp_path.iterdir()] == ["config.json"]


def test_a_start_that_failed_does_not_keep_the_next_from_its_folder(tmp_path):
    Lease.take(tmp_path).close()
    (tmp_path / ".eval.json.x1").write_text("{")
    claim(tmp_path, {"policy": "x"})


@each_row("samples, limit", [(10**11, 1), (1, 10**11), (1001, 1000)])
def test_more_episodes_than_memory_holds_are_refused(samples, limit):
    with pytest.raises(ValueError, match=f"--samples={samples} and --limit={limit} ask for more"):
        Plan(FAMILIES, samples, limit).episodes()
