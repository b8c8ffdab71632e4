"""Hostile episodes: every attack in random order, each followed by an oracle's episode in the same
sandbox. Whatever the attack did, the oracle must earn 1."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

import numpy as np

from ale_jax.agent.transcripts import play_oracle
from ale_jax.config.worlds import Domain
from ale_jax.records import Task
from ale_jax.sandbox.api import Runtime, SandboxError
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.status import STATUS_RULES
from ale_jax.worlds.families import open_families
from benchmarks.sandbox.attacks.attack import USERS, Arena, Attack, Breach
from benchmarks.sandbox.attacks.catalogue import ATTACKS
from benchmarks.sandbox.findings import Figure, Finding, say
from benchmarks.sandbox.plan import Plan
from benchmarks.sandbox.siege import LABELS, SPEC

SEED = 0
EFFORT = 0.1  # of each attack, because here it is their number that counts
PROGRESS = 50  # episodes


def measure(name: str, plan: Plan) -> list[Finding]:
    counts: Counter[str] = Counter()
    for user in USERS:
        counts += play(name, user, plan.hostile_episodes)
    return [
        Figure("hostile_episodes", "hostile episodes", len(USERS) * plan.hostile_episodes),
        Figure("hostile_oracles_unpaid", "oracles after them that did not earn 1", counts[UNPAID]),
        Figure("hostile_breaches", "attacks in them that were not survived", counts[BREACHES]),
        Figure("hostile_replaced", "sandboxes lost in them and replaced", counts[REPLACED]),
    ]


def play(name: str, user: str, count: int) -> Counter[str]:
    """Plays `count` hostile episodes of a user; returns the counts of `Reused`."""
    spec = dataclasses.replace(SPEC, user=user)
    with Reused(pick_runtime(name, spec), spec) as reused:
        for number, attack in enumerate(in_random_order(user, count)):
            reused.suffer(attack)
            reused.play_oracle(number)
            if (number + 1) % PROGRESS == 0:
                so_far = dict(reused.counts) or "all well"
                say(f"{name}: {number + 1} hostile episodes as {user}: {so_far}")
    return reused.counts


def in_random_order(user: str, count: int) -> Iterator[Attack]:
    """`count` attacks: all that a user may try in random order, then all in another order."""
    attacks = [attack for attack in ATTACKS if user in attack.users]
    rng = np.random.default_rng(SEED)
    order: list[int] = []
    for _ in range(count):
        order = order or rng.permutation(len(attacks)).tolist()
        yield attacks[order.pop()]


UNPAID, BREACHES, REPLACED = "unpaid", "breaches", "replaced"


class Reused:
    """A sandbox that is reset after each attack, and replaced only if it is lost.

    counts: of oracles UNPAID, of BREACHES, and of sandboxes REPLACED.
    """

    def __init__(self, runtime: Runtime, spec: SandboxSpec):
        self.counts: Counter[str] = Counter()
        self._runtime, self._families = runtime, list(open_families((Domain("shell"),)))
        self._last: Attack | None = None
        self._arena = Arena(runtime, spec, runtime.start(spec, LABELS), EFFORT)

    def __enter__(self) -> Reused:
        return self

    def __exit__(self, *exc: object) -> None:
        self._arena.box.close()

    def suffer(self, attack: Attack) -> None:
        """Plays an attack. What it leaves running goes on until the oracle's episode begins."""
        self._last = attack
        try:
            self._arena.box.reset()  # an attack is played in a sandbox without another's files
            attack.play(self._arena)
        except (Breach, SandboxError, OSError) as error:
            self._note(BREACHES, f"{type(error).__name__}: {error}")

    def play_oracle(self, number: int) -> None:
        """Plays the oracle's episode of another task each time."""
        family = self._families[number % len(self._families)]
        task = Task(family.name, number, "train")
        episode, _ = play_oracle(family, self._arena.box, task)
        if STATUS_RULES[episode.status].infra:
            self._note(REPLACED, f"{episode.status}: {episode.detail}")
            self._arena.box.close()
            box = self._runtime.start(self._arena.spec, LABELS)
            self._arena = dataclasses.replace(self._arena, box=box)
            episode, _ = play_oracle(family, box, task)
        if episode.reward != 1.0:
            self._note(UNPAID, f"{task} earned {episode.reward}: {episode.status} {episode.detail}")

    def _note(self, what: str, detail: str) -> None:
        self.counts[what] += 1
        attack = f"{self._last.kind}: {self._last.name}" if self._last else "no attack"
        say(f"{self._runtime.name}: {what}, after {attack}: {detail}")
