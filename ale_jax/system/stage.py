"""A stage before reinforcement learning: updates until what is measured says that it is enough."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import jax

from ale_jax.learn.finite import SkippedUpdates
from ale_jax.learn.step import router_figures

PROBE_SUCCESS, HELD_OUT_LOSS = "probe_success", "held_out_loss"
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Stage(Generic[T]):
    """How a stage is made. update: makes one from an element of the stage's updates, and returns
    sums that may still be on the device. figures: of an update's sums. measure: figures of the
    policy that need no episode. log: is told step and figures, at each measurement."""

    update: Callable[[T], Mapping[str, Any]]
    figures: Callable[[Mapping[str, Any]], Mapping[str, float]]
    measure: Callable[[], Mapping[str, float]]
    log: Callable[[int, dict[str, float]], None]

    def run(self, updates: Iterator[T], ending: Ending, skipped: SkippedUpdates) -> str:
        """Makes the updates, at least one; returns why they ended. RunFailed by `skipped`."""
        unread: list[Mapping[str, Any]] = []
        following: T | None = next(updates)
        for step in itertools.count(1):
            assert following is not None, "the loop ends with the last update"
            sums = self.update(following)
            unread.append(sums)
            following = next(updates, None)
            over = ending.over(step, is_last=following is None)
            if step % ending.every and not over:
                continue
            measured = self.measure()
            figures = self.figures(sums)
            self.log(step, {**figures, **measured, **router_figures(jax.device_get(sums))})
            for number, each in enumerate(jax.device_get(unread), step + 1 - len(unread)):
                skipped.note(each, number)
            unread.clear()
            if reason := ending.reached(measured):
                return f"{reason} after {step} updates"
            if over:
                return over
        raise AssertionError("itertools.count has no end")


class Ending:
    """When a stage ends. every: updates between two measurements. epochs: whose end is that of the
    updates. max_steps: None: it does not end it. patience, target_success: as in
    `WarmStartConfig`."""

    def __init__(
        self,
        every: int,
        epochs: int,
        patience: int,
        max_steps: int | None = None,
        target_success: float = 1.0,
    ):
        self.every, self._epochs, self._patience = every, epochs, patience
        self._max_steps, self._target_success = max_steps, target_success
        self._lowest, self._waited = math.inf, 0

    def over(self, step: int, is_last: bool) -> str:
        """Returns why an update is the last one, whatever is measured; "" if it is not."""
        if is_last:
            return f"epochs {self._epochs} are over after {step} updates"
        return f"max_steps {step} is reached" if step == self._max_steps else ""

    def reached(self, measured: Mapping[str, float]) -> str:
        """Returns why what was measured ends the stage; "" if it goes on."""
        success = measured.get(PROBE_SUCCESS)
        if success is not None and success >= self._target_success:
            return f"target_success {self._target_success} is reached"
        loss = measured.get(HELD_OUT_LOSS)
        if loss is None or not self._patience:
            return ""
        self._waited = 0 if loss < self._lowest else self._waited + 1
        self._lowest = min(loss, self._lowest)
        if self._waited < self._patience:
            return ""
        return f"held_out_loss has not fallen below {self._lowest:.4f} for {self._waited} times"
