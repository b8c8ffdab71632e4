"""All families, by model_type. A new one is a file and a line here."""

from __future__ import annotations

from ale_jax.model.families.cohere import COHERE, COHERE2
from ale_jax.model.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3, SARVAM_MLA
from ale_jax.model.families.ernie4_5 import ERNIE4_5, ERNIE4_5_MOE
from ale_jax.model.families.exaone4 import EXAONE4, EXAONE_MOE
from ale_jax.model.families.family import Family
from ale_jax.model.families.gemma import GEMMA, GEMMA2, GEMMA3_TEXT, VAULTGEMMA
from ale_jax.model.families.gemma4 import GEMMA4_TEXT
from ale_jax.model.families.glm4 import GLM, GLM4
from ale_jax.model.families.glm4_moe import DOTS1, GLM4_MOE, SOLAR_OPEN
from ale_jax.model.families.glm4_moe_lite import GLM4_MOE_LITE
from ale_jax.model.families.gpt_oss import GPT_OSS
from ale_jax.model.families.granite import (
    GRANITE,
    GRANITEMOE,
    GRANITEMOESHARED,
    HYPERCLOVAX,
)
from ale_jax.model.families.granite_swa import GRANITE_SWA
from ale_jax.model.families.lfm2 import LFM2
from ale_jax.model.families.lfm2_moe import LFM2_MOE
from ale_jax.model.families.llama import ARCEE, CWM, HELIUM, INTERNLM3, IQUESTCODER, LLAMA
from ale_jax.model.families.mellum import MELLUM
from ale_jax.model.families.minicpm3 import MINICPM3
from ale_jax.model.families.minimax_m2 import MINIMAX_M2
from ale_jax.model.families.mistral import MINISTRAL, MINISTRAL3, MISTRAL
from ale_jax.model.families.mixtral import MIXTRAL
from ale_jax.model.families.nemotron import JAIS2, NEMOTRON
from ale_jax.model.families.olmo2 import OLMO2, OLMO3
from ale_jax.model.families.olmoe import FLEX_OLMO, OLMOE
from ale_jax.model.families.phi3 import PHI3
from ale_jax.model.families.qwen2 import QWEN2
from ale_jax.model.families.qwen2_moe import QWEN2_MOE
from ale_jax.model.families.qwen3 import QWEN3
from ale_jax.model.families.qwen3_5 import QWEN3_5, QWEN3_5_MOE
from ale_jax.model.families.qwen3_moe import QWEN3_MOE
from ale_jax.model.families.qwen3_next import QWEN3_NEXT
from ale_jax.model.families.seed_oss import SEED_OSS
from ale_jax.model.families.smollm3 import SMOLLM3
from ale_jax.model.families.stablelm import STABLELM
from ale_jax.model.families.starcoder2 import STARCODER2
from ale_jax.model.families.youtu import YOUTU

FAMILIES: dict[str, Family] = {
    each.model_type: each
    for each in (
        *(LLAMA, ARCEE, CWM, HELIUM, INTERNLM3, IQUESTCODER),
        *(QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE),
        *(QWEN3_NEXT, QWEN3_5, QWEN3_5_MOE),
        *(MISTRAL, MINISTRAL, MINISTRAL3, MIXTRAL, MELLUM, SEED_OSS, SMOLLM3),
        *(GRANITE, GRANITEMOE, GRANITEMOESHARED, GRANITE_SWA, HYPERCLOVAX),
        *(ERNIE4_5, ERNIE4_5_MOE, PHI3),
        *(OLMO2, OLMO3, OLMOE, FLEX_OLMO, EXAONE4, EXAONE_MOE),
        *(GLM, GLM4, GLM4_MOE, SOLAR_OPEN, DOTS1),
        *(GEMMA, GEMMA2, VAULTGEMMA, GEMMA3_TEXT, GEMMA4_TEXT, MINIMAX_M2, GPT_OSS),
        *(LFM2, LFM2_MOE, COHERE, COHERE2, NEMOTRON, JAIS2, STARCODER2, STABLELM),
        *(DEEPSEEK_V2, DEEPSEEK_V3, SARVAM_MLA, GLM4_MOE_LITE, YOUTU, MINICPM3),
    )
}
