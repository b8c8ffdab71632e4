"""Chat formats of families of models: templates with the structure of the authors', and the tokens
that they added, which are special, take the white space behind them, or do neither, as theirs.
"""

import json
from collections.abc import Callable, Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from ale_jax.model.tokenizer import train_bpe

CHATML = """{% if tools %}{{ '<|im_start|>system\\n' + messages[0].content }}
{{- '\\n\\nAnswer within <tool_call></tool_call>:\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}{{ '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif not (tools and loop.first) %}
{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.reasoning_content %}
{{- '<think>\\n' + m.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}{% endif %}
{{- m.content }}
{%- for call in m.tool_calls %}{{ '\\n<tool_call>\\n' }}CALL{{ '\\n</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
HERMES_CALL = (
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments|tojson }}}'
)
CODER_CALL = """<function={{ call.function.name }}>
{%- for name, value in call.function.arguments | items %}{{ '\\n<parameter=' + name + '>\\n' }}
{{- value if value is string else value | tojson }}{{ '\\n</parameter>' }}{% endfor %}
{{- '\\n</function>' }}"""

LLAMA3 = """{{ '<|begin_of_text|>' }}
{%- for tool in tools or [] %}{{ tool | tojson(indent=4) }}{% endfor %}
{%- for m in messages %}
{%- set role = 'ipython' if m.role == 'tool' else m.role %}
{{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}
{%- for call in m.tool_calls %}{{ '{"name": "' + call.function.name + '", "parameters": ' }}
{{- call.function.arguments | tojson + '}' }}{% endfor %}
{%- if m.role == 'tool' %}{{ m.content | tojson }}{% elif not m.tool_calls %}{{ m.content | trim }}
{%- endif %}{{ '<|eot_id|>' }}{% endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

MISTRAL = """{{ '<s>' }}
{%- if tools %}{{ '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}{{ '[TOOL_RESULTS]{"content": ' + m.content | tojson + ', "call_id": "' }}
{{- m.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- elif m.role == 'assistant' %}{{ '' if m.tool_calls else m.content }}
{%- for call in m.tool_calls %}{{ '[TOOL_CALLS]' + call.function.name + '[ARGS]' }}
{{- call.function.arguments | tojson }}{% endfor %}{{ '</s>' }}
{%- else %}{{ '[INST]' + m.content + '[/INST]' }}{% endif %}
{%- endfor %}"""

HARMONY = """{% for tool in tools or [] %}
{{- '<|start|>developer<|message|>' }}{{ tool | tojson }}{{ '<|end|>' }}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'tool' %}{{ '<|start|>functions to=assistant<|channel|>commentary<|message|>' }}
{{- m.content | tojson + '<|end|>' }}
{%- elif m.tool_calls %}
{%- for call in m.tool_calls %}{{ '<|start|>assistant to=functions.' + call.function.name }}
{{- '<|channel|>commentary <|constrain|>json<|message|>' }}{{ call.function.arguments | tojson }}
{{- '<|call|>' }}{% endfor %}
{%- else %}{{ '<|start|>' + m.role + '<|message|>' + m.content }}
{{- '<|return|>' if loop.last and m.role == 'assistant' else '<|end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant<|message|>' }}{% endif %}"""

PHI = """{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content }}
{%- for call in m.tool_calls %}{{ call.function | tojson }}{% endfor %}{{ '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""

CHATML_SPECIAL = "<|endoftext|> <|im_start|> <|im_end|>"
QWEN_OTHERS = (
    "<tool_call> </tool_call> <tool_response> </tool_response> <think> </think> <|repo_name|>"
)
LLAMA3_SPECIAL = (
    "<|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|eom_id|> <|python_tag|>"
)
MISTRAL_SPECIAL = (
    "<s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS]"
    " [TOOL_CALLS] [ARGS]"
)
PHI_SPECIAL = "<|end|> <|user|> <|assistant|> <|system|> <|tool|>"
HARMONY_SPECIAL = "<|start|> <|end|> <|message|> <|channel|> <|constrain|> <|return|> <|call|>"


def byte_level(template: str, special: str, others: str = "", trims: str = ""):
    """Returns a function that makes the tokenizer of a family with these added tokens. trims:
    on which side, "left" or "right", they take the white space."""

    def make() -> PreTrainedTokenizerFast:
        words = [{"role": "user", "content": "The lazy dog 0123 <|im_end|> call assistant"}]
        text = json.loads(train_bpe(words * 9, 300).backend_tokenizer.to_str())
        rust = Tokenizer.from_str(json.dumps(text | {"added_tokens": []}))
        return _added_to(rust, template, special, others, trims)

    return make


def sentencepiece(template: str, special: str) -> Callable[[], PreTrainedTokenizerFast]:
    """As Llama 2's vocabulary, in which letters can be merged to the name of a special token."""

    def make() -> PreTrainedTokenizerFast:
        names = [*(f"<0x{byte:02X}>" for byte in range(256)), *"▁</s>abc", "</", "</s", "</s>"]
        merges = [("<", "/"), ("</", "s"), ("</s", ">")]
        bpe = models.BPE({name: n for n, name in enumerate(names)}, merges, byte_fallback=True)
        rust = Tokenizer(bpe)
        rust.normalizer = normalizers.Replace(" ", "▁")
        rust.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        return _added_to(rust, template, special)

    return make


def _added_to(
    rust: Tokenizer, template: str, special: str, others: str = "", trims: str = ""
) -> PreTrainedTokenizerFast:
    def tokens(names: str) -> Sequence[AddedToken]:
        sides = {"lstrip": trims == "left", "rstrip": trims == "right"}
        return [AddedToken(name, normalized=False, **sides) for name in names.split()]

    rust.add_special_tokens(tokens(special))
    rust.add_tokens(tokens(others))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rust)
    tokenizer.chat_template = template
    return tokenizer


def ours() -> PreTrainedTokenizerFast:
    """Our own vocabulary and template."""
    return train_bpe([{"role": "user", "content": "The lazy dog"}] * 9, 300)


FAMILIES = {
    "ours": ours,
    "hermes": byte_level(CHATML.replace("CALL", HERMES_CALL), CHATML_SPECIAL, QWEN_OTHERS),
    "qwen3_coder": byte_level(CHATML.replace("CALL", CODER_CALL), CHATML_SPECIAL, QWEN_OTHERS),
    "llama3": byte_level(LLAMA3, LLAMA3_SPECIAL),
    "mistral": byte_level(MISTRAL, MISTRAL_SPECIAL),
    "mistral_sentencepiece": sentencepiece(MISTRAL, MISTRAL_SPECIAL),
    "harmony": byte_level(HARMONY, HARMONY_SPECIAL),
    "plain_json": byte_level(PHI, PHI_SPECIAL, trims="right"),
    "trimmed_before": byte_level(PHI, PHI_SPECIAL, trims="left"),
}
