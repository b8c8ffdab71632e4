"""What is compiled for TPUs covers the kinds of layers, and copies of pages are counted."""

import typing

import pytest

from ale_jax.config.architecture import FeedForward, Mixer
from benchmarks.tpu_layers import KINDS, copies, host_exchanges, main, policy_of

PAGES = "bf16[8,7168,64,128]{3,2,1,0:T(8,128)(2,1)}"
FAST, OTHER = PAGES[:-1] + "S(1)}", PAGES.replace("3,2,1,0", "1,3,2,0")
TEXT = f"""
  %copy.1 = {PAGES} copy(%cache.1), backend_config={{}}
  %copy-start.2 = ({PAGES}, {PAGES}, u32[]) copy-start(%cache.2)
  %copy-start.5 = ({FAST}, {PAGES}, u32[]{{:S(2)}}) copy-start(%cache.3)
  %copy-start.8 = ({PAGES}, {FAST}, u32[]{{:S(2)}}) copy-start(%cache.5)
  %copy-start.6 = ({FAST}, {OTHER}, u32[]{{:S(2)}}) copy-start(%cache.4)
  %send.7 = (f32[8]{{0}}, u32[], token[]) send(%x, %token)
  %copy.3 = bf16[2048]{{0:T(1024)}} copy(%norm.1)
  %fusion.4 = {PAGES} fusion(%cache.1)
"""


def test_each_kind_of_mixer_and_feed_forward_is_compiled():
    assert {type(kind.mixer) for kind in KINDS.values()} == set(typing.get_args(Mixer))
    assert {type(kind.feed_forward) for kind in KINDS.values()} == set(typing.get_args(FeedForward))


def test_copies_of_whole_pages_are_counted_and_no_moves_into_fast_memory():
    assert copies(TEXT, policy_of(KINDS["attention"])) == 3


def test_exchanges_with_the_host_are_counted():
    assert host_exchanges(TEXT) == 1


def test_a_compiler_that_is_not_there_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([str(tmp_path / "libtpu.so")])
    assert "pip download --no-deps libtpu" in capsys.readouterr().err
