"""The definition of a family: how its configuration becomes kinds of layers, and how its
checkpoints name their tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from ale_jax.config.architecture import PolicyShape
from ale_jax.model.families.fields import Fields

Groups = tuple[tuple[int, ...], ...]

LAYER = "model.layers.{layer}."
NEXT_LAYER = "model.layers.{layers}."  # behind the last one
EXPERT = LAYER + "mlp.experts.{expert}."


@dataclasses.dataclass(frozen=True)
class Storage:
    """How a checkpoint stores a weight.

    name: of the tensor, with {layer} and {expert}; a tensor with {expert} is one index of the
    weight's first dim. groups: for each axis of the tensor, the dims of the weight that it
    combines, outermost first. fused: the weights that follow each other along the tensor's axis
    `axis`, this one among them; empty: it is alone. interleaved: their rows there take turns.
    blocks: a weight [D,heads,...], for each head of which the tensor has a block in which the fused
    weights follow each other; empty: it has one.

    q_DNH, ((1, 2), (0,)): the tensor's first axis has N and H (row n * H + h), its second has D, as
    torch's linear layers store [out, in]. gate_EDF, ((2,), (1,)): E is not mentioned, because each
    expert has a tensor of its own, [F,D].
    """

    name: str
    groups: Groups
    fused: tuple[str, ...] = ()
    axis: int = 0
    interleaved: bool = False
    blocks: str = ""


Tensors = Mapping[str, Storage]

VECTOR, MATRIX, HEADS_OUT = ((0,),), ((1,), (0,)), ((1, 2), (0,))
# As most families have them.
COMMON: Tensors = {
    "embed_VD": Storage("model.embed_tokens.weight", ((0,), (1,))),
    "final_norm_D": Storage("model.norm.weight", VECTOR),
    "final_norm_bias_D": Storage("model.norm.bias", VECTOR),
    "head_DV": Storage("lm_head.weight", MATRIX),
    "attn_norm_D": Storage(LAYER + "input_layernorm.weight", VECTOR),
    "attn_norm_bias_D": Storage(LAYER + "input_layernorm.bias", VECTOR),
    "q_DNH": Storage(LAYER + "self_attn.q_proj.weight", HEADS_OUT),
    "k_DGH": Storage(LAYER + "self_attn.k_proj.weight", HEADS_OUT),
    "v_DGH": Storage(LAYER + "self_attn.v_proj.weight", HEADS_OUT),
    "q_norm_H": Storage(LAYER + "self_attn.q_norm.weight", VECTOR),
    "k_norm_H": Storage(LAYER + "self_attn.k_norm.weight", VECTOR),
    "q_norm_NH": Storage(LAYER + "self_attn.q_norm.weight", ((0, 1),)),
    "k_norm_GH": Storage(LAYER + "self_attn.k_norm.weight", ((0, 1),)),
    "q_bias_NH": Storage(LAYER + "self_attn.q_proj.bias", ((0, 1),)),
    "k_bias_GH": Storage(LAYER + "self_attn.k_proj.bias", ((0, 1),)),
    "v_bias_GH": Storage(LAYER + "self_attn.v_proj.bias", ((0, 1),)),
    "o_NHD": Storage(LAYER + "self_attn.o_proj.weight", ((2,), (0, 1))),
    "o_bias_D": Storage(LAYER + "self_attn.o_proj.bias", VECTOR),
    "ffn_norm_D": Storage(LAYER + "post_attention_layernorm.weight", VECTOR),
    "ffn_norm_bias_D": Storage(LAYER + "post_attention_layernorm.bias", VECTOR),
    "gate_DF": Storage(LAYER + "mlp.gate_proj.weight", MATRIX),
    "up_DF": Storage(LAYER + "mlp.up_proj.weight", MATRIX),
    "down_FD": Storage(LAYER + "mlp.down_proj.weight", MATRIX),
    "gate_bias_F": Storage(LAYER + "mlp.gate_proj.bias", VECTOR),
    "up_bias_F": Storage(LAYER + "mlp.up_proj.bias", VECTOR),
    "down_bias_D": Storage(LAYER + "mlp.down_proj.bias", VECTOR),
    "router_DE": Storage(LAYER + "mlp.gate.weight", MATRIX),
    "router_bias_E": Storage(LAYER + "mlp.gate.e_score_correction_bias", VECTOR),
    "gate_EDF": Storage(EXPERT + "gate_proj.weight", ((2,), (1,))),
    "up_EDF": Storage(EXPERT + "up_proj.weight", ((2,), (1,))),
    "down_EFD": Storage(EXPERT + "down_proj.weight", ((2,), (1,))),
    "shared_gate_DF": Storage(LAYER + "mlp.shared_experts.gate_proj.weight", MATRIX),
    "shared_up_DF": Storage(LAYER + "mlp.shared_experts.up_proj.weight", MATRIX),
    "shared_down_FD": Storage(LAYER + "mlp.shared_experts.down_proj.weight", MATRIX),
}
# Of families that normalise what a block adds, too, or only that.
NORMS_AFTER: Tensors = {
    "attn_after_norm_D": Storage(LAYER + "post_attention_layernorm.weight", VECTOR),
    "ffn_norm_D": Storage(LAYER + "pre_feedforward_layernorm.weight", VECTOR),
    "ffn_after_norm_D": Storage(LAYER + "post_feedforward_layernorm.weight", VECTOR),
}


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of transformers' models.

    model_type: in config.json. class_name: transformers' class. read: the fields of config.json ->
    the shape, whose family is `model_type`. tensors: those that are not as in COMMON. further: how
    the names of tensors begin, with {layers}, that predict tokens behind the next one; published
    checkpoints have them, and transformers' models do not.
    """

    model_type: str
    class_name: str
    read: Callable[[Fields], PolicyShape]
    tensors: Tensors = dataclasses.field(default_factory=dict)
    further: str = ""

    def tensor(self, weight: str) -> Storage:
        """Returns how a weight is stored."""
        return self.tensors.get(weight) or COMMON[weight]
