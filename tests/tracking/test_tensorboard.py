import math

import numpy as np
import pytest
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import metadata as hparams_metadata

from rime_jax.tracking.tensorboard import TensorBoardWriter


def _read(path):
    accumulator = event_accumulator.EventAccumulator(str(path), size_guidance={
        event_accumulator.TENSORS: 0, event_accumulator.SCALARS: 0})
    return accumulator.Reload()


@pytest.fixture
def writer(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    yield writer
    writer.close()


def test_scalars_are_read_back(tmp_path, writer):
    writer.scalars(3, {"reward/act": 0.25, "loss": np.float32(2), "gap": None, "bad": math.nan})
    events = _read(tmp_path)
    assert [(e.step, e.value) for e in events.Scalars("reward/act")] == [(3, 0.25)]
    assert math.isnan(events.Scalars("bad")[0].value)
    assert set(events.Tags()["scalars"]) == {"reward/act", "loss", "bad"}


def test_scalars_are_on_disk_before_the_writer_is_closed(tmp_path, writer):
    for step in range(5):
        writer.scalars(step, {"loss": step})
        assert [e.step for e in _read(tmp_path).Scalars("loss")] == list(range(step + 1))


def test_a_resumed_run_replaces_the_steps_after_its_checkpoint(tmp_path):
    for first, last, value in ((0, 8, 1.0), (5, 10, 2.0)):
        writer = TensorBoardWriter(tmp_path, first_step=first)
        for step in range(first, last):
            writer.scalars(step, {"loss": value})
        writer.close()
    points = [(e.step, e.value) for e in _read(tmp_path).Scalars("loss")]
    assert points == [(s, 1.0 if s < 5 else 2.0) for s in range(10)]


def test_text_is_read_back(tmp_path, writer):
    writer.text(4, "memory", "**rot** → grün")
    writer.flush()
    events = _read(tmp_path)
    assert events.SummaryMetadata("memory").plugin_data.plugin_name == "text"
    (event,) = events.Tensors("memory")
    assert event.step == 4
    assert event.tensor_proto.string_val[0].decode() == "**rot** → grün"


def test_a_text_that_no_file_can_hold_is_written_with_what_stands_for_it(tmp_path, writer):
    writer.text(4, "memory", "a\ud800b\0c")
    writer.flush()
    (event,) = _read(tmp_path).Tensors("memory")
    assert event.tensor_proto.string_val[0].decode() == "a?b\0c"


def test_a_histogram_counts_every_finite_number(tmp_path, writer):
    values = np.array([[0.0, 1.0], [1.0, math.nan]])
    writer.histogram(1, "advantage", values)
    writer.histogram(1, "empty", [])
    writer.flush()
    events = _read(tmp_path)
    (event,) = events.Tensors("advantage")
    table = np.frombuffer(event.tensor_proto.tensor_content).reshape(-1, 3)
    assert table[0].tolist()[::2] == [0.0, 1.0] and table[-1].tolist()[1:] == [1.0, 2.0]
    assert table[:, 2].sum() == 3
    assert events.Tags()["tensors"] == ["advantage"]


def test_hyper_parameters_reach_the_hparams_tab(tmp_path, writer):
    writer.hparams({"learner.lr": 1e-3, "env.form": "compact", "resume": True, "env.edges": (12,)})
    writer.flush()
    metadata = _read(tmp_path).SummaryMetadata(hparams_metadata.SESSION_START_INFO_TAG)
    info = hparams_metadata.parse_session_start_info_plugin_data(metadata.plugin_data.content)
    assert info.hparams["learner.lr"].number_value == 1e-3
    assert info.hparams["env.form"].string_value == "compact"
    assert info.hparams["resume"].bool_value is True
    assert info.hparams["env.edges"].string_value == "(12,)"


def test_the_chart_layout_is_read_back(tmp_path, writer):
    writer.layout({"Reward": {"by role": ["reward/act", "reward/write"]}, "Memory": {"length": []}})
    writer.flush()
    events = _read(tmp_path)
    (event,) = events.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    assert [(c.title, c.closed) for c in layout.category] == [("Reward", False), ("Memory", True)]
    assert list(layout.category[0].chart[0].multiline.tag) == ["reward/act", "reward/write"]
