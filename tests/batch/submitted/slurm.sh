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

sweep="" signalled="" cancelled="" missed=""
trap 'signalled=yes; kill -s USR1 "$sweep" 2>/dev/null || missed=USR1' USR1
trap 'signalled=yes cancelled=yes; kill -s TERM "$sweep" 2>/dev/null || missed=TERM' TERM
benchsuite sweep /w/mine.yaml &
sweep=$!
if [ -n "$missed" ]; then kill -s "$missed" "$sweep" 2>/dev/null || true; fi # it came before the number
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
