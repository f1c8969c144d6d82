# Settings for AMD's GPUs, to be read before a job is sent off; the batch scripts are those of: pgle init slurm
#
#   . ./rocm.sh
#   RUN=/shared/runs/a sbatch --nodes=4 pgle.sbatch python train.py
#
# IMAGE  an image with jax, its ROCm plugin and pgle, as Dockerfile.pgle-rocm makes it; empty: no container    []
#        apptainer build pgle-rocm.sif docker-daemon://pgle-rocm:latest
#
# On Kubernetes: pgle init k8s, with amd.com/gpu in place of nvidia.com/gpu.
# XLA's flags of AMD's MaxText configurations: eval "$(pgle flags preset rocm)"
export GPU_MAX_HW_QUEUES=${GPU_MAX_HW_QUEUES:-2}
export HIP_FORCE_DEV_KERNARG=${HIP_FORCE_DEV_KERNARG:-1}
export HSA_FORCE_FINE_GRAIN_PCIE=${HSA_FORCE_FINE_GRAIN_PCIE:-1}
# jax's profiler records AMD's GPUs; nsys does not.
export CAPTURE=jax
if [ -n "${IMAGE:-}" ]; then
    # --rocm gives the container /dev/kfd, /dev/dri and the driver's libraries.
    export SRUN="srun apptainer exec --rocm $IMAGE"
fi
