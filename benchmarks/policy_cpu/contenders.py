"""The contenders: ours, and the peers whose environments exist; each is measured in a process."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.policy_cpu.work import Work, peer_flags

OURS = "ours"
ROOT = Path(__file__).parents[2]
MEASUREMENT_S = 900.0
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

Row = dict[str, Any]  # result of a measurement: "gen", "train", "versions", "load"


@dataclasses.dataclass(frozen=True)
class Peer:
    """A script in the peers' folder, and the environment in that folder that it runs in."""

    environment: str
    script: str
    options: tuple[str, ...] = ()
    only_experts: bool = False  # without experts it is the same as another peer

    def python(self, folder: Path) -> Path:
        return folder / "venvs" / self.environment / "bin" / "python"


PEERS = {
    "tunix": Peer("tunix", "bench_tunix.py"),
    "skyrl_tx": Peer("skyrl", "bench_skyrl_tx.py"),
    "easydel": Peer("easydel", "bench_easydel.py"),
    "torch_grouped_mm": Peer("tunix", "bench_hf_torch.py", ("--experts_impl", "grouped_mm")),
    "torch_eager": Peer("tunix", "bench_hf_torch.py", ("--experts_impl", "eager"), True),
}


def absent(folder: Path) -> dict[str, str]:
    """What is missing, for each peer that cannot be measured."""
    missing = {}
    for name, peer in PEERS.items():
        for path in (peer.python(folder), folder / peer.script):
            if not path.exists():
                missing[name] = f"there is no {path.relative_to(folder)} in the peers' folder"
    return missing


def make_checkpoint(folder: Path, work: Work) -> Path:
    """The random weights of all contenders, made by the peers' own script."""
    python = next(p for peer in PEERS.values() if (p := peer.python(folder)).exists())
    said = _run([str(python), "make_ckpt.py", *peer_flags(work.shape)], folder)
    return folder / said.splitlines()[-1].partition(":")[0]


def measure_ours(checkpoint: Path, calls: int) -> Row:
    module = ["-m", "benchmarks.policy_cpu.ours", str(checkpoint)]
    return _measure([sys.executable, *module, "--iters", str(calls)], ROOT)


def measure_peer(folder: Path, name: str, work: Work, calls: int) -> Row:
    """RuntimeError, with the end of its output, if it fails or takes too long."""
    peer = PEERS[name]
    line = [str(peer.python(folder)), peer.script, *peer_flags(work.shape), *peer.options]
    return _measure([*line, "--iters", str(calls)], folder)


def take_part(work: Work, missing: dict[str, str]) -> Iterator[str]:
    """The peers that are measured for this work."""
    for name, peer in PEERS.items():
        if name not in missing and (work.shape.is_moe or not peer.only_experts):
            yield name


def _measure(line: list[str], folder: Path) -> Row:
    load = os.getloadavg()[0]  # other load on the machine at the start
    with tempfile.NamedTemporaryFile("r", suffix=".json") as out:
        _run([*line, "--out", out.name], folder)
        row = json.loads(out.read().splitlines()[-1])
    # Peers add the folder from which they were imported.
    versions = {name: text.partition("@")[0] for name, text in row["versions"].items()}
    return {"gen": row["gen"], "train": row["train"], "versions": versions, "load": load}


def _run(line: list[str], folder: Path) -> str:
    """Returns what it prints. RuntimeError, with the end of its output, if it fails or takes too
    long."""
    try:
        done = subprocess.run(
            line,
            cwd=folder,
            env=os.environ | ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=MEASUREMENT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{line[1]} did not end within {MEASUREMENT_S:.0f} s") from error
    if done.returncode:
        last = " ".join(done.stderr.split())[-400:]
        raise RuntimeError(f"{line[1]} ended with {done.returncode}: {last}")
    return done.stdout
