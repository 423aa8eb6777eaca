#!/bin/bash
#SBATCH --job-name=bs-mine
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=1-02:00:00
#SBATCH --account=proj42
#SBATCH --partition=boost
#SBATCH --qos=high
#SBATCH --constraint='a100&nvme'
#SBATCH --gres=gpu:4
#SBATCH --array=1-3
#SBATCH --output=/o/bs-mine-%A_%a.out
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --reservation=x
#SBATCH --comment='it'"'"'s a test'
#SBATCH --exclusive
set -euo pipefail

set +u # modules and activation scripts read variables that are not set
module load cuda/12.4
module load nccl
source /apps/venv/bin/activate
set -u
export BENCHSUITE_STORE=/scratch/store
cd /w

for name in "${!SLURM_CPU_BIND@}" "${!SLURM_GPU_BIND@}" "${!SLURM_GPUS_PER_TASK@}" "${!SLURM_MEM_PER_@}" "${!SLURM_NTASKS_PER_GPU@}" "${!SLURM_TRES_PER_TASK@}"; do unset "$name"; done
export BENCHSUITE_JOB_RANKS_PER_NODE=4
sweep="" signalled="" cancelled="" missed=""
trap 'signalled=yes; kill -s USR1 "$sweep" 2>/dev/null || missed=USR1' USR1
trap 'signalled=yes cancelled=yes; kill -s USR1 "$sweep" 2>/dev/null || missed=USR1' TERM
srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=32 --gpus-per-node=4 --gpu-bind=none --mem=0 --cpu-bind=none --mpi=none --export=ALL --overlap --quiet --no-kill --kill-on-bad-exit=0 apptainer exec --nv '/images/bench suite.sif' benchsuite sweep /w/mine.yaml &
sweep=$!
if [ -n "$missed" ]; then kill -s "$missed" "$sweep" 2>/dev/null || true; fi # it came before the number
while :; do
  signalled="" code=0
  wait "$sweep" || code=$?
  if [ -z "$signalled" ]; then break; fi # else a signal has ended the wait, not the sweep
done
# 75: stopped early, trials are left; the next run goes on in the same session (not when cancelled)
if [ "$code" -eq 75 ] && [ -z "$cancelled" ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 3 ]; then
  scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
fi
exit "$code"
