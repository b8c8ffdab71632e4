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

\tdef f(a):   return a[0]  \r\n<tool_call>\n{"name": "ls"}</tool_call>  <|im_end|> done."""
# As the authors' files have them.
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
AFTER_SPLIT = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
DIGITS = pre_tokenizers.Digits(individual_digits=True)


def split_by(pattern):
    return [pre_tokenizers.Split(Regex(pattern), behavior="isolated"), AFTER_SPLIT]


AUTHORS = {
    "qwen2": (split_by(QWEN2), normalizers.NFC(), False),
    "llama-bpe": (split_by(LLAMA3), None, True),
    "smollm": ([DIGITS, BYTES], None, False),
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
        {"rules": "tekken"},
        "its kind 'gpt2', 'tekken' is not known, only 'llama', a",
    ),
    "no template": ({}, "has no chat template: add one"),
}


@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_read_as_it_is_meant_is_refused(options, message, tmp_path):
    theirs = byte_level(*AUTHORS["qwen2"])
    if not options:
        theirs.chat_template = None
    with pytest.raises(ValueError, match=message):
        ChatTokenizer.load(write_tokenizer(tmp_path / "x.gguf", theirs, **options))
