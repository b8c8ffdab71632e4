"""Roles: actors of one kind, such as rollout workers, that Ray places on the nodes of a cluster."""

from __future__ import annotations

import dataclasses
from typing import Any

import ray
from ray.actor import ActorHandle

from ale_jax.config.rollout import PlacementConfig


@dataclasses.dataclass(frozen=True)
class Role:
    """What an actor is started for. name: of one actor, in messages. actor: the class. count:
    number of actors. concurrency: calls that an actor answers at once. placement: of each actor."""

    name: str
    actor: type
    count: int
    concurrency: int
    placement: PlacementConfig


def start_actor(role: Role, *arguments: Any) -> ActorHandle:
    """Lets Ray place an actor of this role, which is made with `arguments`. Returns at once: the
    actor's first answer comes when a node has room for it.

    Ray does not restart it. Who holds it decides, because only he knows what it was doing.
    """
    placement = role.placement
    options = {
        "num_cpus": placement.cpus,
        "memory": placement.memory_mb << 20,
        "resources": placement.custom_resources,
        "label_selector": placement.node_labels,
        "max_concurrency": role.concurrency,
        "scheduling_strategy": "SPREAD",
    }
    return ray.remote(role.actor).options(**options).remote(*arguments)


def shortage(placement: PlacementConfig) -> str:
    """Returns what an actor needs, and which of it the cluster has not, in words."""
    needs, labels = _needs(placement), placement.node_labels
    nodes = [node for node in ray.nodes() if node["Alive"]]
    labelled = [node for node in nodes if labels.items() <= node["Labels"].items()]
    large = [node for node in labelled if _offers(node["Resources"], needs)]
    wanted = _listed(needs) + "".join(f", label {text}" for text in placement.labels)
    if large:
        free = ray.available_resources()
        left = _listed({name: free.get(name, 0.0) for name in needs})
        found = f"{len(large)} of {len(nodes)} nodes could hold it; free in the cluster: {left}"
    elif labelled:
        lacking = {
            name: amount
            for name, amount in needs.items()
            if not any(_offers(node["Resources"], {name: amount}) for node in labelled)
        }
        found = f"none of {len(labelled)} nodes has {_listed(lacking or needs)}"
    else:
        found = f"none of {len(nodes)} nodes has the label {' and '.join(placement.labels)}"
    return f"it needs {wanted}; {found}"


def _needs(placement: PlacementConfig) -> dict[str, float]:
    memory = {"memory": float(placement.memory_mb << 20)} if placement.memory_mb else {}
    return {"CPU": placement.cpus, **memory, **placement.custom_resources}


def _offers(resources: dict[str, float], needs: dict[str, float]) -> bool:
    return all(resources.get(name, 0.0) >= amount for name, amount in needs.items())


def _listed(amounts: dict[str, float]) -> str:
    shown = (
        f"memory {amount / (1 << 20):.0f} MiB" if name == "memory" else f"{name} {amount:g}"
        for name, amount in amounts.items()
    )
    return ", ".join(shown)
