"""The tokenizer of a GGUF file gives the ids of the tokenizer.json that it was converted from."""

import json

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from ale_jax.model.tokenizer import ChatTokenizer
from tests.model.chat_families import FAMILIES
from tests.model.weights.gguf_files import write_tokenizer

TEXT = """It's 12345 and 678, they'LL see naïve cafe\u0301s: x = '😀';

\tdef f(a):   return a[0]  \r\n<tool_call>\n{"name": "ls"}</tool_call>  <|im_end|> done.
XMLParser's /a/b//
 का中文テスト3.5中?!

(see)."""
# As the authors' files have them.
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)
SEED_CODER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
AFTER_SPLIT = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
DIGITS = pre_tokenizers.Digits(individual_digits=True)


def split_by(*patterns):
    steps = [pre_tokenizers.Split(Regex(each), behavior="isolated") for each in patterns]
    return [*steps, AFTER_SPLIT]


WHOLE = True
AUTHORS = {
    "qwen2": (split_by(QWEN2), normalizers.NFC(), False),
    "qwen35": (split_by(QWEN35), normalizers.NFC(), False),
    "llama-bpe": (split_by(LLAMA3), None, WHOLE),
    "dbrx": (split_by(LLAMA3), None, False),
    "glm4": (split_by(LLAMA3), None, False),
    "gpt-4o": (split_by(GPT4O), None, WHOLE),
    "tekken": (split_by(TEKKEN), None, WHOLE),
    "deepseek-v3": (split_by(*DEEPSEEK_V3), None, False),
    "seed-coder": (split_by(SEED_CODER), None, False),
    "smollm": ([DIGITS, BYTES], None, False),
    "refact": ([DIGITS, BYTES], None, False),
    "olmo": ([BYTES], normalizers.NFC(), False),
    "gpt-2": ([BYTES], None, False),
    None: ([BYTES], None, False),
}


def with_chat(rust):
    rust.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    rust.add_tokens(
        [AddedToken(name, normalized=False) for name in ("<tool_call>", "</tool_call>")]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rust, eos_token="<|im_end|>")
    tokenizer.chat_template = FAMILIES["hermes"]().chat_template
    return tokenizer


def byte_level(steps, normalizer, whole):
    rust = Tokenizer(models.BPE())
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.Sequence(steps), decoders.ByteLevel()
    if normalizer:
        rust.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=380, initial_alphabet=alphabet, show_progress=False)
    # Fewer merges of digits than a model's rules allow would hide how they are split.
    rust.train_from_iterator([TEXT, "12 123 1234 345 345 6 78 678 \n\n \n\n cafés"] * 2, trainer)
    state = json.loads(rust.to_str())
    state["model"]["ignore_merges"] = whole
    if whole:  # and a token that no merges lead to
        state["model"]["merges"] = [m for m in state["model"]["merges"] if "".join(m) != "Ġsee"]
    return with_chat(Tokenizer.from_str(json.dumps(state)))


def same(theirs, path):
    """Whether added tokens, template and the ids of texts are those of the other tokenizer."""
    loaded = ChatTokenizer.load(path)
    wanted, own = theirs.added_tokens_decoder, loaded._tokenizer.added_tokens_decoder
    assert {n: str(token) for n, token in own.items()} == {n: str(t) for n, t in wanted.items()}
    assert [own[n].special for n in wanted] == [token.special for token in wanted.values()]
    assert loaded.vocab_size == len(theirs)
    rust = theirs.backend_tokenizer
    for text in (TEXT, TEXT * 2, " ", "", "\n\n \n", "done", "</s>", "e\u0301", "12345678"):
        ids = rust.encode(text, add_special_tokens=False).ids
        assert loaded.text_ids(text).tolist() == ids
        assert loaded._tokenizer.decode(ids) == theirs.decode(ids)
    chats = ChatTokenizer(theirs), loaded
    told = [{"role": "user", "content": TEXT}]
    first, second = (chat.prompt_ids(told, first=True).tolist() for chat in chats)
    assert first == second and chats[0].stop_ids == loaded.stop_ids
    return True


@pytest.mark.parametrize("rules", AUTHORS)
def test_a_byte_level_tokenizer_is_the_authors(rules, tmp_path):
    theirs = byte_level(*AUTHORS[rules])
    assert same(theirs, write_tokenizer(tmp_path / "x.gguf", theirs, rules))


def test_a_sentencepiece_tokenizer_is_the_authors(tmp_path):
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = ["th", "▁t", "▁th", "an", "nd", "and", "▁and", "de", "def", "▁de"]
    names = list(dict.fromkeys([*names, *"▁Itsandeh'xf</>", *words]))
    merges = [("t", "h"), ("▁", "t"), ("▁t", "h"), ("▁", "th"), ("a", "n"), ("n", "d")]
    merges += [("an", "d"), ("a", "nd"), ("▁", "and"), ("d", "e"), ("de", "f"), ("▁", "de")]
    vocabulary = {name: number for number, name in enumerate(names)}
    bpe = models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    rust = Tokenizer(bpe)
    spaces = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    ends = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    rust.normalizer = normalizers.Sequence(spaces)
    rust.decoder = decoders.Sequence([*ends, decoders.Strip(" ", 1, 0)])
    rust.add_special_tokens(["<unk>", "<s>", "</s>"])
    theirs = with_chat(rust)
    theirs.bos_token = "<s>"
    first = {}
    for rank, pair in enumerate(merges):
        first.setdefault("".join(pair), -float(rank))
    scores = [first.get(name, -1000.0) for name in theirs.convert_ids_to_tokens(range(len(theirs)))]
    path = write_tokenizer(tmp_path / "x.gguf", theirs, scores=scores)
    assert same(theirs, path)
    # As tokenizer.json has it, whoever tokenizes without a template begins with it.
    rust.post_processor = processors.TemplateProcessing("<s>:0 $A:0", special_tokens=[("<s>", 1)])
    loaded = ChatTokenizer.load(path)._tokenizer
    assert loaded("the def")["input_ids"] == rust.encode("the def").ids


BAD = {
    "unknown rules": (
        {"rules": "kimi-k2"},
        "its kind 'gpt2', 'kimi-k2' is not known, only 'llama', a",
    ),
    "no template": ({"chat_template": None}, "has no chat template: add one"),
    "rules that are a list": ({"ggml.pre": ["qwen2"]}, "'gpt2', .'qwen2'. is not known"),
    "no tokens": ({"ggml.tokens": None}, "ggml.tokens is no list of tokens"),
    "tokens that are numbers": ({"ggml.tokens": [1, 2]}, "ggml.tokens is no list of tokens"),
    "a token twice": ({"ggml.tokens": ["a", "a"]}, "ggml.tokens: a token occurs twice"),
    "an endless token": ({"ggml.tokens": ["a" * 2000]}, "a token of more than 1024 letters"),
    "few types": ({"ggml.token_type": [1]}, "ggml.token_type must hold a number for each of the"),
    "no such token": ({"ggml.eos_token_id": 9999}, "ggml.eos_token_id 9999 is the number of no t"),
    "a negative token": ({"ggml.eos_token_id": -1}, "ggml.eos_token_id -1 is the number of no t"),
    "merges of what is no token": ({"ggml.merges": ["é é"]}, "its tokenizer cannot be read"),
    "merges that are numbers": ({"ggml.merges": [1]}, "its tokenizer cannot be read"),
    "a template that is a number": (
        {"chat_template": 1},
        "x.gguf: the chat template cannot be",
    ),
    "no scores": ({"ggml.model": "llama"}, "ggml.scores must hold a number for each"),
    "another normalizer": (
        {"ggml.model": "llama", "ggml.remove_extra_whitespaces": True},
        "ggml.remove_extra_whitespaces is not supported: take a Hugging Face folder",
    ),
}


@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_read_as_it_is_meant_is_refused(options, message, tmp_path):
    theirs = byte_level(*AUTHORS["qwen2"])
    with pytest.raises(ValueError, match=message):
        ChatTokenizer.load(write_tokenizer(tmp_path / "x.gguf", theirs, **options))
