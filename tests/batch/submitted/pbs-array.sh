#!/bin/bash
#PBS -N bs-mine
#PBS -l select=2:ncpus=32:mpiprocs=4
#PBS -A proj42
#PBS -q boost
#PBS -o /o/
#PBS -l walltime=26:00:00
#PBS -r y
#PBS -j oe
set -euo pipefail

set +u # modules and activation scripts read variables that are not set
module load cuda/12.4
module load nccl
source /apps/venv/bin/activate
set -u
export BENCHSUITE_STORE=/scratch/store
cd /w

sweep="" signalled="" cancelled="" missed=""
trap 'signalled=yes; kill -s USR1 "$sweep" 2>/dev/null || missed=USR1' USR1
trap 'signalled=yes cancelled=yes; kill -s TERM "$sweep" 2>/dev/null || missed=TERM' TERM
timeout --foreground --preserve-status --signal=USR1 93480 apptainer exec --nv '/images/bench suite.sif' benchsuite sweep /w/mine.yaml --until +93480s &
sweep=$!
if [ -n "$missed" ]; then kill -s "$missed" "$sweep" 2>/dev/null || true; fi # it came before the number
while :; do
  signalled="" code=0
  wait "$sweep" || code=$?
  if [ -z "$signalled" ]; then break; fi # else a signal has ended the wait, not the sweep
done
# 75: stopped early, trials are left; the next run goes on in the same session (not when cancelled)
# a new job runs this script, since PBS lets none but operators requeue one (qrerun)
if [ "$code" -eq 75 ] && [ -z "$cancelled" ] && [ "${REQUEUES:-0}" -lt 20 ]; then
  qsub -v REQUEUES=$((${REQUEUES:-0} + 1)) /o/bs-mine.sh
fi
exit "$code"
