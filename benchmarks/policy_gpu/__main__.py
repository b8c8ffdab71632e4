"""How close do engine and learner come to what one GPU can do, on layers of Qwen3-30B-A3B?

    python -m benchmarks.policy_gpu [--quick]

decode_floor_ratio_bB: time of a decode step of B conversations, relative to the time for reading
the bytes that it needs as fast as the GPU copies its memory. train_mfu_T: model FLOP/s of a forward
and backward pass of T tokens, with recomputed layers, relative to the 989 TFLOP/s of an H100 or
H200. swap_ms: what a swap of half a billion weights costs the engine.

It takes less than eight minutes; --quick takes about one, with fewer layers and sizes. Each part
runs in a separate process. A part that fails or exceeds its time gives null, and the exit code is
1. Without a GPU nothing is measured, all values are null, and the exit code is 0. Needs only jax,
flax, optax and numpy.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
KEYS = (
    "decode_floor_ratio_b16",
    "decode_floor_ratio_b64",
    "decode_floor_ratio_b128",
    "train_mfu_16k",
    "train_mfu_64k",
    "swap_ms",
)
# Time limit of each part in seconds; less than eight minutes in total.
LIMITS = {"decode": 260.0, "train": 120.0, "swap": 80.0}
BARS = {  # key: (bar, whether the figure must be below it)
    "decode_floor_ratio_b16": (1.25, True),
    "decode_floor_ratio_b64": (1.25, True),
    "decode_floor_ratio_b128": (1.25, True),
    "train_mfu_16k": (0.32, False),
    "train_mfu_64k": (0.32, False),
    "swap_ms": (50.0, True),
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args(arguments).quick
    values: dict[str, float | None] = dict.fromkeys(KEYS)
    about: dict[str, Any] = {"details": {}, "failed": []}
    for part in ("decode", "train") if quick else LIMITS:
        for finding in run_part(part, quick, about["failed"]):
            if "key" in finding:
                values[finding["key"]] = finding["value"]
                about["details"][finding["key"]] = finding["details"]
                # At once, so that a run that is interrupted has not measured in vain.
                print(_line(finding["key"], finding["value"]), flush=True)
            else:
                about |= finding
        if about.get("device", {}).get("platform") not in (None, "gpu"):
            print(f"there is no GPU here ({about['device']}): nothing is measured")
            break
    for key in KEYS:
        if key not in about["details"]:
            print(_line(key, None))
    command = "python -m benchmarks.policy_gpu" + (" --quick" if quick else "")
    print(json.dumps({"command": command} | values | about))
    failed = about["failed"] or any("error" in each for each in about["details"].values())
    return 1 if failed else 0


def run_part(part: str, quick: bool, failed: list[str]) -> Iterator[dict[str, Any]]:
    """Yields a part's findings as they arrive. The part is killed at its time limit. If it fails,
    the reason is added to `failed`."""
    line = [sys.executable, "-m", "benchmarks.policy_gpu.part", part, *["--quick"] * quick]
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        limit = threading.Timer(LIMITS[part], process.kill)
        limit.start()
        try:
            for said in process.stdout:
                if said.startswith("{"):  # libraries print as well
                    yield json.loads(said)
        except BaseException:
            process.kill()
            raise
        finally:
            limit.cancel()
    if process.returncode == -signal.SIGKILL:
        failed.append(f"{part}: killed after {LIMITS[part]:.0f} s, or because memory ran out")
    elif process.returncode:
        failed.append(f"{part}: exit code {process.returncode}")


def _line(key: str, value: float | None) -> str:
    if value is None:
        return f"{key:38} not measured"
    if key not in BARS:
        return f"{key:38} {value:10.3f}"
    bar, below = BARS[key]
    met = value <= bar if below else value >= bar
    return f"{key:38} {value:10.3f}   bar {bar}: {'met' if met else 'MISSED'}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
