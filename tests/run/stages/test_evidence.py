"""What log and files of a real stage say went wrong, and how step lines become records."""

from __future__ import annotations

import pytest

from pgle.errors import UserError
from pgle.run.directory.directory import RunDirectory
from pgle.run.inputs.step_times import StepLine, StepLines, console_records
from pgle.run.stages.real import (
    AUTO_PGLE_TOO,
    NSYS_STARTS,
    few_executions,
    is_readable,
    judge_end,
    nsys_command,
    start_nsys,
    trouble,
    why_no_facts,
    why_no_trace,
)
from pgle.steps.collect import step_number

# Lines as programs and drivers print them.
EMPTY = "profiler.py:529: RuntimeWarning: PGLE collected an empty trace - CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "function cuptiSubscribe failed: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
            "holds CUPTI",
        ),
        (
            "function cupti_interface_->Subscribe failed with error maximum limit reached",
            "holds CUPTI",
        ),
        ("Subscribe failed: max limit of subscribers reached", "holds CUPTI"),
        ("nvmlInit failed: ERR_NVGPUCTRPERM", "NVreg_RestrictProfilingToAdminUsers"),
        ("Only one profile may be run at a time.", "two profiler sessions"),
        ("12 activities were dropped", "dropped events"),
        ("DCGM is in use", "dcgmi profile --pause"),
        (
            "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES: try sudo",
            "NVreg_RestrictProfilingToAdminUsers",
        ),
        ("ALREADY_EXISTS: Another profiling session active.", "two profiler sessions"),
        ("cuptiSubscribe: error: CUPTI is already subscribed", "holds CUPTI"),
        ("cuptiActivityEnable failed: CUPTI_ERROR_HARDWARE_BUSY", "holds CUPTI"),
        ("Could not load dynamic library 'libcupti.so.13'", "library was not found"),
        ("libcupti.so.12: cannot open shared object file", "library was not found"),
        ("cuptiSubscribe failed: CUPTI_ERROR_NOT_COMPATIBLE", "different versions"),
        ("error CUPTI_ERROR_OUT_OF_MEMORY", "ran out of memory"),
        ("error CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED", "whole GPU"),
        ("error CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED", "virtual"),
        (
            "error CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES",
            "NVreg_RestrictProfilingToAdminUsers",
        ),
        ("error CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED", "restricted"),
        ("error CUPTI_ERROR_NOT_INITIALIZED", "CUPTI did not start"),
        ("error CUPTI_ERROR_UNKNOWN", "CUPTI did not start"),
        ("W0 cupti_buffer_events.cc:9] CUPTI dropped 812 events", "dropped events"),
    ],
)
def test_trouble_in_the_log(tmp_path, line, said):
    log = tmp_path / "log"
    log.write_text(f"step 1\n{line}\n{line}\n")
    (found,) = trouble(log)
    assert said in found


def test_an_empty_trace_of_autopgle_is_no_proof_of_another_profiler(tmp_path):
    log = tmp_path / "log"
    log.write_text(EMPTY)
    assert trouble(log) == [AUTO_PGLE_TOO]


def test_a_quiet_log_has_no_trouble(tmp_path):
    log = tmp_path / "log"
    log.write_text(
        "I1121 cupti_tracer.cc: Profiler session started.\nlearning rate dropped\n"
    )
    assert trouble(log) == []


@pytest.fixture
def files(tmp_path):
    result = RunDirectory(tmp_path).stage("profile").rank()
    result.trace.parent.mkdir(parents=True)
    return result


def test_why_there_is_no_trace(files):
    facts = {
        "finished": True,
        "window": {
            "none": "the program ended after steps 0 to 2",
            "remedy": "let it run longer",
        },
    }
    assert (
        why_no_trace("jax", files, facts)
        == "no trace: the program ended after steps 0 to 2; let it run longer"
    )
    assert "was killed before its steps were traced" in why_no_trace(
        "jax", files, {"finished": False}
    )
    facts = {"finished": False, "window_opened": 1.0}
    assert "was killed while it was traced" in why_no_trace("jax", files, facts)
    said = why_no_trace("jax", files, {**facts, "window_closed": 2.0})
    assert "crashed, while its profiler was stopped" in said
    assert "(--capture nsys)" in said


def test_a_missing_report_is_explained_in_the_words_of_nsys(files):
    files.log.write_text(
        "step 1 error 0.2\nImporter error status: The importer binary and its dependencies were not found.\n"
    )
    line = why_no_trace("nsys", files, {"finished": True, "window": {"steps": [1, 5]}})
    assert (
        "(nsys says: Importer error status: The importer binary and its dependencies were not found.)"
        in line
    )
    assert "install all of Nsight Systems" in line
    assert "error 0.2" not in line


def test_a_trace_of_hardly_anything_is_said():
    (line,) = few_executions({"window": {"seconds": 0.1, "executions": 1}})
    assert "--window all" in line
    assert few_executions({"window": {"seconds": 0.1, "executions": 20}}) == []


def test_an_unloaded_hook_and_a_program_without_jax_are_told_apart(files):
    assert "not loaded" in why_no_facts(files)
    files.seen.touch()
    assert "compiled nothing" in why_no_facts(files)


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("completed step: 7, seconds: 3.604", 7),
        ("[PAX STATUS] step_i: 700, training loss: 3.64", 700),
        ("10/100 ━━━━ 12s 123ms/step - loss: 1.2", 10),
        ("step 7: 0.2 s", 7),
        ("iteration 12 | 201.3 ms", 12),
        ("I1121 03:48:12.476421    3941 scheduler.cc:283] step 4 of pass", None),
        ("loss 0.3", None),
        ("stepping 4", None),
    ],
)
def test_lines_that_name_a_step(line, number):
    assert step_number(line) == number


def test_step_lines_are_kept():
    lines = StepLines()
    for line in ("step 1", "other", "step 2 loss 3"):
        lines(line)
    assert [line.step for line in lines.lines] == [1, 2]


def test_printed_times_are_kept_and_marked_by_what_happened_meanwhile():
    text = "step 1: 0.5 s\nstep 2: 0.2 s\nstep 3: 0.2 s\nstep 4: 0.2 s\n"
    lines = [StepLine(1, 10.0), StepLine(2, 11.0), StepLine(3, 12.0), StepLine(4, 13.0)]
    facts = {"window_opened": 11.5, "window_closed": 11.9, "compiled_at": [10.4]}
    assert console_records(text.splitlines(), lines, facts) == [
        {"step": 1, "step_time_s": 0.5, "printed": True},
        {"step": 2, "step_time_s": 0.2, "printed": True, "compiled": True},
        {"step": 3, "step_time_s": 0.2, "printed": True, "profiled": True},
        {"step": 4, "step_time_s": 0.2, "printed": True},
    ]


def test_without_printed_times_those_between_lines_count_per_step():
    lines = [
        StepLine(0, 10.0),
        StepLine(10, 12.0),
        StepLine(10, 12.5),
        StepLine(20, 15.5),
    ]
    records = console_records(["no times here"], lines, {})
    assert [(record["step"], record["step_time_s"]) for record in records] == [
        (10, 0.2),
        (20, 0.3),
    ]


def test_a_program_that_nsys_ends_after_its_range_has_not_failed(files):
    files.report.touch()
    assert judge_end(143, files)[0] == 0
    assert judge_end(1, files)[0] == 1


def test_a_program_that_is_ended_without_a_report_has(files):
    assert judge_end(143, files) == (143, ())


def test_what_nsys_could_not_import_is_named(files):
    files.report.with_suffix(".qdstrm").touch()
    code, (warning,) = judge_end(0, files)
    assert code == 0
    assert "rank0000.qdstrm" in warning


@pytest.mark.parametrize(
    ("importer", "readable"), [(None, False), ("/bin/QdstrmImporter", True)]
)
def test_a_raw_recording_is_a_trace_where_it_can_be_imported(
    files, monkeypatch, importer, readable
):
    files.report.with_suffix(".qdstrm").touch()
    monkeypatch.setattr("pgle.run.stages.real.find_importer", lambda: importer)
    assert is_readable(files) == readable


# As nsys 2022.4.2 printed it on a busy machine; its first lines name the place.
NOT_READY = (
    "/build/agent/work/323cb361ab84164c/QuadD/Common/ProcessWaiter/Src/POSIX/ProcessWaiterImpl.cpp(166): Throw in "
    "function QuadDCommon::ProcessWaiter::ProcessWaiterImpl::ProcessWaiterImpl(QuadDCommon::ProcessId, bool)\n"
    "Dynamic exception type: boost::wrapexcept<QuadDCommon::SystemException>\nstd::exception::what: SystemException\n"
    '[QuadDCommon::tag_errno_text*] = No such file or directory\n[boost::errinfo_errno_*] = 2, "No such file or '
    'directory"\n[boost::errinfo_api_function_*] = sem_open\n\n'
)


@pytest.fixture
def nsys_that_fails(files):
    """Makes a start of nsys that fails a number of times before it runs the program, which then
    ends with code 7.
    """

    def make(failures, said=NOT_READY):
        starts = []

        def start():
            starts.append(1)
            failed = len(starts) <= failures
            with files.log.open("a") as log:
                log.write(said if failed else "step 1\n")
            return 1 if failed else 7

        return start, starts

    return make


def test_nsys_that_failed_before_the_program_ran_is_started_again(
    files, nsys_that_fails
):
    start, starts = nsys_that_fails(2)
    code, (warning,) = start_nsys(start, files)
    assert (code, len(starts)) == (7, 3)
    assert "start 3 of 8 ran it" in warning
    assert files.log.read_text() == "step 1\n"


def test_nsys_that_never_runs_the_program_is_said_in_its_own_words(
    files, nsys_that_fails
):
    start, starts = nsys_that_fails(NSYS_STARTS)
    with pytest.raises(UserError, match="sem_open: No such file or directory"):
        start_nsys(start, files)
    assert len(starts) == NSYS_STARTS


@pytest.mark.parametrize("said", ["RuntimeError: sem_open failed\n", ""])
def test_a_program_that_failed_itself_is_not_run_again(files, nsys_that_fails, said):
    start, starts = nsys_that_fails(1, said)
    assert start_nsys(start, files) == (1, ())
    assert len(starts) == 1


def test_a_program_that_began_is_not_run_again(files, nsys_that_fails):
    files.seen.touch()
    start, starts = nsys_that_fails(1)
    assert start_nsys(start, files) == (1, ())
    assert len(starts) == 1


def test_an_exception_of_nsys_is_quoted_where_there_is_no_trace(files):
    files.log.write_text(NOT_READY.replace("sem_open", "shm_open"))
    assert "[boost::errinfo_api_function_*] = shm_open" in why_no_trace(
        "nsys", files, {}
    )


@pytest.mark.nsys
def test_nsys_is_told_to_let_the_program_go_on(tmp_path):
    words = nsys_command(("python", "train.py"), tmp_path / "rank0000")
    assert words[1] == "profile"
    assert {
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "--trace=cuda,nvtx",
    } <= set(words)
    assert words[-2:] == ("python", "train.py")
