"""The catalogue: complete with respect to the guides it was made for, in agreement with the
recorded releases.
"""

import pytest

from pgle.errors import UserError
from pgle.xla.flags.catalogue import (
    catalogue,
    find,
    known_flags,
    known_in,
    nearest,
    release,
)

# Every setting named in five public documents: JAX's "GPU performance tips", GPU_performance.md and
# PGLE.md of NVIDIA's JAX-Toolbox, P. Mocz's "GPU/JAX profiling" slides, TensorFlow's "GPU
# performance analysis"; found by regular expression.
NAMED_IN_GUIDES = (  # noqa: SIM905
    """
XLA_FLAGS xla_gpu_enable_latency_hiding_scheduler xla_gpu_pgle_profile_file_or_directory_path
xla_gpu_enable_command_buffer JAX_COMPILATION_CACHE_EXPECT_PGLE xla_gpu_reduce_scatter_combine_threshold_bytes
xla_gpu_all_reduce_combine_threshold_bytes xla_gpu_all_gather_combine_threshold_bytes xla_disable_hlo_passes
TF_GPU_THREAD_MODE JAX_ENABLE_PGLE xla_gpu_triton_gemm_any xla_gpu_memory_limit_slop_factor
xla_gpu_lhs_enable_gpu_async_tracker xla_gpu_enable_while_loop_double_buffering
xla_gpu_enable_reduce_scatter_combine_by_dim xla_gpu_enable_pipelined_reduce_scatter xla_gpu_enable_pipelined_all_reduce
xla_gpu_enable_pipelined_all_gather xla_gpu_enable_all_gather_combine_by_dim TF_CPP_MIN_LOG_LEVEL NCCL_PROTO
NCCL_LL_BUFFSIZE NCCL_LL128_BUFFSIZE JAX_PGLE_PROFILING_RUNS JAX_PGLE_AGGREGATION_PERCENTILE
JAX_ENABLE_COMPILATION_CACHE JAX_COMPILATION_CACHE_DIR xla_gpu_threshold_for_windowed_einsum_mib
xla_gpu_nccl_p2p_max_nchannels xla_gpu_nccl_collective_max_nchannels xla_gpu_multi_streamed_windowed_einsum
xla_gpu_experimental_pipeline_parallelism_opt_level xla_gpu_enable_triton_softmax_fusion xla_gpu_enable_triton_gemm
xla_gpu_enable_pipelined_p2p xla_gpu_enable_pipelined_collectives xla_gpu_enable_nccl_user_buffers
xla_gpu_enable_nccl_per_stream_comms xla_gpu_enable_nccl_comm_splitting xla_gpu_enable_highest_priority_async_stream
xla_gpu_enable_custom_fusions xla_gpu_enable_cudnn_fmha xla_gpu_enable_async_reduce_scatter
xla_gpu_enable_async_collectives xla_gpu_enable_async_collective_permute xla_gpu_enable_async_all_reduce
xla_gpu_enable_async_all_gather xla_gpu_disable_async_collectives xla_gpu_cudnn_gemm_fusion
xla_gpu_collective_permute_decomposer_threshold xla_dump_to xla_dump_latency_hiding_schedule
XLA_PYTHON_CLIENT_MEM_FRACTION TF_GPU_THREAD_COUNT TF_CPP_VMODULE TF_CPP_MAX_LOG_LEVEL NCCL_NVLS_ENABLE
CUDA_DEVICE_MAX_CONNECTIONS
"""
).split()


@pytest.mark.parametrize("name", NAMED_IN_GUIDES)
def test_every_setting_of_the_guides_is_described(name):
    assert catalogue()[name].meaning


def test_every_setting_has_a_source_and_a_kind():
    for setting in catalogue().values():
        assert setting.source, setting.name
        assert setting.kind in {"bool", "int", "float", "string", "list", "choice"}, (
            setting.name
        )


def test_what_replaces_a_setting_is_described_too():
    for setting in catalogue().values():
        assert not setting.use or setting.use in catalogue(), setting.name


def test_lifetimes_agree_with_what_ten_releases_accept():
    table = known_flags()
    for setting in catalogue().values():
        if setting.is_flag:
            for version in table.releases:
                expected = version in table.present.get(setting.name, frozenset())
                assert setting.known_in(version) is expected, (setting.name, version)


def test_kinds_agree_with_what_the_releases_accept():
    table = known_flags()
    for setting in catalogue().values():
        observed = table.kinds.get(setting.name)
        if observed is not None:
            expected = {"list": {"string", "choice"}, "choice": {"choice"}}.get(
                setting.kind, {setting.kind}
            )
            assert observed in expected, setting.name


def test_versions_compare_by_number():
    assert release("0.10.2") > release("0.9.2")
    assert release("0.12.0.1") > release("0.12.0")
    assert release("0.11.0.dev20260714+selfbuilt") == (0, 11, 0)


def test_a_version_must_begin_with_a_number():
    with pytest.raises(UserError, match="not a version"):
        release("newest")


def test_a_flag_between_two_releases_that_disagree_is_uncertain():
    name = "xla_gpu_enable_priority_fusion"  # in 0.5.3, not in 0.6.2
    assert known_flags().known_in(name, "0.5.3") is True
    assert known_flags().known_in(name, "0.6.2") is False
    assert known_flags().known_in(name, "0.6.0") is None


def test_the_catalogue_decides_where_it_knows_the_exact_release():
    assert known_in("xla_gpu_enable_pipelined_collectives", "0.5.3") is True
    assert known_in("xla_gpu_enable_pipelined_collectives", "0.6.0") is False


def test_defaults_follow_the_release():
    setting = catalogue()["xla_gpu_enable_latency_hiding_scheduler"]
    assert [setting.default(version) for version in ("0.4.26", "0.11.1", "0.11.2")] == [
        "false",
        "false",
        "unset",
    ]


def test_find_takes_dashes_values_and_short_names():
    assert find("--xla_dump_to=/tmp/d").name == "xla_dump_to"
    assert find("enable_command_buffer").name == "xla_gpu_enable_command_buffer"
    assert find("jax_enable_pgle").name == "JAX_ENABLE_PGLE"


def test_find_knows_flags_that_are_not_described():
    setting = find("priority_fusion")
    assert (setting.name, setting.lifetime) == (
        "xla_gpu_enable_priority_fusion",
        "<0.6.2",
    )


def test_find_suggests_the_nearest_name():
    with pytest.raises(
        UserError, match="did you mean xla_gpu_enable_latency_hiding_scheduler"
    ):
        find("xla_gpu_enable_latency_hiding_schedular")


def test_nothing_is_near_to_nonsense():
    assert nearest("quite_something_else", ["xla_dump_to"]) == ()
