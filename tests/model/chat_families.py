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

MISTRAL_CALL = MISTRAL[MISTRAL.index("{%- for call") : MISTRAL.index("{{ '</s>' }}")]
MISTRAL_LIST = """{%- if m.tool_calls %}{{ '[TOOL_CALLS][' }}{% for call in m.tool_calls %}
{{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}{{ ', ' if not loop.last }}
{%- endfor %}{{ ']' }}{% endif %}"""

HARMONY = """{% for tool in tools or [] %}
{{- '<|start|>developer<|message|>' }}{{ tool | tojson }}{{ '<|end|>' }}{% endfor %}
{%- set last = namespace(name=none) %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if last.name is none %}{{ raise_exception('a result without a call') }}{% endif %}
{{- '<|start|>functions.' + last.name + ' to=assistant<|channel|>commentary<|message|>' }}
{{- m.content | tojson + '<|end|>' }}
{%- elif m.tool_calls %}{% set call = m.tool_calls[0].function %}{% set last.name = call.name %}
{%- set thoughts = m.content or m.thinking %}
{%- if thoughts %}{{ '<|start|>assistant<|channel|>analysis<|message|>' + thoughts + '<|end|>' }}
{%- endif %}
{{- '<|start|>assistant to=functions.' + call.name }}
{{- '<|channel|>commentary json<|message|>' }}{{ call.arguments | tojson }}{{ '<|call|>' }}
{%- elif m.role == 'assistant' %}{% set last.name = none %}
{%- if m.thinking and loop.last and not add_generation_prompt %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}
{{- '<|start|>assistant<|channel|>final<|message|>' + m.content }}
{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
{%- else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""

GLM = """[gMASK]<sop>{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'tool' %}{{ '<|observation|>' if messages[loop.index0 - 1].role != 'tool' }}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- else %}{{ '<|' + m.role + '|>\\n' }}
{%- if m.role == 'assistant' %}{{ '<think>' + (m.reasoning_content or '').strip() + '</think>' }}
{%- endif %}{{ m.content.strip() }}
{%- for call in m.tool_calls %}{{ '\\n<tool_call>' + call.function.name }}
{%- for name, value in call.function.arguments | items %}
{{- '\\n<arg_key>' + name + '</arg_key>\\n<arg_value>' }}
{{- value if value is string else value | tojson }}{{ '</arg_value>' }}{% endfor %}
{{- '\\n</tool_call>' }}{% endfor %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""

KIMI = """{% if tools %}{{ '<|im_system|>tool_declare<|im_middle|>' + tools | tojson }}
{{- '<|im_end|>' }}{% endif %}
{%- for m in messages %}{{ '<|im_' + m.role + '|>' + m.role + '<|im_middle|>' }}
{%- if m.role == 'tool' %}{{ '## Return of ' + m.tool_call_id + '\\n' }}{% endif %}{{ m.content }}
{%- if m.tool_calls %}{{ '<|tool_calls_section_begin|>' }}
{%- for call in m.tool_calls %}{{ '<|tool_call_begin|>' + call.id }}
{{- '<|tool_call_argument_begin|>' + call.function.arguments | tojson }}
{{- '<|tool_call_end|>' }}{% endfor %}
{{- '<|tool_calls_section_end|>' }}{% endif %}{{ '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_assistant|>assistant<|im_middle|>' }}{% endif %}"""

# Of V3.1; V3 fences the arguments. Both take arguments as text.
DEEPSEEK = """{{ '<｜begin▁of▁sentence｜>' }}
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'system' %}{{ m.content }}
{%- elif m.role == 'user' %}{{ '<｜User｜>' + m.content }}
{%- elif m.role == 'tool' %}{{ '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}
{%- else %}{{ '<｜Assistant｜></think>' + m.content }}
{%- if m.tool_calls %}{{ '<｜tool▁calls▁begin｜>' }}
{%- for call in m.tool_calls %}{{ '<｜tool▁call▁begin｜>HEAD' }}{{ call.function.arguments }}
{{- 'TAIL<｜tool▁call▁end｜>' }}{% endfor %}{{ '<｜tool▁calls▁end｜>' }}{% endif %}
{{- '<｜end▁of▁sentence｜>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜></think>' }}{% endif %}"""

V3_HEAD = "function<｜tool▁sep｜>' + call.function.name + '\\n```json\\n"
DSML = """{{ '<｜begin▁of▁sentence｜>' }}
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'system' %}{{ m.content }}
{%- elif m.role == 'user' %}{{ '<｜User｜>' + m.content }}
{%- elif m.role == 'tool' %}{{ '<result>' + m.content + '</result>' }}
{%- else %}{{ '<｜Assistant｜></think>' + m.content }}
{%- if m.tool_calls %}{{ '\\n\\n<｜DSML｜function_calls>\\n' }}
{%- for call in m.tool_calls %}{{ '<｜DSML｜invoke name="' + call.function.name + '">\\n' }}
{%- for name, value in call.function.arguments | items %}
{{- '<｜DSML｜parameter name="' + name + '" string="' + (value is string) | tojson + '">' }}
{{- value if value is string else value | tojson }}{{ '</｜DSML｜parameter>\\n' }}{% endfor %}
{{- '</｜DSML｜invoke>\\n' }}{% endfor %}{{ '</｜DSML｜function_calls>' }}{% endif %}
{{- '<｜end▁of▁sentence｜>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜></think>' }}{% endif %}"""

GEMMA4 = """{{ '<bos>' }}
{%- for tool in tools or [] %}{{ '<|tool>' + tool | tojson + '<tool|>' }}{% endfor %}
{%- for m in messages %}{{ '<|turn>' + m.role + '\\n' }}
{%- for call in m.tool_calls %}{{ '<|tool_call>call:' + call.function.name + '{' }}
{%- for name, value in call.function.arguments | dictsort %}{{ ',' if not loop.first }}
{{- name + ':' }}{{ '<|"|>' + value + '<|"|>' if value is string else value | tojson }}
{%- endfor %}{{ '}<tool_call|>' }}{% endfor %}{{ m.content }}{{ '<turn|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|turn>assistant\\n' }}{% endif %}"""

PHI = """{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content }}
{%- for call in m.tool_calls %}{{ call.function | tojson }}{% endfor %}{{ '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""

GLM_SPECIAL = "[gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|> <|endoftext|>"
GLM_OTHERS = (
    "<tool_call> </tool_call> <tool_response> </tool_response> <think> </think> <arg_key>"
    " </arg_key> <arg_value> </arg_value>"
)
KIMI_SPECIAL = "[BOS] [EOS] <|im_end|> <|im_user|> <|im_assistant|> <|im_system|> <|im_middle|>"
KIMI_OTHERS = (
    "<|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|>"
    " <|tool_call_argument_begin|> <|tool_call_end|>"
)
DEEPSEEK_SPECIAL = "<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜>"
DEEPSEEK_OTHERS = (
    "<｜User｜> <｜Assistant｜> <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜>"
    " <｜tool▁call▁end｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜> <｜tool▁sep｜> </think>"
)
GEMMA4_SPECIAL = '<bos> <eos> <|turn> <turn|> <|tool> <tool|> <|tool_call> <tool_call|> <|"|>'

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
    "mistral_list": byte_level(MISTRAL.replace(MISTRAL_CALL, MISTRAL_LIST), MISTRAL_SPECIAL),
    "mistral_v11": byte_level(
        MISTRAL.replace("+ '[ARGS]'", "+ '[CALL_ID]' + call.id + '[ARGS]'"),
        f"{MISTRAL_SPECIAL} [CALL_ID]",
    ),
    "glm": byte_level(GLM, GLM_SPECIAL, GLM_OTHERS),
    "kimi": byte_level(KIMI, KIMI_SPECIAL, KIMI_OTHERS),
    "deepseek_v31": byte_level(
        DEEPSEEK.replace("HEAD", "' + call.function.name + '<｜tool▁sep｜>").replace("TAIL", ""),
        DEEPSEEK_SPECIAL,
        DEEPSEEK_OTHERS,
    ),
    "deepseek_v3": byte_level(
        DEEPSEEK.replace("HEAD", V3_HEAD).replace("TAIL", "\\n```"),
        DEEPSEEK_SPECIAL,
        DEEPSEEK_OTHERS,
    ),
    "deepseek_v32": byte_level(DSML, DEEPSEEK_SPECIAL, f"{DEEPSEEK_OTHERS} ｜DSML｜"),
    "gemma4": byte_level(GEMMA4, GEMMA4_SPECIAL),
    "plain_json": byte_level(PHI, PHI_SPECIAL, trims="right"),
    "trimmed_before": byte_level(PHI, PHI_SPECIAL, trims="left"),
}
