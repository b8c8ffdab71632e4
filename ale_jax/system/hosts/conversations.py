"""The conversations of a follower's engine, as the controller in the first process sees them.

The controller opens and closes conversations, and gets the trajectory. Whether an agent waits for a
reply is told whenever it changes, so that nothing is asked in between.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ale_jax.config.engine import Sampling
from ale_jax.data.trajectory_frames import encode_frame, episode_of, read_frames
from ale_jax.engine.request import EngineStopped
from ale_jax.gateway.custody.ledger import Activity, AgentClock, Ledger
from ale_jax.records import Episode, EpisodeKey, Task, Trajectory, Turn
from ale_jax.system.hosts.connection import Connection, Frame, Gone
from ale_jax.system.hosts.engine_times import EngineTimes, Observer, TimesFromPeer

ANSWER_S = 30.0  # of a follower, to a question that its devices have no part in
TURN_ARRAYS = ("prompt_ids", "action_ids", "logp_mu", "logp_old", "version")


@dataclasses.dataclass
class _Seen:
    agent: AgentClock
    start_version: int | None = None


class RemoteLedger:
    """The `Conversations` of a follower. All methods but `sampled_tokens` are called by one thread.

    If the follower is lost, its conversations are silent. The leader's log notices the loss.
    """

    def __init__(self, connection: Connection, observer: Observer | None = None):
        """observer: of the follower's engines, if these are on a timeline."""
        self._connection = connection
        self._times = TimesFromPeer(observer) if observer else None
        self._asked = 0.0
        self._answers: queue.Queue[Frame] = queue.Queue()
        self._seen: dict[str, _Seen] = {}
        self._tokens = 0
        threading.Thread(target=self._listen, name="conversations", daemon=True).start()

    def open(
        self,
        name: str,
        key: EpisodeKey,
        sampling: Sampling,
        prefix_turns: tuple[Turn, ...],
        redraw: int,
    ) -> None:
        fields = {"key": dataclasses.asdict(key), "sampling": dataclasses.asdict(sampling)}
        texts = [[turn.prompt_text, turn.action_text, turn.reward] for turn in prefix_turns]
        arrays = [getattr(turn, each) for turn in prefix_turns for each in TURN_ARRAYS]
        self._seen[name] = _Seen(AgentClock(time.monotonic()))
        self._ask({"do": "open", "name": name, "texts": texts, "redraw": redraw} | fields, arrays)

    def activity(self, name: str) -> Activity:
        return self._seen[name].agent.read(time.monotonic())

    def stop(self, name: str) -> None:
        self._ask({"do": "stop", "name": name})

    def replies(self, name: str) -> Sequence[tuple[float, float]]:
        return tuple(self._seen[name].agent.replies)

    def start_version(self, name: str) -> int | None:
        return self._seen[name].start_version

    def close(self, name: str, episode: Episode | None) -> Trajectory | None:
        del self._seen[name]
        header = {"do": "close", "name": name}
        if episode is None:
            with contextlib.suppress(EngineStopped):  # then it has ended anyway
                self._ask(header | {"episode": None})
            return None
        _, arrays = self._ask(header | {"episode": dataclasses.asdict(episode)})
        (trajectory,) = read_frames(io.BytesIO(arrays[0].tobytes()))
        return trajectory

    def sampled_tokens(self) -> int:
        return self._tokens

    def _ask(self, header: dict[str, Any], arrays: Sequence[np.ndarray] = ()) -> Frame:
        self._asked = time.monotonic()
        try:
            self._connection.send(header, arrays)
            return self._answers.get(timeout=ANSWER_S)
        except (Gone, queue.Empty) as error:
            raise EngineStopped(f"a process of this run does not answer: {error!r}") from error

    def _listen(self) -> None:
        with contextlib.suppress(Gone):
            while True:
                header, arrays = self._connection.receive()
                is_answer = header["kind"] == "answer"
                if self._times:
                    self._times.receive(header, self._asked if is_answer else None)
                if is_answer:
                    self._answers.put((header, arrays))
                elif seen := self._seen.get(header["name"]):
                    self._tokens = header["sampled_tokens"]
                    seen.start_version = header["start_version"]
                    turn = seen.agent.ask if header["kind"] == "asked" else seen.agent.answer
                    turn(time.monotonic())


class ConversationService:
    """Lets the controller use a follower's ledger, in a thread that ends with the connection."""

    def __init__(self, connection: Connection, ledger: Ledger, times: EngineTimes | None = None):
        """times: of the engines, if these are on a timeline."""
        self._connection, self._ledger, self._times = connection, ledger, times
        ledger.observe(self._tell)
        threading.Thread(target=self._serve, name="conversations", daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(Gone):
            while True:
                header, arrays = self._connection.receive()
                answer = self._do(header, arrays)
                self._connection.send({"kind": "answer"} | self._news(), answer)

    def _news(self) -> dict[str, Any]:
        return self._times.news() if self._times else {}

    def _do(self, header: dict[str, Any], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        name = header["name"]
        if header["do"] == "open":
            key, sampling = _key(header["key"]), Sampling(**header["sampling"])
            turns = _turns(header["texts"], arrays)
            self._ledger.open(name, key, sampling, turns, header["redraw"])
        elif header["do"] == "stop":
            self._ledger.stop(name)
        else:
            trajectory = self._ledger.close(
                name, header["episode"] and episode_of(header["episode"])
            )
            if trajectory is not None:
                frame = encode_frame(trajectory)
                assert frame is not None, "a trajectory of more than a gigabyte"
                return [np.frombuffer(frame, np.uint8)]
        return []

    def _tell(self, name: str, kind: str, start_version: int | None, sampled_tokens: int) -> None:
        fields = {"start_version": start_version, "sampled_tokens": sampled_tokens}
        with contextlib.suppress(Gone):
            self._connection.send({"kind": kind, "name": name} | fields | self._news())


def _key(fields: dict[str, Any]) -> EpisodeKey:
    return EpisodeKey(**fields | {"task": Task(**fields["task"])})


def _turns(texts: Sequence[Sequence[Any]], arrays: Sequence[np.ndarray]) -> tuple[Turn, ...]:
    width = len(TURN_ARRAYS)

    def named(number: int) -> dict[str, Any]:
        own = arrays[number * width : (number + 1) * width]
        return dict(zip(TURN_ARRAYS, own, strict=True))

    return tuple(
        Turn(
            **named(number),
            prompt_text=prompt,
            action_text=action,
            reward=reward,
        )
        for number, (prompt, action, reward) in enumerate(texts)
    )
