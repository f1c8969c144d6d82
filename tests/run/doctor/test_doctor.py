"""The checks of `pgle doctor`, on machines that are made up."""

from pathlib import Path

import pytest
from machines import H100, PARAMS, VERSIONS, machine

from pgle.run import doctor as checks
from pgle.run.ask.machine import read_gpus, this_machine
from pgle.run.ask.nsys import Nsys
from pgle.run.directory.manifest import Gpu
from pgle.run.doctor import diagnose


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def without(name):
    return {key: value for key, value in VERSIONS.items() if key != name}


def test_gpus_are_read_from_nvidia_smi():
    assert read_gpus(machine().ask) == (H100,) * 4


@pytest.mark.parametrize("smi", [None, "", "No devices were found\n", "a, b\n"])
def test_no_gpu_is_no_crash(smi):
    assert read_gpus(machine(smi=smi).ask) == ()


def test_equal_gpus_are_counted():
    check = checks.check_gpus(machine(), (H100,) * 4)
    assert (check.verdict, check.found) == (
        "ok",
        "4 x NVIDIA H100 80GB HBM3 (80 GiB, sm_9.0)",
    )


def test_mixed_gpus_are_warned_about():
    other = Gpu("NVIDIA A100-SXM4-80GB", "580.65.06", 81920, "8.0")
    assert checks.check_gpus(machine(), (H100, other)).verdict == "warn"


def test_no_gpu_says_what_works_without():
    assert "rehearse" in checks.check_gpus(machine(), ()).remedy


DRIVER = {
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun"
}


def no_gpu(says=None, **options):
    """The check where nvidia-smi is missing, or says this."""
    programs = {} if says is None else {"nvidia-smi": "/usr/bin/nvidia-smi"}
    made_up = machine(smi=None, programs=programs, says=says or "", **options)
    return checks.check_gpus(made_up, read_gpus(made_up.ask))


@pytest.mark.parametrize(
    ("says", "remedy"),
    [
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95",
            "reboot",
        ),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure",
            "modprobe nvidia",
        ),
        (
            "Failed to initialize NVML: Insufficient Permissions",
            "may not open /dev/nvidia",
        ),
        ("Failed to initialize NVML: Unknown Error", "restart the container"),
        (
            "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.",
            "NVIDIA_DRIVER_CAPABILITIES",
        ),
        (
            "Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error",
            "Xid",
        ),
        ("No devices were found", "srun --gpus"),
        ("it did not answer in 20 s", "hangs"),
        ("Segmentation fault", "run nvidia-smi"),
        ("", "run nvidia-smi"),
    ],
)
def test_a_failing_nvidia_smi_is_quoted_with_a_remedy(says, remedy):
    check = no_gpu(says)
    assert check.verdict == "fail"
    assert (
        check.found
        == f"nvidia-smi fails: {says.splitlines()[0] if says else 'it printed nothing'}"
    )
    assert remedy in check.remedy


def test_a_container_without_its_hosts_gpus_says_how_to_get_them():
    check = no_gpu(files=DRIVER | {"/.dockerenv": ""})
    assert (check.verdict, check.found) == (
        "warn",
        "none in this container; its host has driver 580.65.06",
    )
    assert "--gpus all" in check.remedy


def test_devices_without_nvidia_smi_are_told():
    check = no_gpu(files=DRIVER | {"/dev/nvidia0": "", "/dev/nvidiactl": ""})
    assert (check.verdict, check.found) == (
        "fail",
        "/dev/nvidia0, but no nvidia-smi to ask for them",
    )


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles"])
def test_gpus_that_cuda_may_not_see(value):
    check = checks.check_gpus(machine(environ={"CUDA_VISIBLE_DEVICES": value}), (H100,))
    assert (check.verdict, "unset CUDA_VISIBLE_DEVICES" in check.remedy) == (
        "warn",
        True,
    )


def test_what_a_real_program_says_is_heard_though_it_fails(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'; exit 18\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    here = this_machine()
    assert "version mismatch" in checks.check_gpus(here, read_gpus(here.ask)).found


def test_a_loaded_driver_without_devices_fails():
    check = no_gpu(files=DRIVER)
    assert (check.verdict, "driver 580.65.06 is loaded" in check.found) == (
        "fail",
        True,
    )
    assert checks.check_driver(machine(files=DRIVER), ()).found == "580.65.06"


def test_a_driver_too_old_for_the_plugins_cuda_fails():
    check = checks.check_driver(machine(), (Gpu("H100", "550.54.15"),))
    assert (check.verdict, check.found) == (
        "fail",
        "550.54.15, older than CUDA 13 needs (580)",
    )


@pytest.mark.parametrize(
    ("value", "root", "verdict"),
    [("1", False, "warn"), ("1", True, "ok"), ("0", False, "ok"), (None, False, "ok")],
)
def test_profiling_for_administrators_only(value, root, verdict):
    files = (
        {} if value is None else {"/proc/driver/nvidia/params": PARAMS.format(value)}
    )
    assert (
        checks.check_text("CUPTI", machine(files=files, is_root=root)).verdict
        == verdict
    )


def test_dcgm_says_how_to_pause_it():
    check = checks.check_text("DCGM", machine(processes={"bash", "nv-hostengine"}))
    assert (check.verdict, "dcgmi profile --pause" in check.remedy) == ("warn", True)


@pytest.mark.parametrize(
    ("environ", "verdict"),
    [
        ({}, "ok"),
        ({"JAX_ENABLE_PGLE": "true"}, "warn"),
        ({"CUDA_INJECTION64_PATH": "/opt/nsys/libToolsInjection64.so"}, "warn"),
        ({"NSYS_PROFILING_SESSION_ID": "7", "JAX_ENABLE_PGLE": "1"}, "fail"),
    ],
)
def test_two_profilers(environ, verdict):
    assert checks.check_text("profilers", machine(environ=environ)).verdict == verdict


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (None, "warn"),
        (Nsys(Path("/n"), (2024, 6, 2)), "warn"),
        (Nsys(Path("/n"), (2025, 3, 1)), "ok"),
    ],
)
def test_nsys_versions(found, verdict):
    assert checks.check_text("nsys", machine(nsys=lambda: found)).verdict == verdict


def test_a_python_without_jax_fails():
    check = checks.check_jax(machine(versions=without("jaxlib")))
    assert (check.verdict, check.found) == ("fail", "no jaxlib in /usr/bin/python3")


def test_a_newer_jaxlib_fails():
    assert (
        checks.check_jax(machine(versions=VERSIONS | {"jaxlib": "0.11.0"})).verdict
        == "fail"
    )


@pytest.mark.parametrize(
    ("versions", "verdict", "words"),
    [
        (VERSIONS, "ok", "usable for rehearsals"),
        (VERSIONS | {"jax-cuda13-pjrt": "0.10.1"}, "fail", "not of jaxlib 0.10.2"),
        (without("jax-cuda13-pjrt"), "fail", "jax-cuda13-pjrt is missing"),
        (VERSIONS | {"jax-cuda12-plugin": "0.10.2"}, "fail", "two CUDA versions"),
        ({"jax": "0.10.2", "jaxlib": "0.10.2"}, "warn", "none"),
        (dict.fromkeys(VERSIONS, "0.4.36"), "warn", "cannot compile without a GPU"),
    ],
)
def test_the_plugin_must_fit_jaxlib(versions, verdict, words):
    check = checks.check_plugin(machine(versions=versions))
    assert (check.verdict, words in check.found) == (verdict, True)


@pytest.mark.parametrize(
    ("flags", "verdict"),
    [
        ("", "ok"),
        ("--xla_gpu_autotune_level=0", "ok"),
        ("--xla_dump_hlo_as_proto", "warn"),
        ("--xla_gpu_no_such_flag", "fail"),
        ("xla_gpu_autotune_level=0", "fail"),
    ],
)
def test_xla_flags_are_linted(flags, verdict):
    import sys

    check = checks.check_flags(
        machine(environ={"XLA_FLAGS": flags}, python=sys.executable)
    )
    assert check.verdict == verdict


@pytest.mark.parametrize(
    ("environ", "verdict", "remedy"),
    [
        ({"JAX_ENABLE_PGLE": "1", "NCCL_DEBUG": "INFO"}, "ok", ""),
        (
            {"JAX_PGLE_EMBEDDING_DIR": "/d"},
            "warn",
            "'pgle flags list PGLE' shows what there is",
        ),
        (
            {"JAX_PGLE_PROFILE_RUNS": "3"},
            "warn",
            "did you mean JAX_PGLE_PROFILING_RUNS?",
        ),
        ({"TF_CPP_MAX_LOG_LEVEL": "100"}, "warn", "use TF_CPP_MAX_VLOG_LEVEL"),
        (
            {"XLA_CLIENT_MEM_FRACTION": "0.9", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9"},
            "fail",
            "unset XLA_PYTHON_CLIENT_MEM_FRACTION",
        ),
    ],
)
def test_variables_without_effect(environ, verdict, remedy):
    check = checks.check_variables(machine(environ=environ))
    assert (check.verdict, check.remedy) == (verdict, remedy)


@pytest.mark.parametrize(
    ("level", "verdict"), [(None, "ok"), ("0", "ok"), ("1", "warn")]
)
def test_the_log_level(level, verdict):
    environ = {} if level is None else {"TF_CPP_MIN_LOG_LEVEL": level}
    assert checks.check_text("XLA log", machine(environ=environ)).verdict == verdict


def test_no_password_of_a_url_is_shown():
    found = diagnose(
        machine(environ={"JAX_COMPILATION_CACHE_DIR": "gs://me:s3cr3tpass@bucket/x"})
    )
    assert "s3cr3t" not in str(found)
    assert any("gs***bucket/x" in check.found for check in found.checks)


def test_the_compilation_cache_does_not_notice_a_changed_profile():
    check = checks.check_text(
        "compilation cache", machine(environ={"JAX_COMPILATION_CACHE_DIR": "/cache"})
    )
    assert (check.verdict, "not its content" in check.remedy) == ("warn", True)


def test_a_cache_that_is_off_is_fine():
    environ = {
        "JAX_COMPILATION_CACHE_DIR": "/cache",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
    }
    assert (
        checks.check_text("compilation cache", machine(environ=environ)).verdict == "ok"
    )


@pytest.mark.parametrize(("gib", "verdict"), [(1, "fail"), (10, "warn"), (100, "ok")])
def test_disk_space(gib, verdict):
    assert (
        checks.check_run_dir(
            machine(free_bytes=lambda path: gib << 30), "/runs"
        ).verdict
        == verdict
    )


def test_a_run_directory_that_cannot_be_written_fails():
    assert (
        checks.check_run_dir(machine(writable=lambda path: False), "/runs").verdict
        == "fail"
    )


def test_a_check_that_breaks_is_a_warning():
    def broken(path):
        raise RuntimeError("no such thing")

    checks = {
        check.name: check for check in diagnose(machine(free_bytes=broken)).checks
    }
    assert checks["run directory"].verdict == "warn"
    assert "RuntimeError: no such thing" in checks["run directory"].found


def test_a_failure_makes_the_diagnosis_fail():
    assert diagnose(machine()).ok
    assert not diagnose(machine(writable=lambda path: False)).ok


def test_every_failure_and_warning_has_a_remedy():
    sick = machine(
        smi=None,
        versions={},
        environ={
            "XLA_FLAGS": "word",
            "JAX_ENABLE_PGLE": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
        free_bytes=lambda path: 0,
        writable=lambda path: False,
    )
    for check in diagnose(sick).checks:
        assert check.verdict == "ok" or check.remedy, check


def test_this_machine_can_be_looked_at(tmp_path):
    assert len(diagnose(this_machine(), str(tmp_path / "not" / "there")).checks) == 13


LAPTOP = {"/sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086\n"}


def test_a_machine_without_an_nvidia_device_is_told_to_load_no_driver():
    says = (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver"
    )
    check = no_gpu(says, files=LAPTOP)
    assert (check.verdict, check.found) == ("warn", "none")
    assert "modprobe" not in check.remedy
    assert "JAX_PLATFORMS=cpu" in check.remedy


def test_a_machine_with_an_nvidia_device_and_no_driver_is_told_to_load_it():
    vendors = {"/sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n"}
    check = no_gpu(
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
        files=vendors,
    )
    assert check.verdict == "fail"
    assert "modprobe nvidia" in check.remedy
