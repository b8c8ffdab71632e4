"""Which chunks are worth imitating."""

import numpy as np

from ale_jax.agent.tools import bash, render_tool_call
from ale_jax.data.selection import Chunk, error_mask, relevance_mask


def chunk(command, observation, failed=False):
    return Chunk(render_tool_call(bash(command)), observation, failed)


def test_a_call_that_failed_is_not_learned():
    chunks = [chunk("cat a", "x"), chunk("cat b", "no", failed=True), chunk("ls", "a")]
    np.testing.assert_array_equal(error_mask(chunks), [True, False, True])


def test_a_near_repetition_with_the_same_answer_is_not_learned():
    chunks = [
        chunk("ls -l barn", "a.txt"),
        chunk("cat a.txt", "x"),
        chunk("ls  -la 'barn'", "a.txt"),  # options, spaces and quotes apart, the first again
        chunk("ls -l barn", "a.txt\nb.txt"),  # says something new
        chunk("ls acorn", "a.txt"),  # another folder, as it happens with the same content
        chunk("cat a.txt", "x"),
    ]
    np.testing.assert_array_equal(relevance_mask(chunks), [True, True, False, True, True, False])


def test_commands_that_say_nothing_are_told_apart_by_their_words():
    chunks = [
        chunk("mv d/a.bak d/a.md", "(no output)"),
        chunk("mv d/b.bak d/b.md", "(no output)"),
        chunk("sed -i 's/lime/pond/' a", "(no output)"),
        chunk("sed -i 's/pond/lime/' a", "(no output)"),
    ]
    assert relevance_mask(chunks).all()


def test_no_chunks_have_an_empty_mask():
    assert error_mask([]).shape == relevance_mask([]).shape == (0,)
    assert error_mask([]).dtype == relevance_mask([]).dtype == bool
