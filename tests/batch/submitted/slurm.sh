#!/bin/bash
#SBATCH --job-name=bs-mine
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --output=/o/bs-mine-%j.out
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

export BENCHSUITE_STORE=/scratch/store
cd /w

if [ -n "${SLURM_JOB_ID:-}" ] && [ -z "${SLURM_JOB_END_TIME:-}" ]; then # Slurm 22.05 does not tell
  end=$(SLURM_TIME_FORMAT=standard squeue -h -j "$SLURM_JOB_ID" -o %e 2>/dev/null || true)
  SLURM_JOB_END_TIME=$(date -d "${end:-unknown}" +%s 2>/dev/null || true)
  export SLURM_JOB_END_TIME
fi
sweep="" signalled="" cancelled=""
trap 'signalled=yes; kill -s USR1 "$sweep" 2>/dev/null || true' USR1
trap 'signalled=yes cancelled=yes; kill -s TERM "$sweep" 2>/dev/null || true' TERM
benchsuite sweep /w/mine.yaml &
sweep=$!
while :; do
  signalled="" code=0
  wait "$sweep" || code=$?
  if [ -z "$signalled" ]; then break; fi # else a signal has ended the wait, not the sweep
done
# 75: stopped early, trials are left; the next run goes on in the same session (not when cancelled)
if [ "$code" -eq 75 ] && [ -z "$cancelled" ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 20 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
