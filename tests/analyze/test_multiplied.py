"""What products were computed in: the kernel's name counts, the HLO only where the name says
nothing.
"""

from dataclasses import replace

import pytest

from pgle.analyze.layers import multiplied, slowest
from pgle.analyze.rules import find_findings
from tests.analyze.test_findings import FAULTS, MODULE, expected_us, steps_of, usual

SGEMM, TF32 = (
    "ampere_sgemm_128x64_tn",
    "cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4",
)


@pytest.mark.parametrize(
    ("kernel", "dtype", "tensor_cores"),
    [
        (SGEMM, "f32", False),
        ("cutlass_80_simt_sgemm_128x64_8x5_nn_align1", "f32", False),
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize1x4x1_ffma_aligna4",
            "f32",
            False,
        ),
        ("implicit_convolve_sgemm", "f32", False),
        ("ampere_dgemm_64x64_nn", "f64", False),
        (TF32, "tf32", True),
        (
            "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_execute",
            "tf32",
            True,
        ),
        ("nvjet_sss_tf32_128x256_TNT", "tf32", True),
        ("Cijk_Ailk_Bljk_BBS_BH_MT256x128x64_MI16x16x16x1_SN_1LDSB0", "bf16", True),
        ("Cijk_Alik_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1_SN", "f16", True),
        ("Cijk_Ailk_Bljk_F8BS_BH_MT256x256x128_MI16x16x32x1_SN", "f8", True),
        ("Cijk_Ailk_Bljk_SB_MT64x64x16_SE_K1", "f32", False),
        ("Cijk_Ailk_Bljk_DB_MT64x64x16_MI16x16x4x1_SN", "f64", True),
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex0_bt128x128x32", "bf16", True),
        ("naive_conv_nonpacked_fwd_nchw_float_double_float", "", False),
        ("kernel_grouped_conv_fwd_xdl_cshuffle", "", True),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn", "bf16", True),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "bf16", True),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "bf16", True),
        ("ampere_fp16_s16816gemm_fp16_64x64_tn", "f16", True),
        ("volta_h884gemm_256x64_ldg8_nn", "f16", True),
        ("nvjet_sm90_hss_64x8_64x16_1x1_h_bz_splitK_NNT", "f16", True),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128", "f8", True),
        ("nvjet_qqtst_128x160_128x6_2x1_v_bz_TNN", "f8", True),
        (
            "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128",
            "",
            True,
        ),
    ],
)
def test_names_of_library_kernels(kernel: str, dtype: str, tensor_cores: bool) -> None:
    found = multiplied(kernel)
    assert found is not None
    assert (found.dtype, found.tensor_cores) == (dtype, tensor_cores)


@pytest.mark.parametrize(
    "kernel",
    [
        "gemm_fusion_dot_general_5",
        "loop_add_fusion",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        "splitKreduce",
    ],
)
def test_other_kernels_say_nothing(kernel: str) -> None:
    assert multiplied(kernel) is None


def test_of_several_kernels_the_one_off_the_tensor_cores_counts() -> None:
    found = slowest({TF32, SGEMM, "splitKreduce_kernel"})
    assert found is not None and found.kernel == SGEMM


def ran_as(trace, name: str, kernel: str):
    return replace(trace, kernels={("jit_step", name): frozenset([kernel])})


def test_a_product_that_was_to_run_on_the_tensor_cores_and_did_not_is_found(
    measured,
) -> None:
    trace = steps_of(usual().run("dot.1", expected_us("dot.1")))
    step = measured(ran_as(trace, "dot.1", SGEMM), MODULE)
    (found,) = (item for item in find_findings(step) if item.id == "off-tensor-cores")
    assert found.evidence[0].note == f"the HLO asks for bf16; f32 by {SGEMM}"
    assert [
        (item.dtype, item.tensor_cores, item.named_us == item.us)
        for item in step.products
    ] == [("f32", False, True)]


def test_a_product_that_a_kernel_ran_on_the_tensor_cores_is_none_whatever_the_hlo_asks(
    measured,
) -> None:
    trace = FAULTS["off-tensor-cores"]()
    assert find_findings(measured(ran_as(trace, "dot.9", TF32), MODULE)) == ()


def test_without_names_the_hlo_says_what_was_asked_for(measured) -> None:
    (products,) = measured(steps_of(usual()), MODULE).products
    assert (products.dtype, products.tensor_cores, products.named_us) == (
        "bf16",
        True,
        0.0,
    )
