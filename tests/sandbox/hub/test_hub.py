"""What is here is told, what is damaged is made good, and nothing is removed but what is ours."""

import contextlib
import dataclasses
import threading

import pytest
from docker.errors import NotFound

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.hub import daemon
from ale_jax.sandbox.hub.hub import Hub, find_recipe
from ale_jax.sandbox.hub.recipe import read_recipe
from tests.sandbox.hub.conftest import ROOT

pytestmark = pytest.mark.heavy


@pytest.fixture
def three(api, workshop):
    """Three versions of one image, oldest first."""
    return workshop.versions(api)


@pytest.fixture
def container(api):
    """Makes containers that are never started."""
    made = []

    def make(image: str) -> str:
        made.append(api.create_container(image, ["-"])["Id"])
        return made[-1]

    yield make
    for each in made:
        with contextlib.suppress(NotFound):
            api.remove_container(each, force=True, v=True)


def is_here(api, manifest) -> bool:
    return daemon.find(api, manifest.image_id) is not None


def test_the_repository_has_the_recipe_of_its_image():
    assert find_recipe("shell").resolve() == ROOT / "envs" / "shell" / "image"
    assert find_recipe("nobody") is None


def test_inspect_tells_what_each_name_stands_for(workshop, three):
    oldest, _, newest = three
    assert workshop.hub.inspect(workshop.image) == newest
    assert workshop.hub.inspect(oldest.reference) == oldest


def test_an_image_that_several_contents_lead_to_has_a_manifest_under_each(workshop, api, three):
    newest = three[2]
    other = f"ale/{workshop.name}:{'f' * 12}"
    daemon.tag(api, daemon.find(api, newest.image_id), other)
    assert workshop.hub.inspect(newest.reference) == newest
    assert workshop.hub.inspect(other) == dataclasses.replace(
        newest, reference=other, recipe="f" * 12
    )


def test_inspect_of_what_is_not_here_says_how_to_make_it(workshop, api):
    with pytest.raises(ValueError, match=rf"build it with Hub\(\).ensure\('{workshop.image}'\)"):
        workshop.hub.inspect(workshop.image)


def test_the_list_has_every_version_and_what_was_asked_for(workshop, api, three, tmp_path):
    workshop.load(api, workshop.name, "mine")
    mine = workshop.hub.ensure(f"{workshop.name}:mine")

    def listed(hub: Hub) -> list:
        return [each for each in hub.list_images() if workshop.name in each.name]

    assert listed(workshop.hub) == [*three, mine]
    nothing_known = Hub(workshop.find, tmp_path / "other state")
    assert listed(nothing_known) == three


def test_the_list_leaves_out_what_somebody_else_removed(workshop, api, three):
    for tag in (workshop.image, three[2].reference):
        daemon.untag(api, tag)
    ours = [each for each in workshop.hub.list_images() if each.name == workshop.image]
    assert ours == sorted(three[:2], key=lambda each: each.reference)


@pytest.mark.parametrize("damage", ["", '{"name": 3}'])
def test_a_damaged_manifest_is_written_anew_from_what_the_daemon_says(
    workshop, api, damage, caplog
):
    workshop.dockerfile()
    made = workshop.hub.ensure(workshop.image)
    (path,) = workshop.hub.state.rglob("*.json")
    path.write_text(damage)
    again = workshop.hub.inspect(workshop.image)
    assert (again.image_id, again.built, again.capabilities) == (
        *(made.image_id, made.built, made.capabilities),
    )
    assert again.build_seconds is None
    (aside,) = workshop.hub.state.rglob("*.damaged.*")
    assert aside.read_text() == damage and f"{path}: damaged" in caplog.text
    assert workshop.hub.ensure(workshop.image) == again


def test_a_manifest_of_another_image_is_not_believed(workshop, api, three):
    first, second, _ = three
    daemon.untag(api, first.reference)
    daemon.tag(api, daemon.find(api, second.image_id), first.reference)
    assert workshop.hub.inspect(first.reference).image_id == second.image_id


def test_remove_takes_all_names_of_the_image_and_no_other_version(workshop, api, three):
    oldest, _, newest = three
    gone = workshop.hub.remove(workshop.image)
    assert set(gone) == {f"{workshop.image}:latest", newest.reference}
    assert [is_here(api, each) for each in three] == [True, True, False]
    assert workshop.hub.remove(oldest.reference) == (oldest.reference,)
    assert [is_here(api, each) for each in three] == [False, True, False]
    left = [path.name for path in workshop.hub.state.rglob("*.json")]
    assert len(left) == 1
    with pytest.raises(ValueError, match="is not here; type: docker images"):
        workshop.hub.remove(workshop.image)


def test_an_image_in_use_is_not_removed(workshop, api, three, container):
    user = container(three[2].image_id)
    name = api.inspect_container(user)["Name"].lstrip("/")
    with pytest.raises(ValueError, match=f"is in use by {name}; .*type: docker rm {name}"):
        workshop.hub.remove(workshop.image)
    assert workshop.hub.inspect(workshop.image) == three[2]
    api.remove_container(user)
    container(three[0].image_id)
    workshop.hub.remove(workshop.image)


def test_an_image_whose_child_is_in_use_is_not_removed(workshop, api, container):
    workshop.dockerfile(name=f"{workshop.name}-base")
    workshop.dockerfile(start=f"{workshop.image}-base")
    workshop.hub.ensure(workshop.image)
    container(workshop.image)
    with pytest.raises(ValueError, match="is in use by"):
        workshop.hub.remove(f"{workshop.image}-base")


def test_images_of_others_are_not_removed_even_if_made_from_ours(workshop, api, three):
    image = daemon.find(api, three[0].image_id)
    daemon.tag(api, image, f"{workshop.name}:mine")
    with pytest.raises(ValueError, match=f"left alone; type: docker rmi {workshop.name}:mine"):
        workshop.hub.remove(f"{workshop.name}:mine")
    # Called as a recipe's image would be, but its label says that it only starts from one.
    daemon.tag(api, image, f"{workshop.image}-child")
    with pytest.raises(ValueError, match="left alone"):
        workshop.hub.remove(f"{workshop.image}-child")
    workshop.hub.remove(three[0].reference)
    assert daemon.find(api, f"{workshop.name}:mine").id == image.id
    # Made by hand, as make runtimes does, and then called something else.
    workshop.load(api, workshop.name, "hand", "ale.recipe=0123456789abcdef")
    with pytest.raises(ValueError, match="left alone"):
        workshop.hub.remove(f"{workshop.name}:hand")


def test_prune_keeps_the_newest_and_what_is_in_use(workshop, api, three, container):
    oldest, middle, newest = three
    container(oldest.image_id)
    pruned = workshop.hub.prune(keep=1, name=workshop.image)
    assert (pruned.removed, pruned.in_use) == ((middle.reference,), (oldest.reference,))
    assert [is_here(api, each) for each in three] == [True, False, True]
    assert workshop.hub.inspect(workshop.image) == newest


def test_prune_keeps_what_the_name_stands_for_even_if_it_is_old(workshop, api, three):
    daemon.tag(api, daemon.find(api, three[0].image_id), workshop.image)
    assert workshop.hub.prune(keep=2, name=workshop.image).removed == (three[1].reference,)
    assert [is_here(api, each) for each in three] == [True, False, True]
    with pytest.raises(ValueError, match="keep 0 must be at least 1"):
        workshop.hub.prune(keep=0, name=workshop.image)


def test_what_is_missing_and_cannot_be_built_is_known_at_once(workshop, api, three):
    with pytest.raises(SandboxStartError, match=r"images build --pull hubtest-nothing:1$"):
        workshop.hub.ensure("hubtest-nothing:1")
    with pytest.raises(SandboxStartError, match="no recipe of that name"):
        workshop.hub.ensure("ale-hubtest-nothing")
    old, now = three[0].reference, read_recipe(workshop.name, workshop.dockerfile()).reference
    workshop.hub.remove(old)
    with pytest.raises(SandboxStartError, match=f"has changed and makes '{now}'"):
        workshop.hub.ensure(old)


def test_an_image_without_a_recipe_only_has_to_be_there(workshop, api, three):
    daemon.tag(api, daemon.find(api, three[0].image_id), f"{workshop.name}:mine")
    found = workshop.hub.ensure(f"{workshop.name}:mine")
    assert (found.name, found.recipe) == (f"{workshop.name}:mine", None)
    assert found.image_id == three[0].image_id


def test_many_are_ensured_side_by_side_and_each_failure_is_told(workshop, api):
    workshop.dockerfile(name=f"{workshop.name}-a")
    workshop.dockerfile(start="hubtest-nothing", name=f"{workshop.name}-b")
    workshop.write({"none": ""}, name=f"{workshop.name}-c")
    images = [f"{workshop.image}-{letter}" for letter in "abcd"]
    pairs, most, now = threading.Barrier(2, timeout=60), [], set()

    def find(name: str):
        now.add(name)
        pairs.wait()  # only passed by two at once
        most.append(len(now))
        pairs.wait()
        now.remove(name)
        return workshop.find(name)

    hub = Hub(find, workshop.hub.state)
    outcomes = hub.ensure_all([*images, images[0]], workers=2)
    assert [each.name for each in outcomes] == images and set(most) == {2}
    assert outcomes[0].manifest == workshop.hub.inspect(images[0]) and not outcomes[0].trouble
    assert [each.manifest for each in outcomes[1:]] == [None] * 3
    for outcome, reason in zip(outcomes[1:], ("starts from", "holds neither", "no recipe")):
        assert reason in outcome.trouble


CALLS = {
    "ensure": lambda hub: hub.ensure("ale-shell"),
    "inspect": lambda hub: hub.inspect("ale-shell"),
    "list": lambda hub: hub.list_images(),
    "remove": lambda hub: hub.remove("ale-shell"),
    "prune": lambda hub: hub.prune(),
    "validate": lambda hub: hub.validate("ale-shell", None, "docker"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_without_a_daemon_the_line_to_type_is_told(call, tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(SandboxStartError, match=r"no daemon answers .*; type: make runtimes"):
        call(Hub(state=tmp_path))


def test_an_unknown_way_to_pull_is_refused(workshop, api):
    with pytest.raises(ValueError, match="pull 'always' must be one of never, missing"):
        workshop.hub.ensure(workshop.image, pull="always")
