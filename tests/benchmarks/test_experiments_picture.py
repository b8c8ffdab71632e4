"""The pictures of the experiments show what the results say."""

import pytest

from ale_jax.files import write_json
from benchmarks.experiments import picture
from benchmarks.experiments.figures import read_run, summarize
from tests.benchmarks.finished_run import write_run

pytestmark = pytest.mark.slow


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Writes a result whose arms solve as many of 40 tasks, by seed; gives where it lies."""
    monkeypatch.setattr(picture, "RESULTS", tmp_path)

    def write(name, overrides, solved):
        arms = {}
        for arm, counts in solved.items():
            folders = [tmp_path / f"{arm}_{seed}" for seed in range(len(counts))]
            for seed, (folder, count) in enumerate(zip(folders, counts)):
                write_run(folder, seed, count)
            settings = {"algorithm": arm.partition("_")[0], "overrides": overrides(arm)}
            arms[arm] = settings | summarize(list(map(read_run, folders)))
        found = {"question": "Which?", "arms": arms}
        write_json(tmp_path / f"{name}.json", found)
        return found

    return write


def test_a_square_is_the_mean_and_a_circle_a_seed(results):
    found = results("algorithms", lambda arm: {}, {"ipa": (20, 24, 28), "grpo": (10,)})
    _, finals = picture.draw(found).axes
    squares = [bar.lines[0].get_xdata()[0] for bar in finals.containers]
    assert squares == pytest.approx([60, 25])
    circles = [line for line in finals.lines if line.get_marker() == "o"]
    assert list(circles[0].get_xdata()) == pytest.approx([50, 60, 70])
    assert [text.get_text() for text in finals.texts] == ["60.0", "25.0"]
    assert [label.get_text() for label in finals.get_yticklabels()] == ["ipa", "grpo"]


def test_a_curve_is_the_mean_of_the_seeds(results):
    found = results("algorithms", lambda arm: {}, {"ipa": (20, 24)})
    found["arms"]["ipa"]["runs"][1]["curve"] = [[20, 0.7], [24, 0.9]]
    curves, _ = picture.draw(found).axes
    x, y = curves.lines[0].get_data()
    assert (list(x), list(y)) == ([20, 24], pytest.approx([60, 70]))  # the other's are 0.5


def test_where_starts_go_back_they_are_drawn_too(results):
    schemes = {"ipa_start": "none", "ipa_back": "rollback"}
    solved = dict.fromkeys(schemes, (20, 24))
    found = results("vaults", lambda arm: {"resampling.scheme": schemes[arm]}, solved)
    for run, start in zip(found["arms"]["ipa_back"]["runs"], (5.0, 7.0)):
        run["starts"] = [[20, start], [24, 1.0]]
    starts, curves, _ = picture.draw(found).axes
    assert [list(line.get_ydata()) for line in starts.lines] == [[0, 0], [6, 1]]
    assert list(curves.lines[1].get_ydata()) == pytest.approx([50, 50])


def test_arms_of_several_alphas_are_drawn_against_it_and_against_their_seeds(results):
    solved = {"ipa_0": (20, 28), "ipa_8": (10, 26), "tis_0": (30,), "tis_8": (0,)}
    found = results("staleness", lambda arm: {"rl.alpha": float(arm[-1])}, solved)
    finals, lost = picture.draw(found).axes
    assert heights(finals) == [pytest.approx([60, 45]), pytest.approx([75, 0])]
    assert heights(lost) == [pytest.approx([0, -15]), pytest.approx([0, -75])]
    assert errors(lost) == [pytest.approx([0, 10]), [0, 0]]  # -25 and -5 points; of one seed, none
    for axes in (finals, lost):
        assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "8"]


def heights(axes):
    return [list(line.lines[0].get_ydata()) for line in axes.containers]


def errors(axes):
    """Half of what each bar spans."""
    bars = [line.lines[2][0].get_segments() for line in axes.containers]
    return [[float(high - low) / 2 for (_, low), (_, high) in segments] for segments in bars]


def test_a_seed_that_the_first_alpha_lacks_is_not_compared(results):
    solved = {"ipa_0": (20,), "ipa_8": (10, 40)}
    found = results("staleness", lambda arm: {"rl.alpha": float(arm[-1])}, solved)
    finals, lost = picture.draw(found).axes
    assert heights(finals) == [pytest.approx([50, 62.5])]
    assert heights(lost) == [pytest.approx([0, -25])]


def test_arms_beyond_the_colours_are_dashed_and_never_left_out(results):
    many = results("many", lambda arm: {}, {f"ipa_{n}": (20,) for n in range(13)})
    seven = many | {"arms": dict(list(many["arms"].items())[:7])}
    curves, finals = picture.draw(seven).axes
    looks = [(line.get_color(), line.get_linestyle()) for line in curves.lines]
    assert looks[0] == (looks[6][0], "-") and looks[6][1] == "--" and len(set(looks)) == 7
    assert [label.get_text() for label in finals.get_yticklabels()][5:] == ["ipa 5", "- - ipa 6"]
    with pytest.raises(ValueError, match="13 arms are too many"):
        picture.draw(many)


def test_a_picture_is_written_and_equal_results_make_equal_files(results, tmp_path):
    results("algorithms", lambda arm: {}, {"ipa": (20, 24)})
    first, second = tmp_path / "first.png", tmp_path / "second.png"
    for out in (first, second):
        assert picture.main(["algorithms", f"--out={out}"]) == 0
    assert first.read_bytes()[:4] == b"\x89PNG" and first.read_bytes() == second.read_bytes()


def test_what_was_not_measured_is_not_drawn(results, capsys):
    with pytest.raises(SystemExit):
        picture.main(["attention_credit"])
    assert (
        "attention_credit.json is missing: python -m benchmarks.experiments attention_credit"
        in capsys.readouterr().err
    )
