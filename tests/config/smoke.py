"""The values of the smoke config, and changes to them."""

import copy
import importlib

SMOKE = importlib.import_module("ale_jax.configs.smoke").get_config().to_dict()


def smoke_with(changes):
    """The smoke config as a plain dict; changes by dotted names."""
    values = copy.deepcopy(SMOKE)
    for name, value in changes.items():
        *sections, leaf = name.split(".")
        holder = values
        for section in sections:
            holder = holder[section]
        holder[leaf] = value
    return values
