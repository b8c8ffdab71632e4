"""Is a folder of any family all that has to be named? Plans, trains, exports and serves tiny random
models, each by the commands that a user would give, with no other flag than --config.weights."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from benchmarks.families.tiny import make_model

FAMILIES = (
    *("llama", "qwen3", "qwen3_moe", "mistral", "gemma3_text", "granite", "olmo3", "glm4_moe"),
    *("gpt_oss", "deepseek_v3", "qwen3_next", "lfm2"),
)
# What no tiny model needs to differ in: a tokenizer of bytes, and room for the config's episodes.
ROOM = {"vocab_size": 320, "max_position_embeddings": 2048}
TEXTS = [{"role": "user", "content": "List the files, and print the largest one."}]
LAUNCH = (sys.executable, "-m", "ale_jax.launch")
CONFIG = "--config=configs/smoke_weights.py"
LIMIT_S = 1800.0
SERVED = re.compile(r"answers at (\S+) to clients with the key (\S+)")


def measure(quick: bool) -> dict[str, Any]:
    """Returns the families of which every command has ended well, and what went wrong with the
    others."""
    wrong = {}
    for family in FAMILIES[: 1 if quick else None]:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            wrong[family] = _tried(family, Path(folder))
        seconds = time.monotonic() - began
        print(f"{family:14} {seconds:5.0f} s  {wrong[family] or 'all four'}", flush=True)
    return {
        "one_line_families": [family for family, told in wrong.items() if not told],
        "one_line_wrong": {family: told for family, told in wrong.items() if told},
    }


def _tried(family: str, folder: Path) -> str:
    """Returns which command failed and what it said; empty if none did."""
    model, run, out = (folder / name for name in ("model", "run", "out"))
    make_model(family, **ROOM).save_pretrained(model)
    ChatTokenizer(train_bpe(TEXTS * 10, ROOM["vocab_size"])).save(model)
    weights, workdir = f"--config.weights={model}", f"--workdir={run}"
    commands = (
        ("plan", CONFIG, weights),
        (CONFIG, workdir, weights),
        ("export", workdir, f"--out={out}"),
    )
    for words in commands:
        ended = subprocess.run((*LAUNCH, *words), capture_output=True, text=True, timeout=LIMIT_S)
        if ended.returncode:
            return f"{words[0]}: {ended.stderr.strip()[-300:]}"
    return _served(out)


def _served(model: Path) -> str:
    words = ("serve", CONFIG, f"--config.weights={model}", "--port=0")
    variables = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        (*LAUNCH, *words), stdout=subprocess.PIPE, text=True, env=variables
    ) as server:
        assert server.stdout is not None
        try:
            told = ""
            while not (found := SERVED.search(told)):
                line = server.stdout.readline()
                if not line:
                    return f"serve ended with {server.wait()}: {told[-300:]}"
                told += line
            asked = {"model": "any", "messages": TEXTS, "max_tokens": 8}
            key = {"authorization": f"Bearer {found[2]}"}
            url = f"{found[1]}/chat/completions"
            answer = httpx.post(url, json=asked, headers=key, timeout=LIMIT_S)
            return "" if answer.is_success else f"serve: {answer.text[:300]}"
        finally:
            server.send_signal(signal.SIGTERM)
