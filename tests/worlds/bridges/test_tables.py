"""Data sets as Hugging Face lays them out: parquet files, and folders whose files are splits."""

import json
import sys

import pytest

from ale_jax.worlds.bridges.tables import Table
from ale_jax.worlds.items import EVAL, TRAIN
from tests.rows import each_row
from tests.worlds.bridges.test_questions import GSM8K, GSM8K_OPTIONS, family_of, played, write

NO_PYARROW = "pyarrow is not installed; type: make install-test"


def arrow():
    return pytest.importorskip("pyarrow", reason=NO_PYARROW)


def write_parquet(path, *rows):
    arrow()
    from pyarrow import Table as Columns
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(Columns.from_pylist(list(rows)), path)


def numbered(*numbers):
    return [{"question": f"{n}?", "answer": f"#### {n}"} for n in numbers]


def names(family, split):
    return [*family.items.read()[split]]


def test_a_folder_of_parquet_files_tells_its_splits(tmp_path):
    data = tmp_path / "gsm8k/data"
    write_parquet(data / "train-00000-of-00002.parquet", *numbered(1, 2))
    write_parquet(data / "train-00001-of-00002.parquet", *numbered(3))
    write_parquet(data / "test-00000-of-00001.parquet", *numbered(4, 1))
    family = family_of(tmp_path, "gsm8k", **GSM8K_OPTIONS)
    assert family.name == "gsm8k"
    trained = ["train-00000-of-00002:2", "train-00001-of-00002:1"]  # 1 is evaluated
    assert names(family, TRAIN) == trained
    assert names(family, EVAL) == ["test-00000-of-00001:1", "test-00000-of-00001:2"]
    assert played(family_of(tmp_path, "gsm8k", seconds=1.0, **GSM8K_OPTIONS), "0")[1] == 0.0


def test_a_parquet_file_is_played(tmp_path):
    rows = [{"question": "Which?", "choices": ["a", "b"], "answer": 1}]
    write_parquet(tmp_path / "set.parquet", *rows)
    options = {"answer": "answer", "check": "choice", "choices": "choices"}
    family = family_of(tmp_path, "set.parquet", prompt="{question}\n{choices}", **options)
    told, reward = played(family, "B")
    assert (told[0].content, reward) == ("Which?\nA. a\nB. b", 1.0)


@each_row(
    "files, options, splits",
    [
        (("train", "test", "validation"), {}, ("train", "test")),
        (("train", "validation"), {}, ("train", "validation")),
        (("train", "test", "other"), {"eval_split": "other"}, ("train", "other")),
        (("train", "test"), {"split": "test", "eval_split": "train"}, ("test", "train")),
        (("v0.1.4",), {}, ("v0.1.4",)),
        (("test",), {}, ("test",)),
        (("train", "extra"), {}, ("train",)),
    ],
)
def test_splits_are_found_by_the_names_of_files(files, options, splits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("set")
    for name in files:
        write(folder / f"{name}.jsonl", GSM8K)
    (folder / "README.md").write_text("no rows")
    parts = Table(str(folder), **options).parts()
    assert tuple(file.stem for (file,) in parts) == splits


@each_row(
    "files, options, said",
    [
        (("a", "b"), {}, "has the splits a, b: name one with `split`"),
        (("train",), {"split": "trian"}, "has the splits train, and not 'trian'"),
        (("train",), {"eval_split": "test"}, "has the splits train, and not 'test'"),
        ((), {}, "of no jsonl or parquet file"),
    ],
)
def test_splits_that_are_not_there_are_refused(files, options, said, tmp_path_factory):
    folder = tmp_path_factory.mktemp("set")
    for name in files:
        write(folder / f"{name}.jsonl", GSM8K)
    with pytest.raises(ValueError) as refused:
        Table(str(folder), **options).parts()
    assert said in str(refused.value)


def test_a_row_of_parquet_that_cannot_be_played_is_named(tmp_path):
    write_parquet(tmp_path / "set.parquet", *numbered(1), {"question": "Why?", "answer": None})
    with pytest.raises(ValueError, match=r"set.parquet, row 2: the column 'answer' is empty"):
        family_of(tmp_path, "set.parquet", **GSM8K_OPTIONS).items.count(TRAIN)


def test_a_damaged_parquet_file_is_named(tmp_path):
    arrow()
    file = tmp_path / "set.parquet"
    write_parquet(file, *numbered(*range(1000)))
    whole = file.read_bytes()
    for content in (
        b"",
        b"PAR1",
        json.dumps(GSM8K).encode(),
        whole[:-9],
        b"\0" * 2000 + whole[2000:],
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"set.parquet, after row 0: "):
            family_of(tmp_path, "set.parquet", **GSM8K_OPTIONS).items.count(TRAIN)


def test_without_its_library_parquet_is_refused_with_the_command(tmp_path, monkeypatch):
    (tmp_path / "set.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"set.parquet: .* needs pyarrow: pip install pyarrow"):
        family_of(tmp_path, "set.parquet", **GSM8K_OPTIONS).items.count(TRAIN)
