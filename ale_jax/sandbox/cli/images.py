"""`ale-sandbox images`: the registry of this machine's Docker images."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from ale_jax.sandbox.cli import tables
from ale_jax.sandbox.docker_runtime import DockerRuntime
from ale_jax.sandbox.hub.ensure import MISSING, NEVER
from ale_jax.sandbox.hub.hub import Hub
from ale_jax.sandbox.spec import SandboxSpec


def images(arguments: argparse.Namespace) -> int:
    """Errors: SandboxStartError, ValueError."""
    return ACTIONS[arguments.action or "list"](Hub(), arguments)


def _list(hub: Hub, arguments: argparse.Namespace) -> int:
    tables.images(hub.list_images())
    return 0


def _build(hub: Hub, arguments: argparse.Namespace) -> int:
    outcomes = hub.ensure_all(arguments.names, MISSING if arguments.pull else NEVER)
    rows = [
        (o.name, f"{o.seconds:.1f} s", o.manifest.reference if o.manifest else o.trouble)
        for o in outcomes
    ]
    tables.show("", ("image", "took", ""), rows)
    return 1 if any(outcome.trouble for outcome in outcomes) else 0


def _try(hub: Hub, arguments: argparse.Namespace) -> int:
    runtime = DockerRuntime(SandboxSpec(image=arguments.name))
    verdict = hub.validate(arguments.name, lambda spec: runtime.start(spec, {}), runtime.name)
    print(f"{arguments.name}: {verdict.detail}")
    return 0 if verdict.ok else 1


def _remove(hub: Hub, arguments: argparse.Namespace) -> int:
    for name in arguments.names:
        print("\n".join(hub.remove(name)))
    return 0


def _prune(hub: Hub, arguments: argparse.Namespace) -> int:
    pruned = hub.prune(arguments.keep)
    rows = [(name, "removed") for name in pruned.removed]
    tables.show("", ("image", ""), [*rows, *((name, "in use") for name in pruned.in_use)])
    return 0


ACTIONS: Mapping[str, Callable[[Hub, argparse.Namespace], int]] = {
    "list": _list,
    "build": _build,
    "try": _try,
    "rm": _remove,
    "prune": _prune,
}
