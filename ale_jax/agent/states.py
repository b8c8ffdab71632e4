"""States that took long to get to, kept so that the next episode need not."""

from __future__ import annotations

import threading

from ale_jax.records import Opening, Task
from ale_jax.sandbox.saved_state import SavedState

Key = tuple[Task, Opening]

# A command takes a millisecond, a snapshot of some megabytes and its way back fifty, and what the
# session holds beside files may turn out to be lost: so a state is kept where the replay is slow.
SLOW_S = 0.2
MAX_BYTES = 64 << 20
MAX_STATES = 1024  # their keys hold all that was read on the way there


class StateMemory:
    """By task and opening; those not used for longest are forgotten first. Thread-safe."""

    def __init__(self, slow_s: float = SLOW_S, max_bytes: int = MAX_BYTES):
        """slow_s: replays that take longer are worth keeping."""
        self._slow_s, self._max_bytes = slow_s, max_bytes
        self._states: dict[Key, SavedState | None] = {}  # None: files alone do not bring it back
        self._lock = threading.Lock()

    def get(self, key: Key) -> SavedState | None:
        with self._lock:
            if self._states.get(key) is None:
                return None
            self._states[key] = self._states.pop(key)  # the last one used stands last
            return self._states[key]

    def wants(self, key: Key, seconds: float) -> bool:
        """Whether a state is to be kept that took `seconds` to get to."""
        with self._lock:
            return seconds > self._slow_s and key not in self._states

    def keep(self, key: Key, state: SavedState | None) -> None:
        """state: None if it cannot be put back, and is not to be tried again."""
        with self._lock:
            self._states[key] = state
            while self._bytes() > self._max_bytes or len(self._states) > MAX_STATES:
                del self._states[next(iter(self._states))]

    def _bytes(self) -> int:
        return sum(len(state.files) for state in self._states.values() if state is not None)
