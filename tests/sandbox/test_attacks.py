"""Hostile commands: what they reach, how much they take, and that the next one still works.

The attacks are those of the benchmark (benchmarks/sandbox/attacks), which plays them beside a
neighbour.
"""

import threading
import time

import pytest

from benchmarks.sandbox.attacks.attack import Arena, Breach, refused, require_alive
from benchmarks.sandbox.attacks.catalogue import ATTACKS
from tests.sandbox.conftest import SPEC

pytestmark = pytest.mark.each_runtime

EFFORT = 0.1


@pytest.mark.heavy
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: f"{attack.kind}: {attack.name}")
def test_an_attack_is_survived(runtime, box, attack):
    assert attack.play(Arena(runtime, SPEC, box, EFFORT))
    box.kill_processes()
    require_alive(box)


@pytest.mark.parametrize("command", ["true", "no-such-program"])
def test_an_attack_that_succeeds_or_cannot_be_tried_is_not_survived(runtime, box, command):
    attack = refused("it", "kind", command, "nothing")
    with pytest.raises(Breach, match="exit code"):
        attack.play(Arena(runtime, SPEC, box, EFFORT))


def test_every_attack_has_a_name_of_its_own():
    names = [(attack.kind, attack.name) for attack in ATTACKS]
    assert len(names) == len(set(names))


def test_redefined_builtins_do_not_cost_the_session(box):
    names = ("builtin", "eval", "printf", "read", "unset", "command", "test", "exit")
    box.run("x=5; " + "; ".join(f"{name}() {{ echo no; }}" for name in names))
    assert box.run("echo $x").output == "5\n"


def test_trace_and_strictness_do_not_cost_the_session(box):
    box.run("x=5; set -xu; trap 'false' ERR; IFS=0123456789; cd /tmp")
    assert box.run('echo "$x$PWD"').output.endswith("5/tmp\n")


@pytest.mark.heavy
def test_a_sandbox_from_a_thread_outlives_the_thread(runtime):
    started = []
    thread = threading.Thread(target=lambda: started.append(runtime.start(SPEC, {})))
    thread.start()
    thread.join()
    time.sleep(0.2)
    with started[0] as sandbox:
        require_alive(sandbox)


@pytest.mark.heavy
def test_sandboxes_run_side_by_side(runtime):
    def play(number: int) -> None:
        with runtime.start(SPEC, {}) as sandbox:
            for _ in range(20):
                answers[number].add(sandbox.run(f"x={number}; echo $x").output)

    answers = [set() for _ in range(4)]
    threads = [threading.Thread(target=play, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [{f"{number}\n"} for number in range(4)]
