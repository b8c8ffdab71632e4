"""Which code a process runs, and how it is told from another's."""

from ale_jax.system.actors.code_version import PACKAGES, differing, own_code, source_digest


def test_the_digest_changes_with_every_file_and_name(tmp_path):
    package = tmp_path / "worlds"
    (package / "deep").mkdir(parents=True)
    digests = []
    for name, text in (("a.py", "1"), ("a.py", "2"), ("deep/a.py", "2"), ("deep/b.py", "")):
        (package / name).write_text(text)
        digests.append(source_digest(package))
    (package / "notes.txt").write_text("not code")
    assert len(set(digests)) == 4 and source_digest(package) == digests[-1]


def test_it_covers_the_worlds_and_names_the_versions():
    assert [package.name for package in PACKAGES] == ["ale_jax", "envs"]
    assert list(own_code()) == ["python", "ray", "ale-jax", "source"]


def test_only_what_differs_is_said():
    ours = own_code()
    assert differing(dict(ours), ours) == ""
    theirs = ours | {"ray": "2.1.0", "source": "0"}
    assert differing(theirs, ours) == (
        f"it has ray 2.1.0, source 0, and this process has ray {ours['ray']}, "
        f"source {ours['source']}"
    )
