"""Tokenizers where torch is not installed, as after an installation of the package alone."""

import subprocess
import sys

import pytest

from ale_jax.model.tokenizer_library import ADVICE

USE = """
import importlib, pkgutil, sys, ale_jax
for module in pkgutil.walk_packages(ale_jax.__path__, "ale_jax."):
    importlib.import_module(module.name)
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
tokenizer = ChatTokenizer(train_bpe([{"role": "user", "content": "Read lemon.txt."}], 300))
assert tokenizer.grammar_vocabulary and "transformers" in sys.modules
"""


def said_by(code):
    """What a process says that runs `code`; torch is hidden from processes that tests start."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.heavy
def test_nothing_advises_to_install_torch():
    assert said_by(USE) == ""


@pytest.mark.heavy
def test_transformers_by_itself_does():
    assert ADVICE in said_by("import transformers")
