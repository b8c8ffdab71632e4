"""Says what a run waits for, when nothing happens for long enough, and only then."""

import contextlib
import errno
import threading

from ale_jax.system.watchdog import Sign, Watchdog, append_stacks


class Rig:
    def __init__(self):
        self.now, self.done, self.said = 0.0, 0, []
        look = lambda: Sign(self.done, "episode 7")  # noqa: E731
        self.watchdog = Watchdog(10.0, look, self.said.append, lambda: self.now)
        self.watchdog.look()

    def look_after(self, seconds):
        self.now += seconds
        self.watchdog.look()


def test_a_run_that_makes_progress_is_left_alone():
    rig = Rig()
    for _ in range(5):
        rig.done += 1
        rig.look_after(9.0)
        rig.look_after(0.5)
    assert not rig.said


def test_a_run_that_stands_still_is_described_at_doubling_intervals():
    rig = Rig()
    for _ in range(45):
        rig.look_after(1.0)
    assert rig.said == [
        f"nothing was finished for {seconds}s: episode 7" for seconds in (10, 20, 40)
    ]


def test_progress_starts_the_wait_anew():
    rig = Rig()
    rig.look_after(10.0)
    rig.done += 1
    rig.look_after(9.0)
    rig.look_after(9.0)
    assert len(rig.said) == 1
    rig.look_after(1.0)
    assert len(rig.said) == 2


def test_what_cannot_be_recorded_does_not_end_it(caplog):
    rig = Rig()

    def on_full_disk(text):
        rig.said.append(text)
        raise OSError(errno.ENOSPC, "No space left on device")

    rig.watchdog._say = on_full_disk
    rig.look_after(10.0)
    rig.look_after(10.0)
    assert len(rig.said) == 2
    assert "episode 7 (not recorded: [Errno 28] No space left on device)" in caplog.text


def test_it_looks_from_a_thread_of_its_own():
    looked = []

    def look():
        looked.append(1)
        return Sign(len(looked), "")

    with Watchdog(10.0, look, print) as watchdog:
        while not looked:
            pass
    assert not watchdog._thread.is_alive()


@contextlib.contextmanager
def stuck_thread():
    reached, release = threading.Event(), threading.Event()

    def stuck_here():
        reached.set()
        release.wait()

    thread = threading.Thread(target=stuck_here)
    thread.start()
    reached.wait()
    try:
        yield
    finally:
        release.set()
        thread.join()


def test_stacks_name_what_each_thread_waits_in(tmp_path):
    with stuck_thread():
        for heading in ("first", "second"):
            append_stacks(tmp_path / "stacks.txt", heading)
    text = (tmp_path / "stacks.txt").read_text()
    assert text.index("first") < text.index("in stuck_here") < text.index("second")
    assert text.count("in stuck_here") == 2
