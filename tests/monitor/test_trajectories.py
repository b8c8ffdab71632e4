"""trajectories.jsonl: samples come back as they were, capped, and once."""

import dataclasses

import pytest

from ale_jax.monitor.trajectories import (
    MAX_TEXT_CHARS,
    MAX_TINT,
    MAX_TOKENS,
    MAX_TURNS,
    TRAJECTORIES_FILE,
    ChunkTokens,
    TrajectoryWriter,
    episode_views,
    read_trajectories,
)
from tests.monitor.fake_run import FAILED, SOLVED


def write(workdir, *samples, resume_step=None):
    with TrajectoryWriter(workdir, resume_step) as writer:
        for sample in samples:
            writer.write(sample)


def read(workdir):
    return read_trajectories(workdir / TRAJECTORIES_FILE).records


def at_step(step):
    return dataclasses.replace(SOLVED, step=step)


def test_samples_come_back_equal(tmp_path):
    write(tmp_path, SOLVED, FAILED)
    assert read(tmp_path) == (SOLVED, FAILED)


def test_texts_are_capped_and_say_how_much_is_gone(tmp_path):
    turn = dataclasses.replace(SOLVED.turns[0], action="x" * (MAX_TEXT_CHARS + 123))
    write(tmp_path, dataclasses.replace(SOLVED, turns=(turn,)))
    (sample,) = read(tmp_path)
    assert "123 characters left out" in sample.turns[0].action
    assert sample.turns[0].action.count("x") == MAX_TEXT_CHARS


def test_a_sample_of_too_many_turns_is_left_out(tmp_path):
    many = dataclasses.replace(SOLVED, turns=SOLVED.turns[:1] * (MAX_TURNS + 1))
    most = dataclasses.replace(SOLVED, turns=SOLVED.turns[:1] * MAX_TURNS)
    write(tmp_path, many, most)
    assert [len(sample.turns) for sample in read(tmp_path)] == [MAX_TURNS]


def test_what_would_make_a_line_or_a_file_that_nobody_reads_is_left_out(tmp_path, monkeypatch):
    wide = dataclasses.replace(SOLVED.turns[0], prompt="\N{SNAKE}" * MAX_TEXT_CHARS)
    write(tmp_path, dataclasses.replace(SOLVED, turns=(wide,) * MAX_TURNS))  # 12 bytes each
    assert read(tmp_path) == ()
    write(tmp_path, SOLVED)
    room = (tmp_path / TRAJECTORIES_FILE).stat().st_size * 2.5
    monkeypatch.setattr("ale_jax.files.MAX_FILE_BYTES", int(room))
    write(tmp_path, SOLVED, SOLVED)
    assert len(read(tmp_path)) == 2


def test_resume_cuts_later_samples(tmp_path):
    write(tmp_path, at_step(1), at_step(2), at_step(3))
    write(tmp_path, at_step(3), resume_step=2)
    assert [sample.step for sample in read(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("whole", "damaged", "answer"),
    [
        ("finished", "perfect", "perfect"),
        ('"num_prefix_turns": 0', '"num_prefix_turns": 99', "99 prefix turns"),
    ],
)
def test_what_cannot_be_a_sample_is_damage(tmp_path, whole, damaged, answer):
    write(tmp_path, SOLVED)
    path = tmp_path / TRAJECTORIES_FILE
    path.write_text(path.read_text().replace(whole, damaged))
    with pytest.raises(ValueError, match=rf"trajectories.jsonl, line 1.*{answer}"):
        read_trajectories(path)


def test_staleness_is_counted_in_versions():
    assert dataclasses.replace(SOLVED, start_version=4, trained_version=7).staleness == 3


def each(written=2):
    return ChunkTokens(
        prompt_ids=(5, 6, 7),
        action_ids=(8,) * written,
        logp_mu=(-0.5,) * written,
        logp_old=(-0.25,) * written,
        logp=(-0.125,) * written,
        version=(3,) * written,
        advantage=(1.5,) * written,
        credit=(0.15,) * written,
    )


def with_tokens(*turns):
    return dataclasses.replace(
        SOLVED, turns=tuple(dataclasses.replace(SOLVED.turns[0], each=e) for e in turns)
    )


def test_tokens_come_back_equal(tmp_path):
    sample = with_tokens(each(), None, each(4))
    assert sample.num_tokens == 3 + 2 + 3 + 4
    write(tmp_path, sample)
    assert read(tmp_path) == (sample,)


def test_of_a_trajectory_that_is_too_long_the_chunks_alone_are_kept(tmp_path):
    write(tmp_path, with_tokens(each(), each(MAX_TOKENS)))
    (sample,) = read(tmp_path)
    assert sample.turns == with_tokens(None, None).turns


def test_tokens_that_do_not_belong_together_are_damage(tmp_path):
    write(tmp_path, with_tokens(each()))
    path = tmp_path / TRAJECTORIES_FILE
    path.write_text(path.read_text().replace('"version": [3, 3]', '"version": [3]'))
    with pytest.raises(ValueError, match=r"line 1.*differ in number"):
        read_trajectories(path)


def test_a_chunk_is_coloured_by_its_credit_and_as_wide_as_its_tokens():
    turns = [
        dataclasses.replace(SOLVED.turns[0], credit=credit, tokens=tokens, each=None)
        for credit, tokens in ((0.5, 3), (-0.25, 1), (0.0, 2), (None, 2))
    ]
    (view,) = episode_views([dataclasses.replace(SOLVED, turns=tuple(turns))])
    assert [turn.sign for turn in view.turns] == ["positive", "negative", "zero", "untrained"]
    assert [turn.tint for turn in view.turns] == [MAX_TINT, MAX_TINT / 2, 0.0, 0.0]
    assert [turn.width for turn in view.turns] == [37.5, 12.5, 25.0, 25.0]
