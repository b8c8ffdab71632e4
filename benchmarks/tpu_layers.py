"""Do all kinds of layers compile for TPUs? Asks the TPU's own compiler, without a TPU.

    python -m benchmarks.tpu_layers LIBTPU [--chips=v5p,v6e] [--kinds=attention,...]

LIBTPU is the libtpu.so of PyPI's libtpu. For one chip, a layer of each kind, with the widths of a
published model, is compiled twice: the gradient of a row of 3,584 tokens, and the engine's
program, which prefills and decodes. Neither may hold the scores of a row's queries and keys. The
engine's program may not copy what it keeps of conversations, except into fast memory and back, nor
exchange anything with the host before it ends.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from ale_jax.config.architecture import (
    Attention,
    ClampedSwiglu,
    Dense,
    Experts,
    GatedDelta,
    Latent,
    Layer,
    Norm,
    PolicyShape,
    Rope,
    ShortConv,
)
from ale_jax.config.engine import EngineShape
from ale_jax.config.hardware import MeshShape
from ale_jax.model.sharding import (
    mesh_sizes,
)
from benchmarks.choices import some_of
from benchmarks.lowering import abstract_cache, traced_gradient, traced_sampler

TOPOLOGIES = {"v5p": "v5p:2x2x1", "v6e": "v6e:2x2x1"}
ROW = 3584  # tokens; no width of the kinds is equal, nor that of all heads together
ENGINE = EngineShape(
    max_sequences=16,
    max_sequence_length=ROW,
    decode_steps=8,
    prefill_tokens=(256,),
    prefill_rows=1,
    prefill_budget=512,
    page_tokens=64,
    pages=128 * ROW // 64,  # more than fast memory has room for, as in a real engine
)
MIB = 1 << 20


def _attention(heads: int, groups: int, width: int = 128, **kind: Any) -> Attention:
    return Attention(heads, groups, width, width**-0.5, Rope(1e6, width), **kind)


DENSE, RMS = Dense(5632), Norm(1e-6)
FULL_ATTENTION = _attention(16, 8, qk_norm="head")
KINDS: dict[str, Layer] = {
    "attention": Layer(FULL_ATTENTION, DENSE, RMS),
    "width_norm": Layer(_attention(16, 16, qk_norm="width"), DENSE, Norm(1e-6, place="after")),
    "parallel": Layer(
        _attention(8, 4, qk_norm="each"), DENSE, Norm(1e-5, centred=True), parallel=True
    ),
    "plain": Layer(
        _attention(8, 4),
        Dense(5632, "relu2", gated=False),
        Norm(1e-5, plus_one=True, centred=True, bias=True),
    ),
    "keys_as_values": Layer(
        _attention(8, 4, qk_norm="head", value_norm=True, keys_as_values=True),
        DENSE,
        Norm(1e-6, place="both"),
        scaled=True,
    ),
    "window": Layer(_attention(8, 4, window=1024), DENSE, Norm(1e-6, True, "both")),
    "cap": Layer(_attention(8, 4, cap=50.0), DENSE, RMS),
    "narrow": Layer(_attention(32, 8, 64), DENSE, RMS),
    "sinks": Layer(_attention(40, 8, 64, sinks=True, bias=True), DENSE, RMS),
    "gate": Layer(_attention(16, 2, gate=True), DENSE, RMS),
    "latent": Layer(Latent(16, 1536, 512, 128, 128, 192**-0.5, Rope(1e4, 64)), DENSE, RMS),
    "gated_delta": Layer(GatedDelta(16, 32, 128, 128, 4), DENSE, RMS),
    "short_conv": Layer(ShortConv(2048, 3), DENSE, RMS),
    "experts": Layer(
        FULL_ATTENTION,
        Experts(32, 4, 768, "sigmoid", choice_bias=True, groups=4, top_groups=2, shared=768),
        RMS,
    ),
    "clamped_experts": Layer(
        FULL_ATTENTION,
        Experts(32, 4, 768, gate=ClampedSwiglu(1.702, 7.0), bias=True, router_bias=True),
        RMS,
    ),
}


def main(arguments: list[str]) -> int:
    """Returns the exit code: 1 if a program holds what it must not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libtpu", type=Path)
    parser.add_argument("--chips", type=some_of(TOPOLOGIES), default=list(TOPOLOGIES))
    parser.add_argument("--kinds", type=some_of(KINDS), default=list(KINDS))
    options = parser.parse_args(arguments)
    if not options.libtpu.is_file():
        parser.error(f"there is no {options.libtpu}: pip download --no-deps libtpu, and unpack it")
    # There is no TPU, so its metadata must not be queried.
    os.environ |= {"TPU_LIBRARY_PATH": str(options.libtpu), "TPU_SKIP_MDS_QUERY": "1"}
    results = []
    for chip in options.chips:
        mesh = one_chip(chip)
        for name in options.kinds:
            found = {"chip": chip, "kind": name, **compiled(policy_of(KINDS[name]), mesh)}
            results.append(found)
            print(_line(found), flush=True)
    versions = {name: version(name) for name in ("jax", "jaxlib")}
    print(json.dumps({"benchmark": "tpu_layers", "versions": versions, "results": results}))
    return int(any(each[name] for each in results for name in ("scores", "copies", "host")))


def _line(found: dict[str, Any]) -> str:
    return (
        f"{found['chip']} {found['kind']:16} gradient {found['gradient_s']:5.1f} s "
        f"{found['gradient_mib']:6.0f} MiB, engine {found['engine_s']:5.1f} s "
        f"{found['engine_mib']:6.0f} MiB; scores held: {found['scores']}, "
        f"copies of the cache: {found['copies']}, exchanges with the host: {found['host']}"
    )


def policy_of(kind: Layer) -> PolicyShape:
    return PolicyShape(8192, 2048, (kind,), RMS, ROW, True, "")


def one_chip(chip: str) -> Mesh:
    """Returns a mesh of one chip that need not be present."""
    topology = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGIES[chip])
    sizes = mesh_sizes(MeshShape(), 1)
    kinds = (AxisType.Auto,) * len(sizes)
    devices = np.array(topology.devices[:1]).reshape(*sizes.values())
    return Mesh(devices, tuple(sizes), axis_types=kinds)


def compiled(policy: PolicyShape, mesh: Mesh) -> dict[str, Any]:
    """Returns seconds, temporary MiB, and what the programs hold that they must not: arrays of
    queries by keys, copies of what the engine keeps, and exchanges with the host."""
    found: dict[str, Any] = {"scores": 0, "copies": 0, "host": 0}
    with jax.set_mesh(mesh):
        programs = {
            "gradient": traced_gradient(policy, mesh, 1, ROW).lower(),
            "engine": traced_sampler(policy, mesh, ENGINE).lower(),
        }
    for name, lowered in programs.items():
        began = time.monotonic()
        program = lowered.compile()
        found[f"{name}_s"] = round(time.monotonic() - began, 1)
        found[f"{name}_mib"] = program.memory_analysis().temp_size_in_bytes / MIB
        text = program.as_text()
        found["scores"] += len(re.findall(rf"\[(?:\d+,)*{ROW},{ROW}\]", text))
        if name == "engine":
            found["copies"], found["host"] = copies(text, policy), host_exchanges(text)
    return found


def copies(text: str, policy: PolicyShape) -> int:
    """Counts the instructions that copy all of an array that the engine keeps, without those that
    move it as it is into fast memory, "S(1)", or back."""
    kept = jax.tree.leaves(abstract_cache(policy, ENGINE, "tpu"))
    sizes = {",".join(map(str, x.shape)) for x in kept}
    return sum(
        len([line for line in re.findall(_COPY.format(re.escape(size)), text) if not _moves(line)])
        for size in sizes
    )


_COPY = r"(?m)^.*\[{}\].* copy(?:-start)?\("
_LAYOUT = re.compile(r"\{([\d,]+):([^}\s]*?)(S\(1\))?\}")


def _moves(copy: str) -> bool:
    """Whether an asynchronous copy leaves the layout as it is and changes the memory."""
    layouts = _LAYOUT.findall(copy)[:2]
    if "copy-start(" not in copy or len(layouts) < 2:
        return False
    (*there, fast_there), (*here, fast_here) = layouts
    return there == here and fast_there != fast_here


def host_exchanges(text: str) -> int:
    """Counts the instructions that send something to the host or wait for it."""
    return len(
        re.findall(
            r"(?m)= .* (?:infeed|outfeed|send|recv)\(|custom_call_target=\"[^\"]*[Hh]ost", text
        )
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
