"""The benchmarks of credit: their work is what they say, and each measures once."""

import pytest

from ale_jax.config.hardware import MeshShape
from ale_jax.config.learn import Shape
from ale_jax.model.params import count_params
from ale_jax.model.sharding import make_mesh
from benchmarks import attention_credit, credit_step, critics
from benchmarks.credit_step import Work, spread, step_batches, timed, works
from tests.model.shapes import DENSE, changed

pytestmark = pytest.mark.slow

MINI = {
    "width": 16,
    "num_layers": 1,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_width": 8,
    "mlp_width": 24,
}
SMALL = changed(DENSE, num_layers=1)
WORK = Work("small", SMALL, Shape(8, 64, 8), trajectories=4, tokens=40, mini=MINI)


def test_the_work_is_the_quickstarts_and_a_larger_one():
    (quick,) = works(quick=True)
    first, second = works(quick=False)
    assert quick == first and first.policy.num_experts == 8 and first.shape.pack_length == 640
    assert count_params(second.policy)[0] > 5 * count_params(first.policy)[0]


def test_as_many_trajectories_are_positive_as_are_asked_for():
    (batch,) = step_batches(WORK, 0.5)
    members = {m: batch.advantage_BT[batch.member_BT == m].max() > 0 for m in range(4)}
    assert members == {0: True, 1: True, 2: False, 3: False}
    assert batch.reward_BT.sum() == 2  # of members 1 and 3


def test_in_each_round_all_are_called_and_the_first_round_does_not_count():
    called = []
    calls = {name: lambda name=name: called.append(name) for name in "ab"}
    seconds = timed(calls, 2)
    assert called == ["a", "b"] * 3
    assert [len(each) for each in seconds.values()] == [2, 2]
    assert spread([3.0, 1.0, 2.0]) == {"median_s": 2.0, "min_s": 1.0, "max_s": 3.0}


@pytest.fixture(scope="module")
def found():
    mesh = make_mesh(MeshShape())
    training = credit_step.Training(WORK, mesh)
    return critics.measure(WORK, 1, mesh), attention_credit.measure(WORK, 0.5, 1, mesh, training)


def test_critics_are_measured(found):
    mini, large = found[0]["two mini"], found[0]["one large"]
    # Of width 16: embedding 96x16; attention 16x16 + 2 x 16x8 + 16x16, its norms 16 + 2 x 8;
    # feed-forward 3 x 16x24, its norm 16; the last norm 16; head 16.
    assert mini["weights_each"] == 1536 + 768 + 32 + 1152 + 16 + 16 + 16
    # Without the policy's head, with one of its own.
    assert large["weights_each"] == count_params(SMALL)[0] - 32 * 96 + 32
    memory = mini["bytes"]
    assert memory["weights"] == 2 * 4 * mini["weights_each"]
    # Two moments of each weight, of each critic, and counters.
    assert memory["weights"] * 2 < memory["moments"] < memory["weights"] * 2 + 64
    assert memory["held"] == memory["weights"] + memory["moments"]
    assert memory["peak"] == memory["held"] + memory["gradient"] + memory["temporary"]
    assert 0 < found[0]["held_ratio"] < 1 and found[0]["step"]["median_s"] > 0


def test_attention_is_measured(found):
    ratio = found[1]["attention_credit"]["median_s"] / found[1]["step"]["median_s"]
    assert found[1]["ratio"] == pytest.approx(ratio, abs=0.01 + 0.05 * ratio)
    assert found[1]["met"] == (found[1]["ratio"] <= attention_credit.BAR)
