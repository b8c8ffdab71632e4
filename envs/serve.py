"""Serves sandboxes, and environments in them over GEM's routes (make, reset, step, close, list).

python -m ale_jax.envs.serve [--gem-python .venv-gem/bin/python] [options of `ale-sandbox serve`]
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Mapping, Sequence

from ale_jax.config.worlds import Domain
from ale_jax.sandbox.api import Sandbox, SandboxError
from ale_jax.sandbox.cli.local import run_service
from ale_jax.sandbox.cli.parser import make_parser, spec_of
from ale_jax.sandbox.service import gem
from ale_jax.worlds.bridges.process import Game, names_of
from ale_jax.worlds.families import open_families
from ale_jax.worlds.gym import AsGem


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("ale_jax.envs.serve", add_help=False, allow_abbrev=False)
    parser.add_argument("--gem-python")
    own, rest = parser.parse_known_args(argv)
    arguments = make_parser().parse_args(["serve", *rest])
    try:
        return run_service(arguments, [gem.front(worlds(own.gem_python), spec_of(arguments))])
    except (SandboxError, ValueError, OSError) as error:
        print(f"ale_jax.envs.serve: {error}", file=sys.stderr)
        return 1


def worlds(gem_python: str | None) -> Mapping[str, gem.EnvFactory]:
    """The shell tasks by env_id and, if `gem_python` is given, the games of its gem-llm.

    A game does not use its sandbox, which only gives it an owner and a lifetime.
    """
    shell = (Domain("shell"),)
    families = open_families(shell)
    offered: dict[str, gem.EnvFactory] = {
        f"shell:{name}": functools.partial(AsGem, families[name]) for name in families.of(*shell)
    }
    if gem_python:
        for name in names_of("gem", gem_python):
            offered[name] = functools.partial(_game, name, gem_python)
    return offered


def _game(name: str, python: str, sandbox: Sandbox) -> Game:
    return Game("gem", name, python)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
