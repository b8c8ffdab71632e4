"""The devices of a run, and what is divided over them."""

from __future__ import annotations

import dataclasses

from ale_jax.config.setting import Settings, setting

# Accelerators that a run can be planned for, with the GiB of one device that a program may use:
# the manufacturer's figure, less what the system and the compiler reserve.
# A TPU7x has two devices.
GPUS = ("h100", "h200")
CHIPS = {"v5e": 15.5, "v5p": 94.0, "v6e": 31.0, "tpu7x": 94.5, "h100": 75.0, "h200": 133.0}


@dataclasses.dataclass(frozen=True)
class HardwareConfig(Settings):
    """The hardware that the run is meant for.

    `ale-jax plan` computes whether the run fits on it, on whatever machine the command is given.
    """

    chip: str = setting(
        "",
        "the accelerator; empty, with devices 0: the local devices.",
        choices=("", *CHIPS),
    )
    devices: int = setting(
        0,
        "number of accelerators; 0: as many as there are locally.",
        at_least=0,
    )
    devices_per_process: int = setting(
        0,
        "accelerators of each process; 0: one process has all.",
        at_least=0,
    )

    @property
    def platform(self) -> str:
        """JAX's name of the chip's platform; empty for the local devices."""
        return ("gpu" if self.chip in GPUS else "tpu") if self.chip else ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.chip) != (self.devices > 0):
            raise ValueError(f"chip {self.chip!r} and devices {self.devices}: set both, or none")
        if self.devices % (self.devices_per_process or 1):
            raise ValueError(
                f"devices_per_process {self.devices_per_process} does not divide devices "
                f"{self.devices}"
            )


@dataclasses.dataclass(frozen=True)
class MeshShape(Settings):
    """Number of devices along each mesh axis, and what is divided over it."""

    data: int = setting(
        -1,
        "rows, with weights replicated; -1 takes all devices that the other axes leave.",
    )
    fsdp: int = setting(1, "rows, and weights along their width.", at_least=1)
    expert: int = setting(1, "rows, and the experts.", at_least=1)
    tensor: int = setting(1, "heads, feed-forward width and vocabulary.", at_least=1)
    context: int = setting(1, "the tokens of a row.", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data < 1 and self.data != -1:
            raise ValueError(f"data {self.data} must be at least 1, or -1 for all the rest")
