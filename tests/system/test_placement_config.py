"""Where workers may be placed, as it is written in a config."""

import pytest

from ale_jax.config.rollout import PlacementConfig
from tests.rows import each_row


def test_resources_and_labels_are_what_ray_is_given():
    placement = PlacementConfig(
        2.0, resources=("sandbox=1", "disk=0.5"), labels=("ray.io/market-type=spot",)
    )
    assert placement.custom_resources == {"sandbox": 1.0, "disk": 0.5}
    assert placement.node_labels == {"ray.io/market-type": "spot"}


@each_row(
    "fields, answer",
    [
        ({"cpus": 0.0}, r"cpus 0.0 must be in \[0.01, 1024.0\]"),
        ({"cpus": 1.5}, "cpus 1.5 must be whole"),
        ({"memory_mb": -1}, "memory_mb -1 must be at least 0"),
        ({"resources": ("sandbox",)}, "resources 'sandbox': write NAME=AMOUNT"),
        ({"resources": ("sandbox=0",)}, "resources 'sandbox=0': write NAME=AMOUNT"),
        ({"resources": ("sandbox=1.5",)}, "sandbox 1.5 must be whole"),
        ({"resources": ("CPU=2",)}, "resources 'CPU=2': write NAME=AMOUNT"),
        ({"labels": ("pool",)}, "labels 'pool': write KEY=VALUE"),
        ({"labels": ("pool=!spot",)}, "labels 'pool=!spot': write KEY=VALUE"),
    ],
)
def test_what_ray_would_not_understand_is_refused(fields, answer):
    with pytest.raises(ValueError, match=answer):
        PlacementConfig(**fields)
