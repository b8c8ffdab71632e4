"""Rollout workers on the users' Ray cluster, whose nodes come and go."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ale_jax
from ale_jax.config.engine import Sampling
from ale_jax.config.rollout import DeadlinesConfig, PlacementConfig
from ale_jax.errors import RolloutsFailed
from ale_jax.monitor.events import read_events
from ale_jax.records import RolloutRequest
from ale_jax.system.actors.cluster import check_address, ray_cluster
from tests.rows import each_row
from tests.system import sandboxes
from tests.system.conftest import NODE
from tests.system.oracle_ledger import OracleLedger
from tests.system.rollouts.workers import (
    LIMIT_S,
    Events,
    keys,
    next_episode,
    next_result,
    play_all,
    run_until,
    wait_until,
    workers_of,
)
from tests.system.whole_runs import command, environment

STEPS, GROUPS, MEMBERS, PLACES = 3, 4, 4, 4
OVERRIDES = (
    f"--config.rl.steps={STEPS}",
    f"--config.rl.groups_per_step={GROUPS}",
    f"--config.rl.group_size={MEMBERS}",
    "--config.rl.alpha=0.0",
    "--config.rollout.workers=ray",
    "--config.rollout.actors=2",
    f"--config.rollout.episodes_per_actor={PLACES}",
    "--config.rollout.retries=0",  # the departure of a node uses none up
)


@pytest.fixture
def leave(cluster):
    """Removes the nodes that a test has added and not removed."""
    yield
    for node in list(cluster.worker_nodes):
        cluster.remove_node(node)


@pytest.fixture
def start_run(cluster, runtime_name, tmp_path):
    """Starts a gated run on the cluster; it is killed if it has not ended by itself."""
    flags = command(tmp_path / "run", runtime_name, *OVERRIDES)[3:]
    gates = ["-m", "tests.system.actors.gated_run", str(tmp_path), str(2 * PLACES)]
    line = [sys.executable, *gates, *flags, f"--ray-address={cluster.address}"]
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(line, env=environment(), stdout=output, stderr=output)
    yield process
    process.kill()
    process.wait()


@pytest.mark.slow
def test_episodes_of_a_node_that_is_killed_are_played_by_one_that_stays_or_joins(
    cluster, leave, runtime_name
):
    leaves = cluster.add_node(**NODE)
    ledger, events, wanted = OracleLedger(), Events(), keys(4)
    ledger.gate.clear()
    with ray_cluster(2, cluster.address):
        with workers_of(runtime_name, ledger, events, retries=0) as workers:
            for key in wanted:
                workers.submit(RolloutRequest(key), Sampling())
            run_until(workers, lambda: ledger.asked == 4)
            nodes = {event["node"] for event in events.of("actor_started")}
            assert nodes == {cluster.head_node.node_id, leaves.node_id}  # they are spread
            cluster.remove_node(leaves, allow_graceful=False)
            run_until(workers, lambda: len(events.of("attempt_failed")) == 2)
            joins = cluster.add_node(**NODE)
            run_until(workers, lambda: len(events.of("actor_started")) == 3)
            ledger.gate.set()
            episodes = [next_episode(workers) for _ in wanted]
    assert sorted(episode.key.group for episode in episodes) == [0, 1, 2, 3]
    assert [episode.reward for episode in episodes] == [1.0] * 4
    assert events.of("actor_started")[-1]["node"] == joins.node_id
    assert all(each["detail"].startswith("its node has left: ") for each in events.of("actor_lost"))
    failed = [(each["status"], each["retried"]) for each in events.of("attempt_failed")]
    assert failed == [("actor_lost", True)] * 2 and not events.of("episodes_paused")


@pytest.mark.slow
def test_a_run_goes_on_while_a_node_is_killed_and_another_joins(
    cluster, leave, start_run, tmp_path
):
    leaves = cluster.add_node(**NODE)
    process, events = start_run, lambda kind: _events(tmp_path / "run", kind)

    def reached(condition):
        assert process.poll() is None, (tmp_path / "output").read_text()
        return condition()

    wait_until(lambda: reached((tmp_path / "held").exists), 120)
    nodes = {event.fields["node"]: event.fields for event in events("actor_started")}
    assert nodes.keys() == {cluster.head_node.node_id, leaves.node_id}  # they are spread
    cluster.remove_node(leaves, allow_graceful=False)
    wait_until(lambda: not sandboxes.process_exists(nodes[leaves.node_id]["pid"]))
    (tmp_path / "go_on").touch()
    wait_until(lambda: reached((tmp_path / "step").exists), 120)  # with what is left
    joins = cluster.add_node(**NODE)
    wait_until(lambda: reached(lambda: len(events("actor_started")) == 3))
    (tmp_path / "joined").touch()
    assert process.wait(120) == 0, (tmp_path / "output").read_text()

    assert events("actor_started")[-1].fields["node"] == joins.node_id
    lost = [event.detail for event in events("actor_lost")]  # with its replacement, or without
    assert 1 <= len(lost) <= 2 and all(detail.startswith("its node has left: ") for detail in lost)
    assert not events("episodes_paused")
    failed = events("attempt_failed")
    assert len(failed) == PLACES
    assert {(each.fields["status"], each.fields["retried"]) for each in failed} == {
        ("actor_lost", True)
    }
    back = [json.loads(line) for line in (tmp_path / "back").read_text().splitlines()]
    members = [[group, member] for group in range(STEPS * GROUPS) for member in range(MEMBERS)]
    assert sorted(each[:2] for each in back) == members
    assert "actor_lost" not in {status for *_, status in back}


def _events(workdir: Path, kind: str):
    found = read_events(workdir / "events.jsonl").records
    return [event for event in found if event.kind == kind]


@pytest.mark.heavy
def test_a_worker_of_another_code_version_is_refused(
    cluster, leave, runtime_name, tmp_path, monkeypatch
):
    shutil.copytree(Path(ale_jax.__file__).parent, tmp_path / "other" / "ale_jax")
    with (tmp_path / "other" / "ale_jax" / "envs" / "serve.py").open("a") as file:
        file.write("# another rule\n")
    other = {"env_vars": {"PYTHONPATH": str(tmp_path / "other")}, "resources": {"other": 1}}
    cluster.add_node(**NODE | other)
    monkeypatch.chdir(tmp_path)  # Ray lets workers import from where their driver stands
    options = {"actors": 1, "placement": PlacementConfig(resources=("other=1",)), "are_up": False}
    with ray_cluster(1, cluster.address):
        with workers_of(runtime_name, OracleLedger(), Events(), **options) as workers:
            with pytest.raises(RolloutsFailed) as refusal:
                next_result(workers)
    said = str(refusal.value)
    assert said.startswith("rollout worker 0 on node ") and said.count("source ") == 2, said
    assert "it has source" in said and "and this process has source" in said
    assert "install the same ale-jax on all nodes" in said and "python" not in said


@pytest.mark.heavy
def test_labels_choose_the_node(cluster, leave, runtime_name):
    marked = cluster.add_node(**NODE, labels={"pool": "sandboxes"})
    events, placement = Events(), PlacementConfig(cpus=0.5, labels=("pool=sandboxes",))
    with ray_cluster(1, cluster.address) as joined:
        assert joined.address == cluster.head_node.node_ip_address  # where this process is
        with workers_of(runtime_name, OracleLedger(), events, placement=placement) as workers:
            assert [episode.reward for episode in play_all(workers, keys(2))] == [1.0] * 2
    assert [event["node"] for event in events.of("actor_started")] == [marked.node_id] * 2


SOON = DeadlinesConfig(placement_seconds=1.0)


@each_row(
    "placement, lacks",
    [
        (PlacementConfig(resources=("moon=1",)), "CPU 1, moon 1; none of . nodes has moon 1:"),
        (PlacementConfig(labels=("pool=moon",)), "none of . nodes has the label pool=moon:"),
        (PlacementConfig(cpus=64.0), "it needs CPU 64; none of . nodes has CPU 64:"),
        (PlacementConfig(memory_mb=9_999_999), "none of . nodes has memory 9999999 MiB:"),
    ],
)
def test_workers_that_no_node_can_hold_end_the_run_with_what_is_missing(
    cluster, runtime_name, placement, lacks
):
    options = {"placement": placement, "deadlines": SOON, "are_up": False}
    with ray_cluster(2, cluster.address):
        with workers_of(runtime_name, OracleLedger(), Events(), **options) as workers:
            with pytest.raises(RolloutsFailed) as refusal:
                next_result(workers)
    said = str(refusal.value)
    assert re.search(lacks, said) and "did not start within 1 s" in said, said


def test_the_workers_that_have_a_node_play_while_the_others_wait(cluster, runtime_name):
    events, wanted = Events(), keys(3)
    with ray_cluster(2, cluster.address):
        with workers_of(runtime_name, OracleLedger(), events, are_up=False) as workers:
            run_until(workers, lambda: workers.free_places == 2)
            assert [episode.reward for episode in play_all(workers, wanted)] == [1.0] * 3
            workers._pool._placement_seconds = 0.0
            run_until(workers, lambda: events.of("actors_unplaced"))
            workers._pool._placement_seconds = LIMIT_S
            assert not events.of("actor_lost")
    unplaced = events.of("actors_unplaced")[0]
    assert unplaced["detail"].startswith("1 of 2 actors play; rollout worker ")
    assert "1 of 1 nodes could hold it; free in the cluster: CPU 0" in unplaced["detail"]


@each_row(
    "address, answer",
    [
        ("ray://127.0.0.1:10001", "must be HOST:PORT"),
        ("10.0.0.1", "must be HOST:PORT"),
        ("127.0.0.1:1", "no connection within 2 s"),
    ],
)
def test_an_address_that_cannot_be_joined_is_refused_at_once(address, answer):
    with pytest.raises(ValueError, match=answer):
        check_address(address)
