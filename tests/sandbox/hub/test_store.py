"""Locks hold between processes and end with them; damaged files are named and lost to nobody."""

import subprocess
import sys

import pytest

from ale_jax.sandbox.hub.store import (
    Capabilities,
    ImageStore,
    Manifest,
    Verification,
    default_state,
    from_json,
    open_store,
    to_json,
)
from tests.sandbox.hub.conftest import ROOT, is_waiting, wait_until

MANIFEST = Manifest(
    name="ale-x",
    reference="ale/x:0123456789ab",
    recipe="0123456789ab",
    image_id="sha256:1",
    bytes=3,
    built=4.5,
    build_seconds=None,
    capabilities=Capabilities(bash=True, python3=True, tar=False, agent=False, libc="musl"),
    verified=Verification(time=6.5, runtime="docker", ok=False, detail="it is not"),
)
HOLD = """
import pathlib, sys, time
from ale_jax.sandbox.hub.store import ImageStore
with ImageStore(pathlib.Path(sys.argv[1])).lock("a/b", shared=sys.argv[2] == "shared"):
    print("held", flush=True)
    time.sleep(60 * float(sys.argv[3]))
"""


@pytest.fixture
def hold(tmp_path):
    """Starts a process that takes the lock, and keeps it for so many minutes."""
    started = []

    def start(shared: str, minutes: str) -> subprocess.Popen:
        line = [sys.executable, "-c", HOLD, tmp_path, shared, minutes]
        started.append(subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.heavy
@pytest.mark.parametrize("second", ["exclusive", "shared"])
def test_a_lock_is_waited_for_until_its_holder_is_killed(hold, second):
    first = hold("exclusive", "1")
    assert first.stdout.readline() == "held\n"
    waiting = hold(second, "0")
    wait_until(lambda: is_waiting(waiting.pid))
    first.kill()
    assert waiting.stdout.readline() == "held\n"
    assert waiting.wait() == 0


@pytest.mark.heavy
def test_builders_share_what_a_remover_waits_for(hold):
    builders = [hold("shared", "1"), hold("shared", "1")]
    assert [each.stdout.readline() for each in builders] == ["held\n"] * 2
    remover = hold("exclusive", "0")
    wait_until(lambda: is_waiting(remover.pid))
    builders[0].kill()
    builders[0].wait()
    wait_until(lambda: is_waiting(remover.pid))  # again: the kernel let it look
    builders[1].kill()
    assert remover.stdout.readline() == "held\n"


def test_a_manifest_comes_back_as_it_was(tmp_path):
    store = ImageStore(tmp_path)
    assert store.read(MANIFEST.reference) is None and store.references() == []
    store.write(MANIFEST)
    assert store.read(MANIFEST.reference) == MANIFEST
    assert store.references() == [MANIFEST.reference]
    store.forget(MANIFEST.reference)
    store.forget(MANIFEST.reference)
    assert store.read(MANIFEST.reference) is None


DAMAGES = {
    "cut": lambda text: text[:-20],
    "list": lambda text: "[]",
    "number": lambda text: "3",
    "type": lambda text: text.replace('"bytes": 3', '"bytes": "3"'),
    "unknown field": lambda text: text.replace('"bytes"', '"bites"'),
    "inner field": lambda text: text.replace('"musl"', "null"),
    "another image's": lambda text: text.replace("ale/x:01", "ale/x:10"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_manifest_is_named_and_set_aside(tmp_path, damage, caplog):
    store = ImageStore(tmp_path)
    store.write(MANIFEST)
    (path,) = (tmp_path / "images").iterdir()
    damaged = damage(path.read_text())
    path.write_text(damaged)
    with pytest.raises(ValueError, match=r"ale%2Fx%3A0123456789ab\.json: damaged"):
        store.read(MANIFEST.reference)
    assert store.read_or_set_aside(MANIFEST.reference) is None
    (aside,) = (tmp_path / "images").iterdir()
    assert aside.read_text() == damaged and str(aside) in caplog.text
    assert store.references() == []


def test_a_manifest_of_wrong_types_is_refused():
    fields = to_json(MANIFEST)
    assert from_json(fields) == MANIFEST
    with pytest.raises(ValueError, match="libc must be"):
        from_json(fields | {"capabilities": fields["capabilities"] | {"libc": 3}})
    with pytest.raises(ValueError, match="not a manifest"):
        from_json({key: value for key, value in fields.items() if key != "built"})


def test_a_name_cannot_lead_out_of_the_store(tmp_path):
    store = ImageStore(tmp_path / "store")
    with store.lock("../../x"):
        pass
    assert store.build_log("../../x").parent == tmp_path / "store" / "logs"
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_daemons_have_stores_of_their_own(tmp_path):
    assert open_store(tmp_path, "A").folder != open_store(tmp_path, "B").folder
    assert open_store(tmp_path, "../A:B").folder.parent == tmp_path


def test_where_the_state_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("ALE_HUB_STATE", "/a")
    monkeypatch.setenv("XDG_STATE_HOME", "/b")
    monkeypatch.setenv("HOME", "/c")
    assert str(default_state()) == "/a"
    monkeypatch.setenv("ALE_HUB_STATE", "")
    assert str(default_state()) == "/b/ale/hub"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert str(default_state()) == "/c/.local/state/ale/hub"
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 987654321)  # whom nobody knows
    with pytest.raises(ValueError, match="set ALE_HUB_STATE to a folder"):
        default_state()


def test_a_state_folder_that_cannot_be_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="set ALE_HUB_STATE to a folder"):
        with ImageStore(tmp_path / "file").lock("x"):
            pass
