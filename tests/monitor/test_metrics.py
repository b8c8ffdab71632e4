"""metrics.jsonl holds each step once, whatever happened to the process."""

import errno
import resource
import struct
import threading

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from ale_jax.monitor.metrics import METRICS_FILE, MetricsWriter, read_metrics
from tests.monitor.fake_run import Clock


def steps(workdir):
    lines = read_metrics(workdir / METRICS_FILE).records
    return [(line["phase"], line["step"]) for line in lines]


def log_steps(writer, phase, numbers):
    for step in numbers:
        writer.log(step, {"loss": step / 10}, phase)


def tensorboard_events(path):
    # Each record: 8 bytes of length, 4 of checksum, the event, 4 of checksum.
    content = path.read_bytes()
    while content:
        (size,) = struct.unpack("<Q", content[:8])
        yield Event.FromString(content[12 : 12 + size])
        content = content[16 + size :]


def test_values_come_back_as_plain_numbers(tmp_path):
    clock = Clock()
    with MetricsWriter(tmp_path, clock=clock) as writer:
        clock.now += 2.5
        values = {
            "loss": np.float32(0.5),
            "episodes": np.int64(7),
            "gap": np.array(2.0),
            "staleness_counts": {np.int32(0): 3, 2: 1},
        }
        writer.log(1, values, "rl")
    assert read_metrics(tmp_path / METRICS_FILE).records == (
        {
            "phase": "rl",
            "step": 1,
            "seconds": 2.5,
            "loss": 0.5,
            "episodes": 7,
            "gap": 2.0,
            "staleness_counts": {0: 3, 2: 1},
        },
    )


def test_a_value_that_is_not_finite_becomes_null_and_is_noticed(tmp_path, caplog):
    with MetricsWriter(tmp_path) as writer:
        writer.log(4, {"loss": float("nan"), "reward": -np.inf, "success": 0.5}, "rl")
    (line,) = read_metrics(tmp_path / METRICS_FILE).records
    assert line["loss"] is None and line["reward"] is None and line["success"] == 0.5
    assert line["nonfinite"] == {"loss": "nan", "reward": "-inf"}
    assert "rl step 4" in caplog.text and "loss" in caplog.text


@pytest.mark.parametrize("value", ["0.5", None, {"a": 1}])
def test_a_value_that_is_no_number_is_refused(tmp_path, value):
    with MetricsWriter(tmp_path) as writer, pytest.raises(ValueError, match="'loss'"):
        writer.log(1, {"loss": value}, "rl")


def test_the_writers_own_names_are_refused(tmp_path):
    with MetricsWriter(tmp_path) as writer, pytest.raises(ValueError, match="seconds"):
        writer.log(1, {"seconds": 3}, "rl")


def test_resume_cuts_what_will_be_written_again(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        log_steps(writer, "rl", range(1, 6))
    with MetricsWriter(tmp_path, resume_step=3) as writer:
        log_steps(writer, "rl", [4])
    assert steps(tmp_path) == [("rl", 1), ("rl", 2), ("rl", 3), ("rl", 4)]


def test_resume_of_a_phase_that_counts_its_own_steps_keeps_the_phase_before(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        log_steps(writer, "sft", range(1, 5))
        log_steps(writer, "rl", range(1, 4))
    MetricsWriter(tmp_path, resume_step=1, resume_phase="rl").close()
    assert steps(tmp_path) == [("sft", 1), ("sft", 2), ("sft", 3), ("sft", 4), ("rl", 1)]
    MetricsWriter(tmp_path, resume_step=2, resume_phase="sft").close()
    assert steps(tmp_path) == [("sft", 1), ("sft", 2)]


def test_resume_keeps_staleness_and_drops_a_cut_line(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.log(1, {"staleness_counts": {0: 2, 1: 5}}, "rl")
    with (tmp_path / METRICS_FILE).open("ab") as file:
        file.write(b'{"phase": "rl", "st')
    MetricsWriter(tmp_path, resume_step=1).close()
    lines = read_metrics(tmp_path / METRICS_FILE)
    assert lines.truncated_line is None
    assert [line["staleness_counts"] for line in lines.records] == [{0: 2, 1: 5}]


def test_the_runs_time_goes_on_where_it_stopped(tmp_path):
    clock = Clock()
    with MetricsWriter(tmp_path, clock=clock) as writer:
        clock.now += 10
        log_steps(writer, "rl", [1])
    clock.now += 5000  # nobody was running
    with MetricsWriter(tmp_path, resume_step=1, clock=clock) as writer:
        clock.now += 3
        assert writer.seconds() == pytest.approx(13)


def test_a_new_run_does_not_write_into_an_old_one(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        log_steps(writer, "rl", [1])
    with pytest.raises(ValueError, match="another run"):
        MetricsWriter(tmp_path)
    assert steps(tmp_path) == [("rl", 1)]


def test_threads_share_a_writer(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        threads = [
            threading.Thread(target=log_steps, args=(writer, f"phase{i}", range(50)))
            for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(steps(tmp_path)) == [(f"phase{i}", n) for i in range(4) for n in range(50)]


def test_scalars_reach_tensorboard_per_phase(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.log(1, {"loss": 0.25}, "sft")
    (events,) = (tmp_path / "tensorboard" / "sft").iterdir()
    assert b"loss" in events.read_bytes()


def test_tensorboard_purges_what_will_be_written_again(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        log_steps(writer, "rl", range(1, 6))
    before = set((tmp_path / "tensorboard" / "rl").iterdir())
    with MetricsWriter(tmp_path, resume_step=3) as writer:
        log_steps(writer, "rl", [4])
    (new,) = set((tmp_path / "tensorboard" / "rl").iterdir()) - before
    restarts = [e.step for e in tensorboard_events(new) if e.session_log.status == SessionLog.START]
    assert restarts == [4]


def test_a_full_disk_is_an_error_although_the_line_of_the_metrics_still_fits(tmp_path):
    (tmp_path / METRICS_FILE).symlink_to("/dev/null")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = MetricsWriter(tmp_path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, limits[1]))
    try:
        with pytest.raises(OSError) as error:
            for step in range(1000):
                writer.log(step, {f"metric{i}": i for i in range(40)}, "rl")
        assert error.value.errno == errno.EFBIG
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        writer.close()


@pytest.mark.parametrize(
    "line", ['{"step":1,"seconds":0}', '{"phase":"rl","step":"1","seconds":0}']
)
def test_a_line_that_is_no_metrics_line_is_named(tmp_path, line):
    (tmp_path / METRICS_FILE).write_text(line + "\n")
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 1"):
        read_metrics(tmp_path / METRICS_FILE)
