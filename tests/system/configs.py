"""The smoke config, and changes to it."""

import dataclasses

from ale_jax.config.run import RunConfig
from ale_jax.configs import smoke
from ale_jax.system.checks import check_sections, checked_config


def smoke_config(**sections) -> RunConfig:
    """The smoke config with fields replaced: smoke_config(rl={"alpha": 0.5}, seed=1)."""
    config = checked_config(smoke.get_config().to_dict())
    for name, change in sections.items():
        if isinstance(change, dict):
            change = dataclasses.replace(getattr(config, name), **change)
        config = dataclasses.replace(config, **{name: change})
    check_sections(config)
    return config
