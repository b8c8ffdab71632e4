"""What authors publish is read as it is."""

from pathlib import Path

import pytest

from ale_jax.model.params import count_params
from ale_jax.model.weights.config import read_config

FOLDER = Path(__file__).parent / "published"  # config.json of each model
BILLIONS = {  # of weights, as their authors count them
    "Llama-3.1-8B": 8.03,
    "Qwen2.5-7B": 7.62,
    "Qwen3-8B-FP8": 8.19,
    "Qwen3-30B-A3B": 30.5,
    "Qwen3-Next-80B-A3B": 79.7,
    "Qwen1.5-MoE-A2.7B": 14.3,
    "Mistral-7B-v0.3": 7.25,
    "Mixtral-8x7B": 46.7,
    "Devstral-2-123B": 125.0,
    "gemma-2b": 2.51,
    "gemma-2-2b": 2.61,
    "gemma-3-1b": 1.0,
    "gpt-oss-20b": 20.9,
    # Without towers for images, of 0.1 to 0.7.
    "gemma-3-12b-it": 11.77,
    "gemma-4-31B": 30.7,
    "Mistral-Small-3.1-24B": 23.57,
    "Qwen2.5-VL-7B": 7.62,
    "Qwen3.5-0.8B": 0.752,
    "Qwen3.6-35B-A3B": 34.66,
    "c4ai-command-r7b-12-2024": 8.03,
    "c4ai-command-r-plus": 103.8,
    "starcoder2-15b": 15.96,
    "stablelm-2-1_6b": 1.64,
    "Nemotron-Mini-4B": 4.19,
    "LFM2-1.2B": 1.17,
    "LFM2-8B-A1B": 8.34,
    "DeepSeek-V2-Lite": 15.7,
    "DeepSeek-V3": 671.0,
    "GLM-4.5-Air": 106.9,
    "MiniMax-M2": 229.0,
    "K-EXAONE": 236.0,
    "OLMo-2-7B": 7.3,
    "OLMoE-1B-7B": 6.92,
    "granite-3.3-2b": 2.53,
    "Phi-4-mini": 3.84,
    "SmolLM3-3B": 3.08,
    "ERNIE-4.5-0.3B": 0.361,
    "EXAONE-4.0-1.2B": 1.28,
    "Seed-OSS-36B": 36.2,
}


def test_every_file_is_read():
    assert {path.stem for path in FOLDER.iterdir()} == BILLIONS.keys()


@pytest.mark.parametrize("name", BILLIONS)
def test_a_published_configuration_is_read(name):
    found = count_params(read_config(FOLDER / f"{name}.json"))[0] / 1e9
    assert found == pytest.approx(BILLIONS[name], rel=0.005)
