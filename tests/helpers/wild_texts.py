"""Texts as other programs write them: forms of HLO that XLA's parser reads, and lines with which a program ends."""

from __future__ import annotations

HLO_TEXTS = (
    # short names, a called computation before its caller, no layouts
    """HloModule jit_f, is_scheduled=true, num_partitions=8

add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }

ENTRY main { p = f32[64,128] parameter(0)
  ar = f32[64,128] all-reduce(p), channel_id=1, replica_groups=[2,4]<=[8], to_apply=add
  ROOT t = f32[64,128] tanh(ar) }
""",
    # names with %, types of operands, comments, metadata, layouts with tiles and memory spaces
    """HloModule jit_g, is_scheduled=true, entry_computation_layout={(bf16[8,16]{1,0})->bf16[8,16]{1,0}}, \
allow_spmd_sharding_propagation_to_output={true}, num_partitions=4

%region_0.1 (Arg_0.2: bf16[], Arg_1.3: bf16[]) -> bf16[] {
  %Arg_0.2 = bf16[] parameter(0), metadata={op_name="x" source_file="/a/b.py" source_line=3}
  %Arg_1.3 = bf16[] parameter(1)
  ROOT %add.4 = bf16[] add(bf16[] %Arg_0.2, bf16[] %Arg_1.3)
}

ENTRY %main.5 (p.1: bf16[8,16]) -> bf16[8,16] {
  %p.1 = bf16[8,16]{1,0:T(8,128)S(5)} parameter(0), sharding={devices=[4,1]<=[4]}
  %c = bf16[] constant(-inf)
  %big = s32[2,3] constant({ { 1, 2, 3 }, { 4, 5, 6 } })
  %ag-start = (bf16[8,16]{1,0}, bf16[32,16]{1,0}) all-gather-start(bf16[8,16]{1,0} %p.1), channel_id=1, \
replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true, \
backend_config={"operation_queue_id":"0","collective_backend_config":{"is_sync":false}}
  %ag-done = bf16[32,16]{1,0} all-gather-done((bf16[8,16]{1,0}, bf16[32,16]{1,0}) %ag-start)
  %rs = bf16[8,16]{1,0} reduce-scatter(bf16[32,16]{1,0} %ag-done), replica_groups={{0,1,2,3}}, dimensions={0}, \
to_apply=%region_0.1 /*index=5*/
  ROOT %copy = bf16[8,16]{1,0} copy(%rs), control-predecessors={%ag-done}
}
""",
    # a loop, a tuple, a fusion with a bitcast, a custom call
    """HloModule jit_loop, is_scheduled=true

fused { q0 = f32[16,16]{1,0} parameter(0)
  bc = f32[256]{0} bitcast(q0)
  ROOT e = f32[256]{0} exponential(bc) }

body { arg = (s32[], f32[16,16]{1,0}) parameter(0)
  i = s32[] get-tuple-element(arg), index=0
  x = f32[16,16]{1,0} get-tuple-element(arg), index=1
  one = s32[] constant(1)
  n = s32[] add(i, one)
  d = (f32[16,16]{1,0}, s8[1024]{0}) custom-call(x, x), custom_call_target="__cublas$gemm", \
backend_config={"gemm_backend_config":{"alpha_real":1,"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],\
"rhs_contracting_dimensions":["0"]},"selected_algorithm":"0"}}
  g = f32[16,16]{1,0} get-tuple-element(d), index=0
  ROOT out = (s32[], f32[16,16]{1,0}) tuple(n, g) }

cond { carg = (s32[], f32[16,16]{1,0}) parameter(0)
  j = s32[] get-tuple-element(carg), index=0
  bound = s32[] constant(12)
  ROOT lt = pred[] compare(j, bound), direction=LT }

ENTRY e { p = f32[16,16]{1,0} parameter(0)
  zero = s32[] constant(0)
  t = (s32[], f32[16,16]{1,0}) tuple(zero, p)
  w = (s32[], f32[16,16]{1,0}) while(t), condition=cond, body=body, \
backend_config={"known_trip_count":{"n":"12"}}
  r = f32[16,16]{1,0} get-tuple-element(w), index=1
  ROOT f = f32[256]{0} fusion(r), kind=kLoop, calls=fused }
""",
    # asynchronous computations, a conditional, dynamic shapes, products, sends
    """HloModule jit_async, is_scheduled=true, num_partitions=2

wrapped { wp = f32[8,8] parameter(0)
  ROOT a2a = f32[8,8] all-to-all(wp), replica_groups={{0,1}}, dimensions={0} }

yes { y = f32[8,8] parameter(0)
  ROOT n = f32[8,8] negate(y) }

no { z = f32[8,8] parameter(0)
  ROOT c = f32[8,8] copy(z) }

ENTRY e { p = f32[8,8] parameter(0)
  k = pred[] parameter(1)
  s = ((f32[8,8]), f32[8,8], u32[]) async-start(p), calls=wrapped, async_execution_thread="parallel"
  d = f32[8,8] async-done(s)
  cd = f32[8,8] conditional(k, d, d), true_computation=yes, false_computation=no
  dt = f32[8,8] dot(cd, cd), lhs_contracting_dims={1}, rhs_contracting_dims={0}, operand_precision={highest,default}
  dyn = f32[<=8,8] set-dimension-size(dt, k), dimensions={0}
  cps = (f32[8,8], f32[8,8]) collective-permute-start(dt), source_target_pairs={{0,1},{1,0}}
  cpd = f32[8,8] collective-permute-done(cps)
  cv = f32[1,8,8] convolution(dt, dt), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f
  fft = c64[8,8] fft(cpd), fft_type=FFT, fft_length={8}
  so = (f32[8,8], s32[8,8]) sort(cpd, cpd), dimensions={1}, is_stable=true, to_apply=yes
  ROOT o = (f32[8,8], c64[8,8]) tuple(cpd, fft) }
""",
)

FATAL_ENDS = (
    "F0131 12:00:00.000000 123 rendezvous.cc:100] Termination timeout for `first call` of 40s exceeded. Exiting.",
    "Fatal Python error: Segmentation fault",
    "*** SIGSEGV received by PID 12 (TID 13) on cpu 3 from PID 14; stack trace: ***",
    "*** Check failure stack trace: ***",
    "terminate called after throwing an instance of 'std::bad_alloc'",
    "double free or corruption (!prev)",
    "slurmstepd: error: *** JOB 12 ON node7 CANCELLED AT 2026-01-31T12:00:00 DUE TO TIME LIMIT ***",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.",
    "srun: error: node7: tasks 0-3,99999999999999999999: Killed",
    "srun: error: node7: task 3-1: Exited with exit code 137",
    "mpirun noticed that process rank 340282366920938463463374607431768211456 exited on signal 9 (Killed).",
    "train.sh: line 12: 12345 Killed                  python train.py",
    "Segmentation fault (core dumped)",
    "timeout: sending signal TERM to command 'python'",
    "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.",
    "Traceback (most recent call last):",
)
