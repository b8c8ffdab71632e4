"""ale-jax new: writes the config of a run with given weights on given devices."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.fields import flat
from ale_jax.config.hardware import CHIPS, HardwareConfig, MeshShape
from ale_jax.config.run import RunConfig
from ale_jax.config.worlds import Domain
from ale_jax.model.sharding import (
    abstract_mesh,
    mesh_sizes,
    num_data_shards,
    param_shardings,
)
from ale_jax.model.sides import num_learners
from ale_jax.model.weights.shape import policy_shape
from ale_jax.system.checks import check_sections, config_with_weights, resolved_config
from ale_jax.system.engine_memory import engine_mesh
from ale_jax.system.plan import GIB, Plan, make_plan

AUTO = "auto"
ROWS = (8, 4, 2, 1)  # of a microbatch on each device
PAGES = (1, 2, 4)  # what the pages of the config are divided by
_DEVICES = re.compile(r"(\d+)x(\w+)")
# What the weights tell.
_TOLD = ("model.", "architecture", "tokenizer.vocab_size")
_FILE = '''"""As {base}, with {weights} on {hardware}.

Memory by `plan`: {gib:.1f} GiB of each device.
"""

from ml_collections import ConfigDict

from ale_jax.config.run import RunConfig


def get_config() -> ConfigDict:
    c = ConfigDict(RunConfig().to_json())
{fields}
    return c
'''


def new_config(values: Mapping[str, Any], weights: str, devices: str) -> str:
    """Returns the text of a config file: `values` with other weights, and with the mesh, pages and
    microbatches that fit the devices.

    devices: such as 8xh100; AUTO: those of this machine.

    Raises:
      ValueError: there are no such weights or devices, or nothing fits.
    """
    if not weights:
        raise ValueError("--weights is missing: give a folder, a .gguf file or a model's name")
    base = dataclasses.replace(resolved_config(values), hardware=_hardware(devices))
    config, plan = fitted(config_with_weights(base, weights))
    default = flat(RunConfig().to_json())
    fields = [
        f"    c.{name} = {_short(value)!r}"
        for name, value in flat(config.to_json()).items()
        if value != default[name] and not name.startswith(_TOLD)
    ]
    return _FILE.format(
        base=_in_docstring(base.name),
        weights=_in_docstring(config.weights),
        hardware=devices if devices != AUTO else "this machine",
        gib=plan.total / GIB,
        fields="\n".join(fields),
    )


def _in_docstring(text: str) -> str:
    """Names of files and configs may hold what would end the text, or be read as an escape."""
    return text.encode("unicode_escape").decode().replace('"', "'")


def _short(value: Any) -> Any:
    """Domains without what they have by default."""
    if not isinstance(value, tuple) or not all(_is_domain(each) for each in value):
        return value
    default = dataclasses.asdict(Domain("default"))
    return tuple({k: v for k, v in each.items() if v != default[k]} for each in value)


def _is_domain(value: Any) -> bool:
    return isinstance(value, Mapping) and "world" in value


def _hardware(devices: str) -> HardwareConfig:
    found = _DEVICES.fullmatch(devices)
    if devices == AUTO:
        return HardwareConfig()
    if not found or found[2] not in CHIPS or int(found[1]) < 1:
        raise ValueError(
            f"--devices={devices} must be {AUTO}, or a number and a chip, as in 8xh100: there are "
            f"{', '.join(CHIPS)}"
        )
    return HardwareConfig(found[2], int(found[1]))


def fitted(config: RunConfig) -> tuple[RunConfig, Plan]:
    """Returns the config with sizes that fit its devices, and its plan. Of the meshes, it takes the
    one that sends least between devices; then most pages, then the largest microbatches.

    ValueError if nothing fits, which names what takes most.
    """
    refused: ValueError | None = None
    shape = policy_shape(config, config.tokenizer.vocab_size)
    for mesh in _meshes(shape, num_learners(config)):
        try:
            _planned(config, mesh, PAGES[-1], ROWS[-1])
        except ValueError as error:
            refused = error
            continue
        for pages in PAGES:
            for rows in ROWS:
                with contextlib.suppress(ValueError):
                    return _planned(config, mesh, pages, rows)
    assert refused, "there is a mesh of all devices"
    raise refused


def _meshes(shape: PolicyShape, devices: int) -> list[MeshShape]:
    """Returns the meshes of all devices that divide the policy, from those that send least to those
    that hold least."""
    parts = [n for n in range(2, devices + 1) if devices % n == 0]
    meshes = [MeshShape(), *(MeshShape(fsdp=n) for n in parts[-1:])]
    for expert in parts if shape.is_moe else ():
        meshes.append(MeshShape(fsdp=devices // expert, expert=expert))
    for tensor in parts:
        meshes.append(MeshShape(fsdp=devices // tensor, tensor=tensor))
    return [mesh for mesh in meshes if _divides(mesh, shape, devices)]


def _divides(mesh: MeshShape, shape: PolicyShape, devices: int) -> bool:
    try:
        param_shardings(shape, abstract_mesh(mesh_sizes(mesh, devices)))
    except ValueError:
        return False
    return True


def _planned(config: RunConfig, mesh: MeshShape, fewer: int, rows: int) -> tuple[RunConfig, Plan]:
    """ValueError if the sizes do not fit together, or the devices.

    fewer: what the pages are divided by. rows: of a microbatch on each device.
    """
    learner = abstract_mesh(mesh_sizes(mesh, num_learners(config)))
    of_engine, shards = map(num_data_shards, (engine_mesh(config, learner), learner))
    engine = dataclasses.replace(
        config.engine,
        max_sequences=_multiple(config.engine.max_sequences, of_engine),
        pages=_multiple(config.engine.pages // fewer, of_engine),
    )
    # A step does not fill more rows than its trajectories have tokens for.
    tokens = config.rl.groups_per_step * config.rl.group_size * engine.max_sequence_length
    filled = max(tokens // config.learn.pack_length // shards, 1)
    learn = dataclasses.replace(config.learn, microbatch_rows=min(rows, filled) * shards)
    changed = dataclasses.replace(config, mesh=mesh, engine=engine, learn=learn)
    check_sections(changed)
    plan = make_plan(changed)
    plan.require_fit()
    return changed, plan


def _multiple(number: int, of: int) -> int:
    return -(-number // of) * of
