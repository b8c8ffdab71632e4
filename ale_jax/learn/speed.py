"""How fast the updates of a step were."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.model import LoraShape
from ale_jax.model.arithmetic import gradient_flops
from ale_jax.records import Batch


class Stopwatch:
    """The seconds from its making until arrays are computed, whatever the host does meanwhile."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._began = clock, clock()
        self._seconds: concurrent.futures.Future[float] = concurrent.futures.Future()

    def stop_with(self, arrays: Any) -> None:
        """Stops the clock when `arrays` are there, and does not wait for them."""
        threading.Thread(target=self._wait, args=(arrays,), daemon=True).start()

    def _wait(self, arrays: Any) -> None:
        try:
            jax.block_until_ready(arrays)
            self._seconds.set_result(self._clock() - self._began)
        except Exception as error:  # raised where it is waited for
            self._seconds.set_exception(error)

    def seconds(self) -> float:
        """Waits for the arrays. Errors: those of their computation."""
        return self._seconds.result()


def speed(
    batches: Sequence[Batch], seconds: float, shape: PolicyShape, lora: LoraShape, peak: float
) -> dict[str, float]:
    """Returns figures of updates that computed these batches in so many seconds.

    time/update_s: these. train_tokens_per_second: tokens of the batches, prompts and observations
    included and padding not. mfu: the arithmetic that these tokens need (`gradient_flops`), divided
    by what the devices could have done; absent if that is unknown. peak: their FLOP/s together, or
    0.
    """
    real = [batch.segment_BT > 0 for batch in batches]
    tokens = sum(int(real_BT.sum()) for real_BT in real)
    keys = sum(
        int(np.sum(batch.position_BT[real_BT] + 1))
        for batch, real_BT in zip(batches, real, strict=True)
    )
    figures = {"time/update_s": seconds, "train_tokens_per_second": tokens / seconds}
    if peak:
        figures["mfu"] = tokens * gradient_flops(shape, keys / tokens, lora) / seconds / peak
    return figures
