"""Small GGUF files, written by the gguf package from weights of ours."""

import dataclasses
import json

import gguf
import jax
import numpy as np
from transformers import PreTrainedTokenizerFast

from ale_jax.config.model import ModelConfig
from ale_jax.model.rope import rotary_frequencies
from ale_jax.model.weights.layout import is_stored, layout

_NAMES = {
    "embed_VD": "token_embd.weight",
    "final_norm_D": "output_norm.weight",
    "head_DV": "output.weight",
    "attn_norm_D": "blk.{}.attn_norm.weight",
    "q_DNH": "blk.{}.attn_q.weight",
    "k_DGH": "blk.{}.attn_k.weight",
    "v_DGH": "blk.{}.attn_v.weight",
    "q_bias_NH": "blk.{}.attn_q.bias",
    "k_bias_GH": "blk.{}.attn_k.bias",
    "v_bias_GH": "blk.{}.attn_v.bias",
    "q_norm_H": "blk.{}.attn_q_norm.weight",
    "k_norm_H": "blk.{}.attn_k_norm.weight",
    "o_NHD": "blk.{}.attn_output.weight",
    "ffn_norm_D": "blk.{}.ffn_norm.weight",
    "gate_DF": "blk.{}.ffn_gate.weight",
    "up_DF": "blk.{}.ffn_up.weight",
    "down_FD": "blk.{}.ffn_down.weight",
    "router_DE": "blk.{}.ffn_gate_inp.weight",
    "gate_EDF": "blk.{}.ffn_gate_exps.weight",
    "up_EDF": "blk.{}.ffn_up_exps.weight",
    "down_EFD": "blk.{}.ffn_down_exps.weight",
}


@dataclasses.dataclass(frozen=True)
class Changes:
    """What a file has beside its weights. metadata: fields to be changed (None: left out). extra:
    further tensors. tokenizer: as in `write_tokenizer`."""

    metadata: dict = dataclasses.field(default_factory=dict)
    extra: dict = dataclasses.field(default_factory=dict)
    tokenizer: PreTrainedTokenizerFast | None = None
    endianess: gguf.GGUFEndian = gguf.GGUFEndian.LITTLE


def write_gguf(path, architecture, params, shape, quantisation=None, **changes):
    """quantisation: of the matrices whose rows it can divide. changes: see `Changes`."""
    changes = Changes(**changes)
    writer = gguf.GGUFWriter(path, architecture, endianess=changes.endianess)
    for key, value in (_metadata(shape) | changes.metadata).items():
        if isinstance(value, str):
            writer.add_string(f"{architecture}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{architecture}.{key}", value)
        elif value is not None:
            writer.add_uint32(f"{architecture}.{key}", value)
    for name, array in (_tensors(architecture, params, shape) | changes.extra).items():
        if quantisation and array.ndim > 1 and array.shape[-1] % 32 == 0:
            data = gguf.quantize(array, quantisation)
            writer.add_tensor(name, data, raw_dtype=quantisation)
        else:
            writer.add_tensor(name, array)
    if changes.tokenizer:
        _add_tokenizer(writer, changes.tokenizer)
    _close(writer)
    return path


def write_tokenizer(path, tokenizer, rules=None, scores=None, **changes):
    """A GGUF file of nothing but the vocabulary and template of a BPE. rules: llama.cpp's name for
    how a byte-level one splits texts. scores: instead of merges, for one of SentencePiece.
    changes: fields behind "tokenizer." with other values (None: left out)."""
    writer = gguf.GGUFWriter(path, "qwen2")
    _add_tokenizer(writer, tokenizer, rules, scores)
    for name, value in changes.items():
        (fields,) = writer.kv_data
        fields.pop(f"tokenizer.{name}", None)
        if value is not None:
            writer.add_key_value(f"tokenizer.{name}", value, gguf.GGUFValueType.get_type(value))
    _close(writer)
    return path


def write_tensor(path, kind, data_RN):
    """A GGUF file of one matrix, given as the bytes of its rows."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("x", data_RN, raw_dtype=kind)
    _close(writer)
    return path


def _add_tokenizer(writer, tokenizer, rules=None, scores=None):
    vocabulary = tokenizer.get_vocab()
    kinds = dict.fromkeys(range(len(vocabulary)), gguf.TokenType.NORMAL)
    for number, token in tokenizer.added_tokens_decoder.items():
        own = gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED
        kinds[number] = own[not token.special]
    writer.add_tokenizer_model("llama" if scores else "gpt2")
    if rules:
        writer.add_tokenizer_pre(rules)
    writer.add_token_list(sorted(vocabulary, key=vocabulary.get))
    writer.add_token_types(list(kinds.values()))
    if scores:
        writer.add_token_scores(scores)
    else:
        writer.add_token_merges([" ".join(pair) for pair in _merges(tokenizer)])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    if tokenizer.bos_token:
        writer.add_bos_token_id(tokenizer.bos_token_id)
        writer.add_add_bos_token(True)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def _merges(tokenizer):
    return json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]


def _metadata(shape):
    model = ModelConfig.of(shape)
    fields = {
        "block_count": shape.num_layers,
        "embedding_length": shape.width,
        "attention.head_count": model.num_heads,
        "attention.head_count_kv": model.num_kv_heads,
        "attention.key_length": model.head_width,
        "attention.value_length": model.head_width,
        "attention.layer_norm_rms_epsilon": model.norm_eps,
        "feed_forward_length": model.mlp_width,
        "rope.freq_base": model.rope_theta,
        "context_length": shape.max_positions,
    }
    if shape.is_moe:
        fields |= {
            "expert_count": shape.num_experts,
            "expert_used_count": shape.experts_per_token,
            "expert_feed_forward_length": model.expert_width,
        }
    return fields


def _tensors(architecture, params, shape):
    tensors = {}
    leaves = jax.tree_util.tree_leaves_with_path(layout(shape), is_leaf=is_stored)
    for (path, stored), weight in zip(leaves, jax.tree.leaves(params), strict=True):
        parts = [np.asarray(part, np.float32) for _, part in stored.write(np.asarray(weight))]
        array = np.stack(parts) if stored.is_per_expert else parts[0]
        kind = path[-1].key
        if architecture == "llama" and kind in ("q_DNH", "k_DGH"):
            array = _side_by_side(array, weight.shape[1])
        layer = path[1].idx if len(path) == 3 else None
        tensors[_NAMES[kind].format(layer)] = np.ascontiguousarray(array)
    rope = shape.layers[0].mixer.rope
    if rope.scaling:
        plain = rotary_frequencies(dataclasses.replace(rope, scaling=None))
        tensors["rope_freqs.weight"] = plain / rotary_frequencies(rope)
    return tensors


def _side_by_side(rows, heads):
    """As llama.cpp's converter: of each head the rows 0, H/2, 1, H/2 + 1, ..."""
    halves = rows.reshape(heads, 2, -1, rows.shape[-1])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _close(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
