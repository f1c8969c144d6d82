#!/bin/bash
# Baseline and profiled runs in ABBA order inside one Slurm allocation, then the comparison:
#
#   sbatch --nodes=8 --ntasks-per-node=8 --gpus-per-node=8 scripts/ci/slurm-compare.sh profile.pbtxt python train.py
#
# Every run is an `srun` over the whole allocation, so both sides see the same nodes. Step times are read from what rank 0
# prints (or from steps.jsonl, where the program writes it to $PGLE_RUN_DIR). Resubmit the same line after a time-out or
# a pre-emption: finished runs are kept, the rest is run. Exit code 1 where the profile makes the step slower.
#
# ROUNDS=3 rounds of four runs; RUN_DIR=runs/abba-JOBNAME; FAIL_SLOWER=0.5%; PGLE=pgle; SRUN=srun
#SBATCH --job-name=pgle-compare
#SBATCH --exclusive
set -euo pipefail
if [ "$#" -lt 2 ]; then
  echo "usage: sbatch [options] $0 PROFILE COMMAND..." >&2
  exit 2
fi
profile=$(realpath "$1")
shift
[ -f "$profile" ] || { echo "$profile: no such file; make it with pgle convert" >&2; exit 2; }
PGLE=${PGLE:-pgle}
SRUN=${SRUN:-srun}
RUN_DIR=${RUN_DIR:-runs/abba-${SLURM_JOB_NAME:-pgle-compare}}

lhs="--xla_gpu_enable_latency_hiding_scheduler=true"
# The profile lies on a file system that every node sees; all ranks read the same bytes.
base_flags="${XLA_FLAGS:-} $lhs"
new_flags="$base_flags --xla_gpu_pgle_profile_file_or_directory_path=$profile"

exec "$PGLE" compare --abba "${ROUNDS:-3}" --run-dir "$RUN_DIR" --fail-slower "${FAIL_SLOWER:-0.5%}" \
  --html "$RUN_DIR/report.html" --junit "$RUN_DIR/junit.xml" --force --label baseline profile -- \
  env "XLA_FLAGS=$base_flags" JAX_ENABLE_COMPILATION_CACHE=false "$SRUN" --kill-on-bad-exit=1 "$@" --vs \
  env "XLA_FLAGS=$new_flags" JAX_ENABLE_COMPILATION_CACHE=false "$SRUN" --kill-on-bad-exit=1 "$@"
