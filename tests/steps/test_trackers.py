"""Step times out of what trackers export: tables of wandb, mlflow and TensorBoard, event files."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from pgle.cli.main import run
from pgle.errors import UserError
from pgle.run.inputs.step_times import read_runs
from pgle.steps.trackers import RATE, TIME, WORK, measure_of


def seconds(path: Path) -> list[float]:
    (series,) = read_runs(str(path))
    return [round(float(value), 6) for value in series.step_time_s]


def table(folder: Path, text: str, name: str = "run.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "kind", "unit_s"),
    [
        ("perf/step_time_seconds", TIME, 1.0),  # MaxText
        ("run-7 - train/step_time_ms", TIME, 1e-3),
        ("Step time (ms)", TIME, 1e-3),
        ("train_step_timing in s", TIME, 1.0),  # NeMo
        ("sec_per_step", TIME, 1.0),
        ("perf/train/avg_step_time_s", TIME, 1.0),
        ("my_model/step_time_s", TIME, 1.0),
        ("time/s/it", TIME, 1.0),
        ("ms/step", TIME, 1e-3),
        ("iteration_time", TIME, None),
        ("train/steps_per_second", RATE, 1.0),
        ("it/s", RATE, 1.0),
        ("throughput/tokens_per_second", WORK, 1.0),  # Levanter
        ("samples/sec", WORK, 1.0),
    ],
)
def test_a_name_says_what_it_holds(name: str, kind: str, unit_s: float | None) -> None:
    measure = measure_of(name)
    assert measure is not None
    assert (measure.kind, measure.unit_s) == (kind, unit_s)


@pytest.mark.parametrize(
    "name",
    [
        "learning_rate",
        "eval/step_time_s",
        "perf/per_device_tokens_per_sec",  # of one device: how many there are is not said
        "run - step_time_s__MIN",
        "_runtime",
        "checkpoint_time_s",
        "optimizer_step_time_ms",  # parts of a step
        "forward_step_time_ms",
        "data_loading_batch_time_ms",
        "timer/checkpoint_step_time_s",
        "optimizer/step_time_s",
        "dataloader/batches_per_second",
        "reward_model_step_time_s",
        "throughput/device/tokens_per_sec",  # Composer
        "system/step_time_s",  # mlflow
        "epoch_steps_per_second",  # Keras: the mean of an epoch
        "train/train_steps_per_second",  # transformers: since the start of the run
        "train_tokens_per_second",
    ],
)
def test_other_names_hold_no_step_time(name: str) -> None:
    assert measure_of(name) is None


def test_a_page_of_wandb_with_the_columns_that_it_draws(tmp_path: Path) -> None:
    head = '"Step","a - step_time_ms","a - step_time_ms__MIN","a - step_time_ms__MAX"'
    path = table(tmp_path, f'{head}\n"0","200","200","200"\n"1","210.5","1","1"\n')
    (series,) = read_runs(str(path))
    assert series.step_time_s.tolist() == [0.2, 0.2105]
    assert np.isnan(series.loss).all()


def test_a_history_of_wandb_whose_lines_have_other_metrics_too(tmp_path: Path) -> None:
    text = "_step,_timestamp,train/loss,perf/step_time_seconds,eval/loss\n"
    text += "0,1.7e9,2.5,0.2,\n1,,,,9\n2,1.7e9,2.4,0.25,\n"
    (series,) = read_runs(str(table(tmp_path, text)))
    assert series.step.tolist() == [0, 2]
    assert series.step_time_s.tolist() == [0.2, 0.25]
    assert series.loss.tolist() == [2.5, 2.4]
    assert series.malformed == ()


@pytest.mark.parametrize("cell", ["NaN", "Infinity", "diverged"])
def test_a_loss_that_is_no_number_is_recorded(cell: str, tmp_path: Path) -> None:
    text = f"_step,step_time_s,loss\n0,0.2,2.5\n1,0.2,{cell}\n2,0.2,\n"
    (series,) = read_runs(str(table(tmp_path, text)))
    assert series.loss[:2].tolist() == [2.5, np.inf]
    assert np.isnan(series.loss[2])


def test_the_loss_is_the_whole_one(tmp_path: Path) -> None:
    text = "_step,step_time_s,train/loss,z_loss,train/aux_loss,train/train_loss\n"
    text += "0,0.2,2.5,1,2,\n1,0.2,2.4,1,2,2.45\n"
    (series,) = read_runs(str(table(tmp_path, text)))
    assert series.loss.tolist() == [2.5, 2.4]


def test_metrics_of_mlflow_a_line_each(tmp_path: Path) -> None:
    text = "key,value,timestamp,step\n"
    text += "step_time_ms,200,1700000000000,0\nloss,3.5,1700000000001,0\n"
    text += "step_time_ms,220,1700000000200,1\nloss,3.4,1700000000201,1\n"
    (series,) = read_runs(str(table(tmp_path, text)))
    assert series.step_time_s.tolist() == [0.2, 0.22]
    assert series.loss.tolist() == [3.5, 3.4]


def test_metrics_of_mlflow_without_a_step_are_placed_by_their_time(
    tmp_path: Path,
) -> None:
    text = "key,value,timestamp,step\n"
    text += "step_time_ms,200,1700000000000,0\nloss,3.5,1700000000000,0\n"
    text += "step_time_ms,220,1700000000200,0\nloss,3.4,1700000000200,0\n"
    (series,) = read_runs(str(table(tmp_path, text)))
    assert series.step.tolist() == [0, 1]
    assert series.step_time_s.tolist() == [0.2, 0.22]
    assert series.loss.tolist() == [3.5, 3.4]


def test_a_rate_is_turned_into_seconds_and_a_warning_names_it(tmp_path: Path) -> None:
    path = table(tmp_path, "step,it/s\n1,5\n2,4\n")
    (series,) = read_runs(str(path))
    assert series.step_time_s.tolist() == [0.2, 0.25]
    assert series.warnings == (f"{path}: step times are from 'it/s'",)


@pytest.mark.parametrize(
    "text",
    [
        "step,tokens/s,tokens_per_step\n1,4000,1000\n2,5000,1000\n",
        "step,tokens/s,tokens_per_step\n1,8000,2000\n2,5000,1000\n",
        "step,tokens/s,tokens_per_batch\n1,4000,1000\n2,5000,\n",  # recorded once
        "step,tokens/s,total_tokens\n0,1,1000\n1,4000,2000\n2,5000,3000\n",
        "step,tokens/s,num_input_tokens_seen\n0,1,1000\n1,4000,2000\n2,5000,3000\n",
    ],
)
def test_tokens_per_second_with_the_tokens_of_a_step(text: str, tmp_path: Path) -> None:
    assert seconds(table(tmp_path, text))[-2:] == [0.25, 0.2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step,tokens/s\n1,4000\n", "add a column tokens_per_step"),
        ("step,step_duration\n1,4\n", "'step_duration' has no unit: s or ms?"),
        ("_step,step_time\n1,200\n", "rename it to step_time_s or step_time_ms"),
        (
            "run_id,key,value,timestamp,step\nA,loss,3,1,1\nB,loss,3,2,1\n",
            "several runs: 'A', 'B'; keep one",
        ),
        ("step,a - step_time_s,b - step_time_s\n1,4,4\n", "keep one, of one run"),
        (
            "_step,step_time_s,loss,train/loss\n1,4,2,3\n",
            "the loss: 'loss', 'train/loss'",
        ),
        (
            "run_id,key,value,step\nA,step_time_s,1,1\nB,step_time_s,2,1\n",
            "several runs: 'A', 'B'; keep one",
        ),
        (
            "run_id,step,step_time_s\nA,0,0.1\nB,0,0.2\n",  # as pgle writes them
            "several runs: 'A', 'B'; keep one",
        ),
        (
            "_timestamp,loss\n1700000000,3\n1700000010,2\n",  # how many steps apart?
            "no metric says how long a step takes: 'loss'; log step_time_s",
        ),
        (
            "tokens/s,total_tokens\n1000,1000\n1000,2000\n",
            "add a column tokens_per_step",
        ),
        (
            "_step,_timestamp,epoch/loss\n0,1.7e9,3\n1,1700000010,2\n",  # wandb for Keras
            "no column with step times",
        ),
    ],
)
def test_what_is_not_clear_is_an_error_with_its_remedy(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        seconds(table(tmp_path, text))
    assert message in str(error.value)


def test_a_rate_that_is_recorded_once_is_of_the_whole_run(tmp_path: Path) -> None:
    text = "key,value,timestamp,step\n"
    text += "loss,3,1700000000000,0\nloss,2,1700000002000,10\n"
    text += "throughput/steps_per_second,9,1700000003000,10\n"
    assert seconds(table(tmp_path, text)) == [0.2]


def test_lines_without_a_step_keep_their_own_values(tmp_path: Path) -> None:
    text = "tokens/s,tokens_per_step,loss\n4000,1000,3\n4000,2000,2\n"
    (series,) = read_runs(str(table(tmp_path, text)))
    assert series.step.tolist() == [0, 1]
    assert series.step_time_s.tolist() == [0.25, 0.5]
    assert series.loss.tolist() == [3, 2]


def test_metrics_without_a_step_belong_together_by_their_time(tmp_path: Path) -> None:
    text = "key,value,timestamp\n"
    text += "step_time_ms,200,1700000000000\nloss,3,1700000000000\n"
    text += "step_time_ms,210,1700000001000\nloss,2,1700000001000\n"
    (series,) = read_runs(str(table(tmp_path, text)))
    assert series.step_time_s.tolist() == [0.2, 0.21]
    assert series.loss.tolist() == [3, 2]


def test_json_lines_of_several_runs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(
        '{"run_id": "A", "step_time_s": 1}\n{"run_id": "B", "step_time_s": 2}\n'
    )
    with pytest.raises(UserError, match="holds several runs: 'A', 'B'; keep one"):
        read_runs(str(path))


def test_a_run_with_number_0_is_a_run(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text('{"run": 0, "step_time_s": 1}\n{"run": 1, "step_time_s": 2}\n')
    with pytest.raises(UserError, match="holds several runs: '0', '1'; keep one"):
        read_runs(str(path))


def test_a_metric_that_ends_in_run_names_no_run(tmp_path: Path) -> None:
    text = "step,step_time_s,time/run\n0,0.2,0.18\n1,0.21,0.19\n"
    assert seconds(table(tmp_path, text)) == [0.2, 0.21]


def test_a_clear_metric_wins_over_one_without_unit(tmp_path: Path) -> None:
    text = "step,train/step_duration,steps_per_second\n1,200,5\n2,250,4\n"
    assert seconds(table(tmp_path, text)) == [0.2, 0.25]


def test_tensorboards_table_is_read_by_the_tag_in_its_name(tmp_path: Path) -> None:
    text = "Wall time,Step,Value\n1.7e9,0,200\n1700000001,1,250\n"
    named = table(tmp_path, text, "run-train-tag-perf_step_time_ms.csv")
    assert seconds(named) == [0.2, 0.25]


def test_without_a_step_time_the_clock_between_lines_counts(tmp_path: Path) -> None:
    text = (
        "Wall time,Step,Value\n1700000000,0,3.5\n1700000002,10,3.4\n1700000003,20,3\n"
    )
    path = table(tmp_path, text, "run-.-tag-loss.csv")
    (series,) = read_runs(str(path))
    assert series.step_time_s.tolist() == [0.2, 0.1]
    assert "step times are the times between its lines" in series.warnings[0]


@pytest.mark.parametrize("step", ["train/global_step", "trainer/global_step"])
@pytest.mark.parametrize("every", [10, 20])
def test_the_programs_own_step_counts_before_that_of_wandb(
    every: int, step: str, tmp_path: Path
) -> None:
    text = f"_step,_timestamp,train/loss,{step}\n"
    text += "".join(
        f"{at},{1.7e9 + every * at / 5},3,{every * at}\n" for at in range(3)
    )
    text += "3,,,\n"  # a line without a step
    assert seconds(table(tmp_path, text)) == [0.2, 0.2]


def test_the_loss_is_the_clock_before_metrics_of_the_system(tmp_path: Path) -> None:
    text = "key,value,timestamp,step\n"
    text += "".join(f"loss,3,{1.7e9 + 0.5 * at},{at}\n" for at in range(3))
    text += "".join(f"system/cpu,5,{1.7e9 + 10 * at},{at}\n" for at in range(5))
    assert seconds(table(tmp_path, text)) == [0.5, 0.5]


def events(folder: Path, metrics: dict[str, list[float]], vector: str = "") -> Path:
    """Event files as tensorboard's own writer makes them, a step every 0.5 s.

    `vector`: the tag of a scalar that holds two values.
    """
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.scalar.metadata import create_summary_metadata
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    from tensorboard.util.tensor_util import make_tensor_proto

    writer = EventFileWriter(str(folder))
    for tag, values in metrics.items():
        for step, value in enumerate(values):
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            at = 1_700_000_000 + step * 0.5
            writer.add_event(Event(wall_time=at, step=step, summary=summary))
    if vector:
        summary = Summary()
        summary.value.add(
            tag=vector,
            tensor=make_tensor_proto([0.2, 0.3]),
            metadata=create_summary_metadata("", ""),
        )
        writer.add_event(Event(wall_time=1_700_000_000, step=0, summary=summary))
    writer.close()
    return folder


def test_event_files_by_metric_folder_and_file(tmp_path: Path) -> None:
    metrics = {"perf/step_time_seconds": [0.2, 0.25], "loss": [3.0, 2.5]}
    folder = events(tmp_path / "run", metrics)
    (file,) = folder.iterdir()
    for path in (folder, file):
        (series,) = read_runs(str(path))
        assert np.allclose(series.step_time_s, [0.2, 0.25])
        assert np.allclose(series.loss, [3.0, 2.5])
    assert len(read_runs(str(tmp_path))) == 1


def test_a_folder_that_is_named_as_an_event_file(tmp_path: Path) -> None:
    folder = events(tmp_path / "x.tfevents.dir", {"step_time_s": [0.2, 0.25]})
    (folder / "y.tfevents.dir").mkdir()
    assert seconds(folder) == [0.2, 0.25]
    assert seconds(tmp_path) == [0.2, 0.25]


def test_a_vector_is_no_step_time(tmp_path: Path) -> None:
    folder = events(tmp_path, {"loss": [3.0, 2.0]}, vector="step_time_s")
    assert seconds(folder) == [0.5]


def test_a_folder_of_events_without_metrics_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="how long a step takes: there is none"):
        read_runs(str(events(tmp_path, {})))


def test_event_files_with_nothing_but_a_loss(tmp_path: Path) -> None:
    (series,) = read_runs(str(events(tmp_path, {"loss": [3.0, 2.0, 1.0]})))
    assert series.step_time_s.tolist() == [0.5, 0.5]
    assert series.step.tolist() == [1, 2]


def test_epochs_of_keras_are_no_steps(tmp_path: Path) -> None:
    metrics = {"epoch_loss": [3.0, 2.0], "epoch_learning_rate": [1.0, 1.0]}
    with pytest.raises(UserError, match="how long a step takes: 'epoch_l"):
        read_runs(str(events(tmp_path / "epochs", metrics)))
    batches = {**metrics, "batch_steps_per_second": [4.0, 5.0]}
    assert seconds(events(tmp_path / "batches", batches)) == [0.25, 0.2]


def test_events_of_evaluation_are_no_run(tmp_path: Path) -> None:
    events(tmp_path / "train", {"step_time_s": [0.2, 0.2]})
    left_out = events(tmp_path / "validation", {"step_time_s": [0.1, 0.1]})
    (series,) = read_runs(str(tmp_path))
    assert np.allclose(series.step_time_s, 0.2)
    assert f"{left_out}: events of evaluation are left out" in series.warnings


def test_an_event_file_that_is_cut_short_holds_what_it_holds(tmp_path: Path) -> None:
    folder = events(tmp_path, {"step_time_s": [0.2] * 50})
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-30])
    assert seconds(file)[:10] == [0.2] * 10


def test_without_tensorboard_one_line_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "events.out.tfevents.1700000000.host.1.0"
    file.write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing", None)
    assert run(["compare", str(file), str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "event files are read by tensorboard, which is not installed; "
        "pip install tensorboard, or download the metric as CSV"
    )


@pytest.mark.parametrize(
    ("text", "warns"),
    [
        ("_step,_timestamp,loss\n0,100,3\n1,110,2\n2,120,1\n", True),
        ("Step,_timestamp,a - loss\n0,100,3\n1,110,2\n2,120,1\n", True),
        ("_step,tokens/s,total_tokens\n0,100,100\n1,100,200\n2,100,300\n", True),
        ("_step,_timestamp,loss\n0,100,3\n10,110,2\n20,120,1\n", False),
        ("step,_timestamp,loss\n0,100,3\n1,110,2\n2,120,1\n", False),
        ("_step,step_time_s,loss\n0,1,3\n1,1,2\n2,1,1\n", False),
        ("_step,tokens/s,tokens_per_step\n0,100,50\n1,100,50\n2,100,50\n", False),
    ],
)
def test_steps_of_wandb_that_may_count_calls_are_warned_of(
    text: str, warns: bool, tmp_path: Path
) -> None:
    (series,) = read_runs(str(table(tmp_path, text)))
    said = "; ".join(series.warnings)
    assert ("counts calls" in said) == warns
