"""Names of images are told apart, and nothing else is taken for one."""

import pytest

from ale_jax.sandbox.hub.store import ImageName, parse, parse_ours
from tests.rows import each_row


@each_row(
    "text, name",
    [
        ("ale-shell", ImageName("ale-shell", "shell")),
        ("ale-shell:latest", ImageName("ale-shell", "shell")),
        ("ale-a.b_c--d", ImageName("ale-a.b_c--d", "a.b_c--d")),
        ("ale/shell:0123456789ab", ImageName("ale/shell:0123456789ab", "shell", "0123456789ab")),
        ("ale-shell:mine", ImageName("ale-shell:mine")),
        ("ale/shell:0123", ImageName("ale/shell:0123")),
        ("debian", ImageName("debian")),
        ("localhost:5000/ale-shell", ImageName("localhost:5000/ale-shell")),
        ("debian@sha256:" + "0" * 64, ImageName("debian@sha256:" + "0" * 64)),
    ],
)
def test_whose_image_a_name_means(text, name):
    assert parse(text) == name


@each_row(
    "text", ["", "ale-", "ale-../shell", "ale-a/../b", "Ale", "a b", "a\n", "-v", "x" * 129, "/etc"]
)
def test_what_is_no_name_is_refused(text):
    with pytest.raises(ValueError, match="is not the name of an image"):
        parse(text)
    assert parse_ours(text) is None


def test_both_names_of_a_recipe_lead_to_the_same_moving_name():
    assert parse("ale/shell:0123456789ab").moving == parse("ale-shell").moving == "ale-shell"
    assert parse("debian:12").moving == "debian:12"
