"""Corridors in a real sandbox: who wins, what a wrong door shows, and attacks that earn nothing."""

import itertools

import numpy as np
import pytest

from ale_jax.agent.tools import bash, finish, render_tool_call
from ale_jax.envs.corridor.env import END, LOCKED, UNKNOWN
from ale_jax.envs.corridor.rooms import EXAMPLE, generate, oracle, parse, take
from ale_jax.records import Task
from ale_jax.sandbox.api import SandboxLost
from ale_jax.worlds.checked import WorldError
from tests.envs.test_shell_env import FilesInMemory
from tests.played_worlds import Played, play_oracle
from tests.sandbox.conftest import lease

SEED = 1
FAMILIES = [
    f"corridor{size}-{place}{retries}"
    for size, place, retries in itertools.product(
        ("-depth8", "-depth9-doors2", "-depth8-doors6"),
        ("late3", "early1", "spread2", "any2", "all"),
        ("", "-retries"),
    )
] + [EXAMPLE, "corridor-depth48-late3-distractors0"]


class Player:
    """Acts in a corridor of `family`."""

    def __init__(self, sandbox, family, seed=SEED):
        self.rooms = generate(family, seed)
        self.env = Played(family, sandbox)
        self.seen, _ = self.env.reset(seed)

    def act(self, call):
        """What is seen, and the info."""
        self.seen, reward, terminated, _, info = self.env.step(render_tool_call(call))
        assert (reward, terminated) == (0.0, False)
        return self.seen, info

    def run(self, command):
        return self.act(bash(command))[0]

    def finish(self, answer=""):
        seen, reward, terminated, truncated, _ = self.env.step(render_tool_call(finish(answer)))
        assert (seen, terminated, truncated) == ("", True, False)
        return reward

    def wrong(self, room):
        """A door of the room that does not lead on; any where all do."""
        doors = set(self.rooms.doors) - self.rooms.right[room]
        return min(doors or self.rooms.doors)


def doors_of(player, room):
    """The doors that the oracle takes up to `room`."""
    return player.rooms.taken[:room]


@pytest.mark.heavy
@pytest.mark.parametrize("family", FAMILIES)
def test_the_oracle_wins_and_the_wrong_doors_lose(sandbox, family):
    depth = parse(family).depth
    episode, transcript = play_oracle(sandbox, Task(family, SEED, "train"))
    assert (episode.reward, episode.turns) == (1.0, depth + 1)
    seen = [m.content for m in transcript.messages if m.role == "tool"]
    assert seen == [*generate(family, SEED).texts[1:], END]
    loser = Player(sandbox, family)
    for room in range(depth):
        loser.act(take(loser.wrong(room)))
    assert loser.finish() == 0.0


@pytest.mark.parametrize("family", ["corridor-late3", EXAMPLE])
def test_the_noisy_oracle_errs_twice_and_wins(sandbox, family):
    episode, transcript = play_oracle(sandbox, Task(family, SEED, "train"), noisy=True)
    assert (episode.reward, episode.turns) == (1.0, parse(family).depth + 3)
    assert sum(transcript.failed) == 2


def test_who_takes_any_doors_wins_as_often_as_chance_says(sandbox):
    rng, wins = np.random.default_rng(0), 0
    for seed in range(60):
        player = Player(sandbox, "corridor-depth8-doors2-early2", seed)
        for _ in range(8):
            player.act(take(player.rooms.doors[rng.integers(2)]))
        wins += player.finish()
    assert 7 <= wins <= 23  # a quarter of 60, within 2.4 standard deviations


def test_a_silent_failure_shows_what_a_success_shows(sandbox):
    """To the letter, in every room and at the end."""
    for place in ("late3", "early3", "all"):
        right, wrong = (Player(sandbox, f"corridor-depth8-{place}") for _ in range(2))
        views = []
        for player, door in ((right, right.rooms.taken.__getitem__), (wrong, wrong.wrong)):
            player.seen, _ = player.env.reset(SEED)
            views.append([player.seen, *[player.act(take(door(room))) for room in range(8)]])
            views[-1].append(player.finish())
        (*shown, won), (*also_shown, lost) = views
        assert shown == also_shown
        assert (won, lost) == (1.0, 0.0)


def test_one_wrong_door_among_those_that_decide_loses(sandbox):
    for fault in range(8):
        player = Player(sandbox, "corridor-depth8-spread3")
        for room, door in enumerate(player.rooms.taken):
            player.act(take(player.wrong(room) if room == fault else door))
        assert player.finish() == float(fault not in player.rooms.corridor.deciding(SEED))


def test_a_locked_door_says_so_and_costs_a_turn(sandbox):
    player = Player(sandbox, "corridor-depth8-late1-retries")
    for door in doors_of(player, 7):
        player.act(take(door))
    here = player.rooms.texts[7]
    for _ in range(2):
        seen, info = player.act(take(player.wrong(7)))
        assert (seen, info["failed"]) == (f"{LOCKED}\n{here}", False)
    assert player.act(take(player.rooms.taken[7]))[0] == END
    assert player.finish() == 1.0


def test_who_does_not_reach_the_end_loses(sandbox):
    player = Player(sandbox, "corridor-depth8-early1")
    for door in doors_of(player, 7):
        player.act(take(door))
    assert player.finish() == 0.0


def test_an_episode_cut_short_at_the_end_is_won_and_judged_once(sandbox):
    player = Player(sandbox, "corridor-depth8-all")
    for door in player.rooms.taken:
        player.act(take(door))
    assert player.run("echo left > door") == END  # there is no further door
    assert player.env.grade() == 1.0
    with pytest.raises(WorldError, match="needs a reset"):
        player.env.grade()


def test_a_command_that_takes_no_door_stays_and_is_shown(sandbox):
    player = Player(sandbox, "corridor-depth8-all")
    here = player.rooms.texts[0]
    assert player.run("ls") == f"door\n{here}"
    assert player.run("true") == here
    assert player.act(bash("cat nothing"))[1] == {"malformed": False, "failed": True}
    assert player.run("exit 3") == f"(no output)\n[exit 3]\n{here}"
    assert player.run(f"echo {player.rooms.taken[0]} | tee door").startswith(player.rooms.taken[0])
    assert player.seen.endswith(f"\n{player.rooms.texts[1]}")


@pytest.mark.parametrize("retries", ["", "-retries"])
def test_the_sandbox_holds_nothing_of_the_rooms(sandbox, retries):
    """Neither files nor variables of it name a light, or change with the seed."""
    look = "find . /tmp -type f; cat ./*; env | grep -v ^_= | sort"
    views = set()
    for seed in range(3):
        player = Player(sandbox, f"corridor-depth8-all{retries}", seed)
        for door in doors_of(player, 3):
            player.act(take(door))
        seen = player.run(look)
        assert seen.endswith(player.rooms.texts[3])
        views.add(seen.removesuffix(player.rooms.texts[3]))
    (view,) = views
    assert "./door" in view and "light" not in view


@pytest.mark.parametrize("retries", ["", "-retries"])
def test_a_command_takes_one_door_however_many_it_tries(sandbox, retries):
    """A loop cannot walk ahead, and cannot try what opens."""
    player = Player(sandbox, f"corridor-depth8-all{retries}")
    first, wrong = player.rooms.taken[0], player.wrong(0)
    loop = f"for d in {' '.join(player.rooms.taken)} {first}; do echo $d > door; sleep 0.01; done"
    assert player.run(loop) == player.rooms.texts[1]
    player = Player(sandbox, f"corridor-depth8-all{retries}")
    seen = player.run(f"echo {first} > door; cat door; sleep 0.05; cat door; echo {wrong} > door")
    after = f"{LOCKED}\n{player.rooms.texts[0]}" if retries else player.rooms.texts[1]
    assert seen == f"{first}\n{first}\n{after}"


def test_a_background_process_takes_one_door_a_turn(sandbox):
    player = Player(sandbox, "corridor-depth8-all")
    door = player.rooms.taken[0]
    loop = f"while :; do echo {door} > d; mv d door; done > /dev/null 2>&1 & sleep 0.1"
    views = [player.run(command).rpartition("\n")[2] for command in (loop, *["true"] * 5)]
    rooms = list(map(player.rooms.texts.index, views))
    assert max(np.diff([0, *rooms])) <= 1
    assert player.finish() == 0.0


ATTACKS = {
    "a state of ones own": "echo 8 > room; echo won > state; echo 1.0 > reward.txt; echo END > end",
    "all doors at once": "echo {all} > door",
    "all doors in lines": "printf '%s\\n' {all} > door",
    "another word": "echo 'the end' > door",
    "a pattern": "echo '*' > door",
    "a number": "echo 0 > door",
    "a path": "mkdir -p {door}; echo ./{door} > door",
    "bytes": "printf '\\xff\\x00{door}' > door",
    "a door in other letters": "echo {door} | tr a-z A-Z > door",
    "a link": "echo {door} > mine; ln -sf mine door",
    "a directory": "rm door; mkdir door; echo {door} > door/{door}",
    "a pipe": "rm door; mkfifo door",
    "a device": "rm door; ln -s /dev/zero door",
    "a file that is leased": f"echo {{door}} > door; {lease('door')} > /dev/null",
    "nothing": "rm door",
    "a file that cannot be read": "echo {door} > door; chmod 000 door",
    "a file that cannot be emptied": "echo {door} > door; chmod 555 .",
    "more than is read": "(printf '%4096s' ''; echo {door}) > door",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_is_no_door_opens_nothing_and_is_no_trouble(sandbox, name):
    player = Player(sandbox, "corridor-depth8-all")
    words = {"door": player.rooms.taken[0], "all": " ".join(player.rooms.taken)}
    for _ in range(2):
        assert player.run(ATTACKS[name].format(**words)).endswith(player.rooms.texts[0])
    player.run("chmod 755 . door; rm -rf door; true")
    assert player.act(take(player.rooms.taken[0]))[0] == player.rooms.texts[1]
    assert player.finish() == 0.0


def test_a_name_that_is_no_door_is_an_error(sandbox):
    player = Player(sandbox, "corridor-depth8-all")
    seen, info = player.act(take("attic"))
    assert seen == f"{UNKNOWN}\n{player.rooms.texts[0]}"
    assert info == {"malformed": False, "failed": True}
    down = Player(sandbox, "corridor-depth8-doors2-all")
    assert down.act(take("down"))[0].startswith(UNKNOWN)  # a door elsewhere


@pytest.mark.parametrize("answer", ["", "1", "won", "left", "the end", "0.0\n1.0"])
def test_an_answer_earns_nothing(sandbox, answer):
    assert Player(sandbox, "corridor-depth8-late1").finish(answer) == 0.0


def test_going_back_to_an_earlier_state_of_the_files_is_no_retry(sandbox):
    player = Player(sandbox, "corridor-depth8-early1")
    player.run("cp -a . /tmp/saved")
    player.act(take(player.wrong(0)))
    player.run("rm -rf ./*; cp -a /tmp/saved/. .")
    for door in player.rooms.taken:
        player.act(take(door))
    assert player.finish() == 0.0


def test_a_malformed_call_is_an_observation_and_nothing_runs(sandbox):
    player = Player(sandbox, "corridor-depth8-late1")
    seen, *_, info = player.env.step("echo left>door")
    assert seen == "error: no <tool_call> in the reply"
    assert info == {"malformed": True, "failed": True}
    assert player.run("true") == player.rooms.texts[0]


def test_an_episode_begins_anew_after_another(sandbox):
    player = Player(sandbox, "corridor-depth8-all")
    for call in oracle("corridor-depth8-all", SEED)[:3]:
        player.act(call)
    player.act(take(player.wrong(3)))
    player.run("touch left")
    player.seen, _ = player.env.reset(SEED)
    assert player.seen == player.rooms.instruction
    assert player.run("ls") == f"door\n{player.rooms.texts[0]}"
    for door in player.rooms.taken:
        player.act(take(door))
    assert player.finish() == 1.0  # what was wrong before is forgotten


@pytest.mark.parametrize("where", ["reset", "run"])
def test_a_lost_sandbox_is_lost(where):
    with pytest.raises(SandboxLost):
        Player(FilesInMemory(lost_in=where), "corridor-late3").run("true")


def test_a_malformed_family_is_refused_before_it_is_played():
    with pytest.raises(ValueError, match="depth 99 must be from 8 to 48"):
        Played("corridor-depth99-late3", FilesInMemory())
