"""The sets of reasoning-gym: the library's questions, scores and answers, whatever is replied."""

import pytest

from ale_jax.agent.loop import ScriptedPolicy, play
from ale_jax.config.agent import AgentLimits
from ale_jax.records import EpisodeKey, Status, Task
from ale_jax.worlds.bridges.reasoning_gym import ReasoningGym
from ale_jax.worlds.checked import CheckedWorld
from ale_jax.worlds.items import Item
from benchmarks.worlds.bridges import compare
from tests.worlds.bridges.libraries import python_of

pytestmark = pytest.mark.heavy

SETS = ("leg_counting", "prime_factorization", "countdown", "spell_backward", "boxnet")


def played(world, family, reply, seed=7):
    key = EpisodeKey("train", 0, 0, Task(family, seed, "train"))
    checked = CheckedWorld(world, Item(family, seed, "train"), None)
    return play(checked, ScriptedPolicy([reply]), key, AgentLimits(turns=1))


def test_sets_are_the_librarys():
    found = compare("reasoning_gym", python_of("gem"), 4, SETS)
    assert (found.exceptions, found.equal, found.episodes) == ({}, 5, 20)
    assert found.notes["prime_factorization"] == "raises ValueError"


def test_junk_that_is_paid_is_no_success():
    episode = played(ReasoningGym(python_of("gem")), "fraction_simplification", "junk")
    assert (episode.status, episode.reward, episode.solved_at) == (Status.FINISHED, 0.01, 1.0)


def test_an_answer_on_which_a_set_raises_earns_nothing():
    episode = played(ReasoningGym(python_of("gem")), "prime_factorization", "junk")
    assert (episode.status, episode.reward) == (Status.FINISHED, 0.0)


def test_an_oracle_is_an_answer_that_scores_1():
    world = ReasoningGym(python_of("gem"))
    (answer,) = world.oracle(Item("leg_counting", 7, "train"))
    assert played(world, "leg_counting", answer).reward == 1.0
    for family in ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"):
        assert world.oracle(Item(family, 7, "train")) is None


def test_a_tag_holds_the_answer():
    world = ReasoningGym(python_of("gem"), tag="answer")
    (reply,) = world.oracle(Item("leg_counting", 7, "train"))
    assert reply.startswith("<answer>") and "<answer>" in world.system_prompt
    thought = f"Is it <answer>1</answer>? No. {reply} is right."
    assert played(world, "leg_counting", thought).reward == 1.0
    untold = played(world, "leg_counting", reply.removesuffix("</answer>"))
    assert (untold.reward, untold.malformed_calls) == (0.0, 1)


def test_what_has_no_end_is_a_failure_and_others_go_on(monkeypatch):
    world = ReasoningGym(python_of("gem"))
    assert world.oracle(Item("leg_counting", 7, "train"))  # it has started
    monkeypatch.setattr("ale_jax.worlds.bridges.process.ANSWER_S", 1.0)
    world.oracle(Item("leg_counting", 8, "train"))
    endless = played(world, "polynomial_multiplication", "9**9**9**9")
    assert (endless.status, endless.reward) == (Status.NO_VERDICT, 0.0)
    assert played(world, "leg_counting", "junk").status == Status.FINISHED


@pytest.mark.parametrize(
    "act",
    [
        "__import__('os').system('touch PATH')",
        "open('PATH', 'w')",
        'eval(\'open("PATH", "w")\')',
        "getattr(print, '__self__').open('PATH', 'w')",
    ],
)
@pytest.mark.parametrize("family", ["spiral_matrix", "simple_integration"])
def test_an_answer_that_is_evaluated_cannot_act(act, family, tmp_path):
    path = tmp_path / "written"
    world = ReasoningGym(python_of("gem"))
    played(world, family, f"[{act}]".replace("PATH", str(path)))
    assert not path.exists()


def test_an_answer_that_is_evaluated_cannot_change_later_scores():
    """The set turns each element of a list into a text, by a name that a reply may want to set."""
    world = ReasoningGym(python_of("gem"))
    (right,) = world.oracle(Item("spiral_matrix", 7, "train"))
    listed = f"[{right.replace(' ', ', ')}]"
    assert played(world, "spiral_matrix", listed).reward == 0.1
    played(world, "spiral_matrix", "[(str := (lambda item: '1')) for _ in [0]]")
    assert played(world, "spiral_matrix", listed).reward == 0.1
