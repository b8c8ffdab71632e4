"""The sandbox benchmark: what it makes of its measurements, and that it measures at all."""

import argparse
import dataclasses
import json

import pytest

from ale_jax.agent.loop import ScriptedPolicy, play
from ale_jax.config.agent import AgentLimits
from ale_jax.records import EpisodeKey
from ale_jax.sandbox.api import SandboxLost, SandboxStartError
from ale_jax.sandbox.cgroups import Owner
from ale_jax.sandbox.runtime import pick_runtime
from benchmarks.sandbox import __main__ as program
from benchmarks.sandbox import hostile, inventory, siege
from benchmarks.sandbox.attacks.attack import Arena, Attack, Breach
from benchmarks.sandbox.bare_docker import run_flags
from benchmarks.sandbox.findings import Figure, Sample, Trial, timed_ms
from benchmarks.sandbox.plan import QUICK, SPEC
from benchmarks.sandbox.summary import BARS, REQUIRED, Bar, figures_of, overall

pytestmark = pytest.mark.slow

TINY = dataclasses.replace(
    QUICK,
    commands=3,
    cold_starts=1,
    warm_starts=1,
    file_calls=1,
    crowds={"docker": 2, "bubblewrap": 3},
    crowd_commands=12,
    cycles=2,
    starts_at_once=6,
    kills=1,
    hostile_episodes=3,
)


def test_percentiles_are_of_all_values():
    sample = Sample("x_ms", "", tuple(range(101)))
    assert sample.figures() == {"x_ms_p50": 50, "x_ms_p95": 95, "x_ms_p99": 99}


def test_the_first_call_is_not_counted():
    calls = []
    assert len(timed_ms(lambda: calls.append(1), 3)) == 3 and len(calls) == 4


def test_trials_are_counted_and_the_worst_neighbour_counts():
    trials = [
        Trial("a", "k", "s", True, "", 1.5),
        Trial("b", "k", "s", False, "", 3.0),
        Trial("c", "k", "s", True, ""),
    ]
    assert figures_of(trials) == {
        "attacks_tried": 3,
        "attacks_survived": 2,
        "attacks_succeeded": 1,
        "neighbour_ratio_max": 3.0,
    }


def test_the_worst_runtime_counts_and_counts_are_added():
    docker = {"reset_ms_p50": 5.0, "commands_run": 100, "commands_failed": 1}
    docker |= {"session_ms_inprocess_p50": 0.5, "docker_exec_ms_p50": 50.0}
    other = {"reset_ms_p50": 2.0, "commands_run": 200, "commands_failed": 0}
    other |= {"session_ms_inprocess_p50": 0.8}
    total = overall({"docker": docker, "bubblewrap": other}, {"swe_rex_local_ms_p50": 80.0})
    assert (total["reset_ms_p50"], total["commands_run"], total["commands_failed"]) == (5.0, 300, 1)
    assert total["docker_exec_ratio"] == 100.0  # by Docker's own session
    assert total["swe_rex_ratio"] == 100.0
    assert total.keys() >= {*REQUIRED} and total["leaked_objects"] is None
    rates = {name: {"restart_per_s": rate} for name, rate in (("docker", 90.0), ("other", 80.0))}
    assert overall(rates, {})["restart_per_s"] == 80.0


@pytest.mark.parametrize(
    ("bar", "good", "bad"),
    [(Bar("x", "", 2.0), 2.0, 2.1), (Bar("x", "", 10, at_least=True), 10, 9.9)],
)
def test_a_bar_says_what_holds(bar, good, bad):
    assert bar.holds(good) and not bar.holds(bad)


def test_every_bar_is_of_its_own_figure():
    assert len({bar.key for bar in BARS}) == len(BARS)


def test_docker_run_gets_the_flags_of_a_container():
    host = {"IpcMode": "none", "NetworkMode": "none", "Memory": 9, "MemorySwap": 9, "PidsLimit": 8}
    host |= {"CapAdd": ["SETUID"], "CapDrop": ["ALL"], "SecurityOpt": ["no-new-privileges"]}
    host |= {"Binds": ["v:/.ale:ro"], "Tmpfs": {"/work": "rw,size=1m"}, "ReadonlyRootfs": True}
    host |= {"LogConfig": {"Type": "none"}}
    config = {"Hostname": "sandbox", "User": "0:0", "WorkingDir": "/work"}
    flags = run_flags({"HostConfig": host, "Config": config})
    assert {"--cap-drop=ALL", "--cap-add=SETUID", "--memory=9", "--read-only"} < {*flags}
    assert {"--tmpfs=/work:rw,size=1m", "--volume=v:/.ale:ro", "--network=none"} < {*flags}
    assert "--read-only" not in run_flags(
        {"HostConfig": host | {"ReadonlyRootfs": False, "CapAdd": None}, "Config": config}
    )


def test_what_is_anothers_is_not_counted():
    # The names are no hexadecimal digits, which those of owners are.
    ours, other = str(Owner.current()), "12345678-1234-1234-1234-123456789012.1.2.3"
    things = {
        "containers": {"first": f"first {ours} /m1", "second": f"second {other} /m2"},
        "processes": {
            "10 bwrap": f"ale-{other}-0",
            "11 shim": "-id second",
            "12 python3": "docker/first",
        },
        "mounts": {"/m1": "/m1", "/m2": "/m2"},
        "cgroups": {f"/x/ale-{ours}-0": f"/x/ale-{ours}-0"},
    }
    assert inventory.without(things, {other}) == {
        "containers": {"first"},
        "processes": {"12 python3"},
        "mounts": {"/m1"},
        "cgroups": {f"/x/ale-{ours}-0"},
    }


def test_what_is_left_is_what_was_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(inventory, "SETTLE_S", 0.0)
    (tmp_path / "ale-before").mkdir()
    before = inventory.take()
    (tmp_path / "ale-after").mkdir()
    assert inventory.left_since(before)["folders"] == {str(tmp_path / "ale-after")}


class FakeBox:
    """A sandbox that answers `echo`, until it is lost."""

    def __init__(self):
        self.lost = False
        self.lie = ""

    def run(self, command, timeout=None):
        if self.lost:
            raise SandboxLost("it died")
        answer = self.lie or command.removeprefix("echo ") + "\n"
        return argparse.Namespace(output=answer, exit_code=0)

    def kill_processes(self):
        pass


def breach(arena):
    raise Breach("it is out")


def death(arena):
    arena.box.lost = True
    return "nothing"


@pytest.mark.parametrize(
    ("play", "survived", "seen"),
    [(lambda arena: "no", True, "no"), (breach, False, "it is out"), (death, False, "it died")],
)
def test_an_attack_is_survived_if_it_is_stopped_and_the_sandbox_lives(play, survived, seen):
    arena = Arena(None, SPEC, FakeBox(), 0.1)
    with siege.Neighbour(FakeBox()) as neighbour:
        trial = siege._try(Attack("a", "kind", "it", play), arena, neighbour, quiet_commands=1)
    assert trial.survived is survived and seen in trial.seen


def test_a_neighbour_that_is_answered_wrongly_is_noticed():
    box = FakeBox()

    def confuse(arena):
        box.lie = "7\n7\n"
        neighbour.next_p95_ms(2)
        box.lie = ""
        return "nothing"

    with siege.Neighbour(box) as neighbour:
        attack = Attack("a", "kind", "it", confuse)
        trial = siege._try(attack, Arena(None, SPEC, FakeBox(), 0.1), neighbour, quiet_commands=1)
    assert not trial.survived and "neighbour" in trial.seen


def test_a_neighbour_that_is_lost_is_an_error():
    box = FakeBox()
    with siege.Neighbour(box) as neighbour:
        box.lost = True
        with pytest.raises(SandboxLost, match="neighbour"):
            neighbour.next_p95_ms(1000)


def test_hostile_episodes_play_every_attack_equally_often_in_another_order_each_time():
    count = len(hostile.ATTACKS)
    drawn = list(hostile.in_random_order("agent", 2 * count))
    first, second = drawn[:count], drawn[count:]
    assert {*first} == {*second} == {*hostile.ATTACKS} and first != second
    assert drawn == list(hostile.in_random_order("agent", 2 * count))


def test_root_is_not_blamed_for_what_root_may_do():
    tried = {attack.name for attack in hostile.in_random_order("root", len(hostile.ATTACKS))}
    spared = {attack.name for attack in hostile.ATTACKS} - tried
    assert "gives a file to root" in spared and len(spared) == 7


class CountingRuntime:
    """Starts real sandboxes, and remembers them."""

    def __init__(self, real):
        self._real, self.name, self.started = real, real.name, []

    def start(self, spec, labels):
        self.started.append(self._real.start(spec, labels))
        return self.started[-1]


@pytest.fixture
def runtime():
    try:
        return CountingRuntime(pick_runtime("auto", hostile.SPEC))
    except SandboxStartError as error:
        pytest.skip(f"needs a sandbox runtime: {error}")


def test_a_sandbox_that_an_attack_ends_is_replaced_and_counted(runtime):
    with hostile.Reused(runtime, hostile.SPEC) as reused:
        reused.suffer(Attack("a", "kind", "it", breach))
        reused.play_oracle(0)
        assert reused.counts == {"breaches": 1} and len(runtime.started) == 1
        reused.suffer(Attack("b", "kind", "it", lambda arena: arena.box.close() or "gone"))
        reused.play_oracle(1)
        assert reused.counts == {"breaches": 1, "replaced": 1} and len(runtime.started) == 2


def test_an_oracle_that_does_not_earn_1_is_counted(runtime, monkeypatch):
    def play_nothing(family, box, task):
        key = EpisodeKey("eval", 0, 0, task)
        policy = ScriptedPolicy([family.world.nothing])
        return play(family.checked(task, box), policy, key, AgentLimits(turns=1)), None

    monkeypatch.setattr(hostile, "play_oracle", play_nothing)
    with hostile.Reused(runtime, hostile.SPEC) as reused:
        reused.play_oracle(0)
        assert reused.counts == {"unpaid": 1} and len(runtime.started) == 1


def test_what_is_not_known_is_refused(capsys):
    with pytest.raises(SystemExit):
        program.main(["--only=speed"])
    assert "'speed': choose among latency" in capsys.readouterr().err


def test_a_part_that_fails_does_not_keep_others_from_being_measured(monkeypatch, capsys):
    def broken(name, plan):
        raise OSError("no disk")

    parts = {"crowd": broken, "starts": lambda name, plan: [Figure("commands_run", "", 7)]}
    monkeypatch.setattr(program, "PARTS", parts)
    monkeypatch.setattr(program, "PROBES", {"some": lambda spec: None})
    monkeypatch.setattr("sys.argv", [])
    assert program.main(["--runtimes=some", "--only=crowd,starts"]) == 1
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer["failures"] == {"some: crowd": "OSError: no disk"}
    assert answer["commands_run"] == answer["runtimes"]["some"]["commands_run"] == 7


def measured(name: str, parts: str, monkeypatch, capsys) -> dict:
    if reason := program.PROBES[name](SPEC):
        pytest.skip(f"{name}: {reason}")
    monkeypatch.setattr(program, "QUICK", TINY)
    assert program.main(["--quick", f"--runtimes={name}", f"--only={parts}"]) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    return answer["runtimes"][name] | {"attacks": answer["attacks"]}


@pytest.mark.parametrize("name", program.PROBES)
def test_starts_and_a_crowd_are_measured(name, monkeypatch, capsys):
    figures = measured(name, "starts,crowd", monkeypatch, capsys)
    assert (figures["commands_run"], figures["commands_failed"]) == (12, 0)
    wanted = {"warm_start_ms_p50", "reset_ms_p50", "snapshot_ms_p50", "restore_ms_p50"}
    assert all(figures[key] > 0 for key in {*wanted, "cold_start_ms_p50", "crowd_pss_mb_p50"})
    assert ("docker_start_ratio" in figures) is (name == "docker")


def test_deaths_leaks_and_hostile_episodes_are_measured(monkeypatch, capsys):
    figures = measured("bubblewrap", "deaths,leaks,hostile", monkeypatch, capsys)
    assert (figures["hostile_episodes"], figures["hostile_oracles_unpaid"]) == (6, 0)
    assert (figures["leaked_objects"], figures["sibling_episodes_changed"]) == (0, 0)
    assert figures["attacks_tried"] == figures["attacks_survived"] == len(figures["attacks"]) >= 5
    assert 0 < figures["detect_s_p95"] < figures["replace_s_p95"]
