"""A table that is one test loses no failure, and tells which rows they are."""

import pytest

from tests.rows import each_row


def test_every_row_that_fails_is_told_by_its_name():
    seen = []

    @each_row("number, square", [(1, 1), (2, 5), (3, 9), (4, 15)], ids="abcd")
    def table(number, square):
        seen.append(number)
        assert number**2 == square

    with pytest.raises(BaseExceptionGroup, match="2 of 4 rows") as caught:
        table()
    assert [error.__notes__[-1] for error in caught.value.exceptions] == ["row: b", "row: d"]
    assert seen == [1, 2, 3, 4]


def test_a_row_that_does_not_raise_as_it_should_has_failed():
    @each_row("text", ["1", "x"])
    def table(text):
        with pytest.raises(ValueError, match="invalid"):
            int(text)

    with pytest.raises(BaseExceptionGroup, match="1 of 2 rows"):
        table()


@pytest.mark.parametrize("factor", [2, 3])
@each_row("left", [1, 2])
@each_row("right", [3, 4])
def test_tables_cross_and_fixtures_reach_every_row(tmp_path, factor, left, right):
    assert tmp_path.is_dir() and (left * right) * factor == left * (right * factor)


def test_a_table_without_rows_is_refused():
    with pytest.raises(AssertionError, match="needs rows"):
        each_row("text", [])
