"""Where on the users' Ray cluster the actors of a role are placed."""

from __future__ import annotations

import dataclasses
import re

from ale_jax.algo.hypers import require_at_least, require_range

RESOURCE = re.compile(r"([\w.:-]+)=(\d+(?:\.\d+)?)")
LABEL = re.compile(r"([\w./-]+)=([\w.-]+)")
OWN_FIELDS = ("CPU", "GPU", "memory", "object_store_memory")  # Ray has options for them


@dataclasses.dataclass(frozen=True)
class PlacementConfig:
    """What Ray sets aside for each worker, and which nodes may hold one. The workers are spread
    over these nodes. Without --ray-address there is one node, which holds all of them.

    cpus: CPUs of each worker.
    memory_mb: MiB of memory of each worker and its sandboxes, so that a node gets no more workers
        than it has memory for; 0: it is not counted.
    resources: custom resources of each worker as NAME=AMOUNT, such as "sandbox=1" for nodes that
        were started with --resources='{"sandbox": 8}'.
    labels: labels that a node must have, as KEY=VALUE, such as "pool=sandboxes" for nodes that were
        started with --labels=pool=sandboxes.
    """

    cpus: float = 1.0
    memory_mb: int = 0
    resources: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_range("cpus", self.cpus, 0.01, 1024.0, "a node without CPUs must get no worker")
        require_at_least(0, self, "memory_mb")
        for text in self.resources:
            found = RESOURCE.fullmatch(text)
            if not found or not float(found[2]) or found[1] in OWN_FIELDS:
                raise ValueError(f"resources {text!r}: write NAME=AMOUNT, such as sandbox=1")
        for text in self.labels:
            if not LABEL.fullmatch(text):
                raise ValueError(f"labels {text!r}: write KEY=VALUE, such as pool=sandboxes")
        for name, amount in {"cpus": self.cpus, **self.custom_resources}.items():
            if amount > 1 and amount != int(amount):
                raise ValueError(f"{name} {amount} must be whole, as Ray divides only one in parts")

    @property
    def custom_resources(self) -> dict[str, float]:
        return {name: float(amount) for name, amount in _pairs(self.resources)}

    @property
    def node_labels(self) -> dict[str, str]:
        return dict(_pairs(self.labels))


def _pairs(texts: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (text.partition("=") for text in texts)]
