"""What is said about a user's flags, by the catalogue alone and by the installed jaxlib."""

import pytest

from pgle.xla.flags.catalogue import lint
from pgle.xla.flags.text import parse_flags

LHS = "--xla_gpu_enable_latency_hiding_scheduler"
PROFILE = "--xla_gpu_pgle_profile_file_or_directory_path"


def findings(text, jaxlib="0.12.0.1", verdicts=None):
    return lint(parse_flags(text), jaxlib, verdicts).findings


def codes(text, jaxlib="0.12.0.1"):
    return {(finding.level, finding.code) for finding in findings(text, jaxlib)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "--xla_gpu_autotune_level=0",
        "--xla_disable_hlo_passes=a --xla_disable_hlo_passes=b",
    ],
)
def test_there_is_nothing_to_say_about_good_flags(text):
    assert findings(text) == ()


def test_a_removed_flag_names_its_release_and_replacement():
    (found,) = findings("--xla_gpu_enable_async_collectives=true")
    assert found.line() == (
        "--xla_gpu_enable_async_collectives: is gone since jaxlib 0.4.27: XLA ends the program; "
        "leave it out: XLA does so by default now"
    )


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (
            "--xla_gpu_enable_async_all_reduce=true",
            "leave it out: XLA does so by default now",
        ),
        (
            "--xla_gpu_enable_async_all_reduce",
            "leave it out: XLA does so by default now",
        ),
        (
            "--xla_gpu_enable_async_all_reduce=FALSE",
            "write --xla_gpu_disable_async_collectives=allreduce",
        ),
        (
            "--xla_gpu_enable_async_collective_permute=0",
            "write --xla_gpu_disable_async_collectives=collectivepermute",
        ),
        (
            "--xla_gpu_cudnn_gemm_fusion=false",
            "write --xla_gpu_cudnn_gemm_fusion_level=0",
        ),
    ],
)
def test_the_remedy_for_an_old_flag_keeps_its_sense(text, remedy):
    assert findings(text)[0].remedy == remedy


@pytest.mark.parametrize(
    ("text", "code", "remedy"),
    [
        ("–xla_a=false", "dash", "write --xla_a=false"),
        ("—xla_a=false", "dash", "write --xla_a=false"),
        ("−−xla_a=false", "dash", "write --xla_a=false"),
        ("--xla–a=false", "malformed", "write --xla_a=VALUE"),
        ("-–xla_a=false", "malformed", "write --xla_a=VALUE"),
        ("--'xla_a=false'", "malformed", "write --xla_a=VALUE"),
        ("'--xla_a=false'", "quote", "remove the quotes around flags"),
        ("“--xla_a=false”", "quote", "remove the quotes around flags"),
        ("--xla_a=“false”", "quote", "write --xla_a=false"),
        ("--xla_a=fal'se'", "quote", "write --xla_a=false"),
        ('--xla_a="false', "quote", "close the quote"),
        ("--xla_a=a–b", "dash", "write --xla_a=a-b"),
    ],
)
def test_dashes_and_quotes_that_xla_does_not_read_are_named(text, code, remedy):
    found = parse_flags(text).findings
    assert (found[0].code, found[0].remedy) == (code, remedy)


@pytest.mark.parametrize(
    "text",
    [
        "--xla_a='b c'",
        '--xla_a="it\'s"',
        "--xla_dump_to=/o'brien/a–b",
        '--xla_a="b \\" c"',
    ],
)
def test_quotes_that_xla_reads_are_fine(text):
    assert parse_flags(text).findings == ()


def test_a_flag_that_never_was_names_the_right_one():
    (found,) = findings("--xla_gpu_cudnn_gemm_fusion=true")
    assert ("never" in found.message, found.remedy) == (
        True,
        "use xla_gpu_cudnn_gemm_fusion_level",
    )


def test_a_flag_that_is_too_new_names_its_release():
    (found,) = findings("--xla_gpu_pipeline_all_gather=on", "0.10.2")
    remedy = "use jaxlib 0.11.1 or leave it out"
    assert (found.code, found.remedy) == ("too-new", remedy)


def test_a_misspelt_flag_is_suggested():
    (found,) = findings("--xla_gpu_enable_latency_hiding_schedular=true")
    assert found.remedy == "did you mean xla_gpu_enable_latency_hiding_scheduler?"


def test_a_suggestion_is_never_a_flag_the_release_does_not_know():
    (found,) = findings("--xla_gpu_enable_priority_fusio=true", "0.12.0.1")
    assert "xla_gpu_enable_priority_fusion" not in found.remedy


def test_a_flag_between_releases_is_uncertain():
    assert codes("--xla_gpu_enable_priority_fusion", "0.6.0") == {
        ("warning", "uncertain")
    }


def test_a_bare_string_flag_needs_a_value():
    assert codes("--xla_dump_to") == {("error", "needs-value")}


@pytest.mark.parametrize(
    "text",
    [
        f"{LHS}=maybe",
        "--xla_gpu_autotune_level=high",
        "--xla_gpu_pgle_accuracy_checker=warn",
        "--xla_gpu_disable_async_collectives=all",
        "--xla_gpu_disable_async_collectives=",
        "--xla_gpu_enable_command_buffer=1",
    ],
)
def test_bad_values_are_errors(text):
    assert ("error", "bad-value") in codes(text)


@pytest.mark.parametrize(
    "text",
    [
        LHS,
        f"{LHS}=1",
        "--xla_gpu_enable_command_buffer=",
        "--xla_gpu_enable_command_buffer=+FUSION,-CUBLAS",
    ],
)
def test_good_values_are_not(text):
    assert all(level != "error" for level, _ in codes(text))


def test_the_values_of_a_choice_are_listed():
    (found,) = findings("--xla_gpu_pgle_accuracy_checker=warn")
    assert "PGLE_STRICTNESS_LEVEL_WARN" in found.remedy


def test_repeated_flags_with_different_values():
    (found,) = findings("--xla_gpu_autotune_level=0 --xla_gpu_autotune_level=2")
    assert (
        found.line()
        == "--xla_gpu_autotune_level: is given 2 times (0, 2); the last counts; keep one"
    )


def test_repeated_flags_with_the_same_value_are_only_noted():
    assert codes("--xla_gpu_autotune_level=0 --xla_gpu_autotune_level=0") == {
        ("note", "duplicate")
    }


def test_a_bare_word_is_an_error():
    assert ("error", "bare-word") in codes(
        "--xla_gpu_autotune_level=0 true --xla_dump_to=/d"
    )


@pytest.mark.parametrize(
    ("path", "jaxlib", "level"),
    [
        ("p.txt", "0.12.0.1", "error"),
        ("p.pbtxt.gz", "0.12.0.1", "error"),
        ("~/p.pbtxt", "0.12.0.1", "error"),
        ("", "0.12.0.1", "warning"),
    ],
)
def test_profiles_that_xla_would_not_read(path, jaxlib, level):
    assert (level, "no-effect") in codes(f"{LHS}=true {PROFILE}={path}", jaxlib)


def test_a_directory_of_profiles_is_fine():
    assert codes(f"{PROFILE}=/profiles.d/by_fingerprint") == set()


def test_a_profile_with_lhs_off_is_an_error_where_it_is_ignored():
    text = f"{LHS}=false {PROFILE}=p.pbtxt"
    assert ("error", "contradiction") in codes(text, "0.12.0.1")
    assert ("error", "contradiction") not in codes(text, "0.10.2")


def test_a_profile_without_lhs_is_an_error_in_old_releases():
    assert ("error", "contradiction") in codes(f"{PROFILE}=p.pbtxt", "0.5.0")
    assert ("error", "contradiction") not in codes(f"{PROFILE}=p.pbtxt", "0.5.1")


def test_lhs_off_does_not_hold_on_hopper_between_0_8_0_and_0_11_1():
    assert ("warning", "no-effect") in codes(f"{LHS}=false", "0.10.2")
    assert codes(f"{LHS}=false", "0.12.0.1") == set()


def test_lhs_with_synchronous_collectives_has_nothing_to_overlap():
    text = f"{LHS}=true --xla_gpu_disable_async_collectives=allgather"
    assert codes(text) >= {("warning", "contradiction"), ("note", "fingerprint")}


def test_dumps_without_a_directory_have_no_effect():
    assert codes("--xla_dump_latency_hiding_schedule=true") == {
        ("warning", "no-effect")
    }
    assert codes("--xla_dump_latency_hiding_schedule=true --xla_dump_to=/d") == set()


def test_two_names_of_one_flag():
    text = "--xla_gpu_enable_pipelined_all_gather=true --xla_gpu_pipeline_all_gather=on"
    assert ("warning", "contradiction") in codes(text)


def test_the_worst_comes_first():
    levels = [
        finding.level
        for finding in findings(
            "--xla_gpu_autotune_level=0 --xla_gpu_autotune_level=0 --xla_nope=1 --xla_dump_hlo_as_proto"
        )
    ]
    assert levels == ["error", "warning", "note"]


def test_errors_alone_fail_a_lint():
    assert lint(parse_flags("--xla_dump_hlo_as_proto"), "0.12.0.1").ok
    assert not lint(parse_flags("--xla_nope"), "0.12.0.1").ok


def test_the_installed_jaxlib_has_the_last_word():
    text = "--xla_gpu_enable_priority_fusion=true"
    said = {text: ("unknown", "Unknown flag in XLA_FLAGS: …")}
    assert [found.code for found in findings(text, "0.5.3", said)] == ["removed"]


def test_a_variable_written_as_a_flag_is_told_how_it_is_set():
    text = "--jax_optimization_level=O1"
    said = {text: ("unknown", "Unknown flag in XLA_FLAGS: …")}
    assert findings(text, "0.10.2", said)[0].remedy.endswith(
        "a variable: export JAX_OPTIMIZATION_LEVEL=O1"
    )


def test_xlas_own_words_about_a_value_are_quoted():
    text = "--xla_gpu_autotune_level=high"
    said = {
        text: (
            "bad-value",
            "Couldn't interpret value high for flag xla_gpu_autotune_level.",
        )
    }
    assert (
        "(Couldn't interpret value high" in findings(text, "0.12.0.1", said)[0].message
    )
