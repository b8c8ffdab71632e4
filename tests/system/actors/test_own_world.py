"""A world that nobody has installed, on a Ray cluster of two nodes."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from ale_jax.monitor.events import read_events
from tests.system.conftest import NODE
from tests.system.whole_runs import command, environment

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
WORLD = """
from ale_jax.worlds import Rows, Step, World

class Sums(World):
    families = {"easy": Rows("easy.jsonl")}

    def reset(self, item, sandbox):
        self.answer = str(item["answer"])
        return item["question"]

    def step(self, reply):
        return Step(reward=float(reply.strip() == self.answer), done=True)

    def oracle(self, item):
        return (str(item["answer"]),)
"""


def write_world(folder, module, answer=lambda a, b: a + b):
    folder.mkdir()
    (folder / f"{module}.py").write_text(WORLD)
    rows = [{"question": f"{a} + {b}", "answer": answer(a, b)} for a in range(9) for b in range(9)]
    (folder / "easy.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def play(cluster, tmp_path, module, *overrides, path=""):
    """The finished process of a run on the cluster. path: where Python looks for modules first."""
    line = command(
        tmp_path / "run",
        "auto",
        f"--config.worlds.train=({{'world':'{module}:Sums','turns':1}},)",
        "--config.worlds.held_out=()",
        "--config.eval.held_out_tasks=0",
        "--config.rollout.workers=ray",
        *overrides,
        f"--ray-address={cluster.address}",
    )
    paths = os.pathsep.join(filter(None, (str(path), str(ROOT))))
    variables = environment() | {"PYTHONPATH": paths}
    return subprocess.run(
        line, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=400
    )


def test_a_world_in_a_folder_trains_on_two_nodes(cluster, tmp_path):
    joined = cluster.add_node(**NODE)
    write_world(tmp_path / "mine", "sums_of_two_nodes")
    folder = f"--config.worlds.folder={tmp_path}/mine"
    ran = play(cluster, tmp_path, "sums_of_two_nodes", folder, "--config.rollout.actors=2")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    events = read_events(tmp_path / "run" / "events.jsonl").records
    nodes = {event.fields["node"] for event in events if event.kind == "actor_started"}
    assert nodes == {cluster.head_node.node_id, joined.node_id}
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["step"], last["trained_groups/easy"]) == (2, 2)
    cluster.remove_node(joined)


@pytest.mark.parametrize("differs", ["code", "items"])
def test_a_node_whose_copy_of_the_world_differs_is_refused_by_name(cluster, tmp_path, differs):
    module = f"sums_with_other_{differs}"
    write_world(tmp_path / "here", module)
    write_world(tmp_path / "there", module, max if differs == "items" else lambda a, b: a + b)
    if differs == "code":
        (tmp_path / "there" / f"{module}.py").write_text(WORLD.replace(".strip()", ""))
    variables = {"PYTHONPATH": f"{tmp_path}/there{os.pathsep}{ROOT}"}
    other = cluster.add_node(**NODE, env_vars=variables, resources={differs: 1})
    ran = play(
        cluster,
        tmp_path,
        module,
        "--config.rollout.actors=1",
        f"--config.rollout.placement.resources=('{differs}=1',)",
        path=tmp_path / "here",
    )
    cluster.remove_node(other)
    assert ran.returncode != 0
    assert f"family easy of world {module}:Sums has other code or items on " in ran.stderr
    assert "copy its folder there" in ran.stderr
