"""Images come out of recipes whole, under their names, or not at all."""

import dataclasses
import subprocess

import pytest

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.hub import daemon, ensure
from ale_jax.sandbox.hub.recipe import read_recipe
from ale_jax.sandbox.hub.store import Capabilities
from tests.sandbox.hub.conftest import HOLDS_NOTHING, LABEL, is_gone, wait_until

pytestmark = pytest.mark.heavy

EMPTY = "tar --create --files-from /dev/null"


def failure(workshop) -> str:
    with pytest.raises(SandboxStartError) as caught:
        workshop.hub.ensure(workshop.image)
    return str(caught.value)


def reference(workshop) -> str:
    return read_recipe(workshop.name, workshop.folder).reference


def no_name_of(api, workshop) -> bool:
    tags = [tag for image in api.images(all=True) for tag in image["RepoTags"] or ()]
    return not any(workshop.name in tag for tag in tags)


def test_a_dockerfile_becomes_an_image_under_both_names(api, workshop):
    folder = workshop.dockerfile("COPY hello /hello")
    workshop.write({"hello": "hi"})
    made = workshop.hub.ensure(workshop.image)
    address = read_recipe(workshop.name, folder).address
    assert (made.name, made.reference) == (workshop.image, f"ale/{workshop.name}:{address}")
    image = daemon.find(api, workshop.image)
    assert image == daemon.find(api, made.reference)
    assert (image.id, image.bytes, image.created) == (made.image_id, 2, made.built)
    assert {key: image.labels[key] for key in ("ale.recipe", "ale.image")} == {
        "ale.recipe": address,
        "ale.image": workshop.image,
    }
    assert made.build_seconds > 0 and made.verified is None
    assert made.capabilities == HOLDS_NOTHING


def test_each_content_is_built_once_and_the_name_follows_the_recipe(api, workshop, monkeypatch):
    workshop.dockerfile()
    first = workshop.hub.ensure(workshop.image)
    workshop.dockerfile("ENV A=b")
    second = workshop.hub.ensure(workshop.image)
    assert second.reference != first.reference and second.image_id != first.image_id
    assert daemon.find(api, workshop.image).id == second.image_id
    monkeypatch.delattr(ensure, "build")
    assert workshop.hub.ensure(workshop.image) == second
    assert workshop.hub.ensure(first.reference) == first
    assert daemon.find(api, workshop.image).id == second.image_id
    workshop.dockerfile()
    assert workshop.hub.ensure(workshop.image) == first
    assert daemon.find(api, workshop.image).id == first.image_id


def test_capabilities_are_seen_from_outside(workshop, base):
    workshop.dockerfile(start=base)
    found = workshop.hub.ensure(workshop.image).capabilities
    assert found == Capabilities(True, True, True, True, "glibc")


def test_what_only_looks_like_a_capability_is_none(workshop):
    folder = workshop.dockerfile("COPY root /")
    root = folder / "root"
    for path in ("bin/bash", "usr/bin/real", "lib/ld-musl-x86_64.so.1", "lib/ld-musl-aarch64.so.1"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch(mode=0o755)
    (root / "bin/bash").chmod(0o644)  # is not executable
    (root / "usr/bin/python3").symlink_to("python4")  # leads nowhere
    (root / "usr/bin/tar").symlink_to("real")
    (root / "etc").mkdir()
    (root / "etc/passwd").write_text("root:x:0:0::/:/\nagents:x:1:1::/:/\nx:agent:2:2::/:/\n")
    found = workshop.hub.ensure(workshop.image).capabilities
    assert found == Capabilities(bash=False, python3=False, tar=True, agent=False, libc="musl")


def test_the_agent_is_found_where_its_file_is_a_link(workshop):
    etc = workshop.dockerfile("COPY root /") / "root/etc"
    (etc / "static").mkdir(parents=True)
    (etc / "static/passwd").write_text("agent:x:1:1::/:/\n")
    (etc / "passwd").symlink_to("static/passwd")
    found = workshop.hub.ensure(workshop.image).capabilities
    assert found == dataclasses.replace(HOLDS_NOTHING, agent=True)


def test_looking_into_an_image_leaves_no_container(api, workshop):
    workshop.dockerfile()
    made = workshop.hub.ensure(workshop.image)
    assert api.containers(all=True, filters={"ancestor": made.image_id}) == []


def test_a_failed_dockerfile_leaves_no_name_and_says_why(api, workshop, base):
    workshop.dockerfile("RUN echo famous last words; exit 7", start=base)
    said = failure(workshop)
    assert f"{workshop.folder / 'Dockerfile'}: The command" in said
    assert "returned a non-zero code: 7; correct the recipe" in said
    assert "\nfamous last words\n" in said and ".log" in said
    assert no_name_of(api, workshop)


def test_run_instructions_have_no_network_unless_the_recipe_says_so(workshop, base):
    workshop.dockerfile('RUN [ "$(ls /sys/class/net)" = lo ]', start=base)
    workshop.hub.ensure(workshop.image)
    workshop.dockerfile('RUN : && [ "$(ls /sys/class/net)" = lo ]', start=base)
    workshop.write({"recipe.json": '{"network": "host"}'})
    assert "non-zero code: 1" in failure(workshop)


@pytest.mark.timeout(60)
def test_a_dockerfile_that_takes_too_long_is_given_up(api, workshop, base, mark):
    workshop.dockerfile("RUN sleep 1000", start=base)
    workshop.write({"recipe.json": '{"build_seconds": 1}'})
    assert "it took longer than 1 s (build_seconds" in failure(workshop)
    wait_until(lambda: not api.containers(all=True, filters={"label": mark}))
    assert no_name_of(api, workshop)


def test_a_recipe_that_changes_before_it_is_sent_is_not_built(api, workshop, tmp_path):
    folder = workshop.dockerfile("COPY late /")
    workshop.write({"late": "1"})
    read = read_recipe(workshop.name, folder)
    workshop.write({"late": "2"})
    with pytest.raises(SandboxStartError, match="changed while it was built; start again"):
        ensure.build(api, read, tmp_path / "log", ())
    assert no_name_of(api, workshop)


def test_a_script_gets_the_name_and_the_labels_of_its_image(api, workshop, mark, command_line):
    workshop.script(f'{EMPTY} | docker import --change "LABEL $ALE_LABELS {mark}" - "$ALE_IMAGE"')
    made = workshop.hub.ensure(workshop.image)
    assert made.reference == reference(workshop)
    assert daemon.find(api, workshop.image).labels == {
        "ale.recipe": made.recipe,
        "ale.image": workshop.image,
        LABEL: mark.partition("=")[2],
    }


def by_hand(workshop, mark, *more: str) -> None:
    """A script that knows nothing of a registry, like envs/shell/image/build.sh."""
    label = f"--change 'LABEL {mark}' --change \"LABEL ale.recipe=$recipe\""
    workshop.script(
        'recipe=$(sha256sum < "$0" | cut -c 1-16)',
        'echo run >> "$ALE_TEST_RUNS"',
        f"{EMPTY} | docker import {label} - {workshop.image}",
        *more,
    )


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("ALE_TEST_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def test_a_script_that_names_its_image_itself_is_understood(
    api, workshop, mark, runs, command_line
):
    by_hand(workshop, mark)
    made = workshop.hub.ensure(workshop.image)
    assert made.reference == reference(workshop)
    assert daemon.find(api, workshop.image).id == made.image_id
    assert workshop.hub.ensure(workshop.image) == made
    assert runs.read_text() == "run\n"


def test_what_the_script_made_by_hand_is_adopted(api, workshop, mark, runs, command_line):
    by_hand(workshop, mark)
    subprocess.run([workshop.folder / "build.sh"], check=True, capture_output=True)
    made = daemon.find(api, workshop.image).id
    assert workshop.hub.ensure(workshop.image).image_id == made
    assert runs.read_text() == "run\n"


def test_what_another_script_made_is_not_adopted_but_kept(api, workshop, mark, runs, command_line):
    by_hand(workshop, mark)
    subprocess.run([workshop.folder / "build.sh"], check=True, capture_output=True)
    older = daemon.find(api, workshop.image)
    by_hand(workshop, mark, "# changed")
    made = workshop.hub.ensure(workshop.image)
    assert made.image_id != older.id and runs.read_text() == "run\nrun\n"
    assert daemon.find(api, workshop.image).id == made.image_id
    by_its_script = f"ale/{workshop.name}:{older.labels['ale.recipe'][:12]}"
    assert daemon.find(api, older.id).tags == (by_its_script,)


def test_a_failed_script_leaves_no_name_and_says_why(api, workshop, command_line):
    workshop.script("echo famous", "echo last words >&2", "exit 7", "docker import")
    said = failure(workshop)
    assert "exit code 7; correct the recipe" in said and said.endswith("famous\nlast words")
    assert no_name_of(api, workshop)


def test_a_script_that_makes_no_image_has_failed(workshop, api):
    workshop.script("true")
    assert "it left no image of that name ($ALE_IMAGE)" in failure(workshop)


def test_a_script_that_cannot_be_run_has_failed(workshop, api):
    workshop.write({"build.sh": "#!/not/there\n"})
    assert "exit code 126" in failure(workshop) and "/build.sh'" in failure(workshop)


def test_a_script_that_takes_too_long_is_ended_with_all_it_started(workshop, api, tmp_path):
    workshop.script(f"sleep 1000 & echo $! > {tmp_path}/pid", "wait")
    workshop.write({"recipe.json": '{"build_seconds": 1}'})
    assert "it took longer than 1 s" in failure(workshop)
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_what_a_script_leaves_in_the_background_is_ended(workshop, api, tmp_path):
    workshop.script(f"sleep 1000 > /dev/null 2>&1 & echo $! > {tmp_path}/pid")
    failure(workshop)
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_a_script_that_changes_its_recipe_has_failed(api, workshop, mark, command_line):
    line = f'{EMPTY} | docker import --change "LABEL $ALE_LABELS {mark}" - "$ALE_IMAGE"'
    workshop.script('echo x > "$(dirname "$0")/left"', line)
    assert "changed while it was built; start again" in failure(workshop)
    assert no_name_of(api, workshop)


def test_a_base_that_has_a_recipe_is_built_first(api, workshop):
    workshop.dockerfile(name=f"{workshop.name}-base")
    workshop.dockerfile(start=f"{workshop.image}-base")
    made = workshop.hub.ensure(workshop.image)
    lower = workshop.hub.inspect(f"{workshop.image}-base")
    assert api.history(made.image_id)[-1]["Created"] <= made.built
    assert lower.image_id in {each["Id"] for each in api.history(made.image_id)}


def test_a_missing_base_is_named_at_once(workshop, api):
    workshop.dockerfile(start="hubtest-not-there:1")
    said = failure(workshop)
    assert f"image {workshop.image!r} starts from 'hubtest-not-there:1'" in said
    assert "images build --pull hubtest-not-there:1" in said


def test_images_made_from_each_other_are_refused(workshop, api):
    workshop.dockerfile(start=f"{workshop.image}-b")
    workshop.dockerfile(start=workshop.image, name=f"{workshop.name}-b")
    chain = f"{workshop.image} -> {workshop.image}-b -> {workshop.image}"
    with pytest.raises(ValueError, match=chain):
        workshop.hub.ensure(workshop.image)
