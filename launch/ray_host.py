"""One process of training on a host of a TPU slice: its line, its variables, its life and its end.

`ray_slices.py` starts them. Nothing here needs a cluster.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

from ray.util.tpu import get_tpu_coordinator_env_vars

POLL_S = 0.5  # between two looks at a process
OUTPUT_BYTES = 1 << 20  # at most, of each look

DONE, BUG, FAILED, STOPPED = 0, 1, 2, 130  # exit codes of training
LOST = -1  # instead of one, of a host that was lost

# Which slices belong together. libtpu waits for those that these name, also if they are gone.
MULTISLICE = tuple(get_tpu_coordinator_env_vars("", 1, 0))
# What Ray tells its own worker. Training may start a Ray of its own, and has all chips of its host.
OF_RAYS_WORKER = ("RAY_JOB_ID", "RAY_RAYLET_PID", "TPU_VISIBLE_CHIPS")

# For `sh`; its arguments are a folder and the line. When a worker of Ray ends, Ray kills its
# children, but not theirs: this shell, but not the line. That gets SIGTERM when stdin ends, and so
# once at most, since training would end at once when it gets a second one.
ON_HOST = """
cd "$1" || exit
shift
exec 3<&0
"$@" </dev/null 3<&- & run=$!
{ cat <&3; kill "$run"; } >/dev/null 2>&1 & waits=$!
wait "$run"; code=$?
kill "$waits" 2>/dev/null
exit "$code"
"""


@dataclasses.dataclass(frozen=True)
class Job:
    """What is trained, on how many slices.

    hosts: of each slice. port: of the coordinator. arguments: of training, without the process's
    place. Processes are numbered by slice, and by host within a slice.
    """

    topology: str
    accelerator: str
    slices: int
    hosts: int
    port: int
    arguments: tuple[str, ...]

    @property
    def processes(self) -> int:
        return self.slices * self.hosts

    def place(self, process: int) -> str:
        return f"slice {process // self.hosts}, worker {process % self.hosts}"

    def line(self, process: int, coordinator: str) -> list[str]:
        place = [
            f"--coordinator={coordinator}:{self.port}",
            f"--processes={self.processes}",
            f"--process={process}",
        ]
        return [".venv/bin/python", "-m", "ale_jax.launch", *self.arguments, *place]

    def multislice(self, process: int, coordinator: str) -> dict[str, str]:
        """The process's variables of MULTISLICE: none if there is only one slice."""
        if self.slices == 1:
            return {}
        return get_tpu_coordinator_env_vars(coordinator, self.slices, process // self.hosts)


def environment(host: Mapping[str, str], multislice: Mapping[str, str]) -> dict[str, str]:
    """Of a process of training. host: that of Ray's worker, which may name slices that are gone."""
    dropped = {*MULTISLICE, *OF_RAYS_WORKER}
    return {name: value for name, value in host.items() if name not in dropped} | multislice


class Host:
    """A process of training on this machine. It gets SIGTERM, and may save, when this object's own
    process ends."""

    def __init__(self, folder: str, line: Sequence[str], multislice: Mapping[str, str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process runs)
        self._process = subprocess.Popen(
            ["sh", "-c", ON_HOST, "ray_host", folder, *line],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=environment(os.environ, multislice),
            start_new_session=True,  # Ray also kills its worker's group
        )

    def look(self, offset: int) -> tuple[bytes, int | None]:
        """What it has written from `offset` on, and its exit code once it has ended."""
        try:
            code = self._process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            code = None
        return os.pread(self._output.fileno(), OUTPUT_BYTES, offset), code

    def stop(self) -> None:
        """Sends it SIGTERM, the first time."""
        self._process.stdin.close()


def is_lost(code: int) -> bool:
    """Whether the host was lost, or the process killed, for which a shell says 128 + the signal."""
    return code < 0 or (code > 128 and code != STOPPED)


def begins_again(codes: Sequence[int]) -> bool:
    """Whether the same line should run once more, when the processes have ended with `codes`."""
    if codes[0] == DONE or BUG in codes:
        return False
    return codes[0] == STOPPED or any(map(is_lost, codes))
