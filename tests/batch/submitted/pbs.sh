#!/bin/bash
#PBS -N bs-mine
#PBS -l select=1:ncpus=1:mpiprocs=1:ngpus=4:model=skl
#PBS -o /o/
#PBS -l walltime=02:00:00
#PBS -r y
#PBS -j oe
#PBS -l place=scatter
#PBS -M me@x.org
set -euo pipefail

export PATH="$PATH":/venv/bin
export BENCHSUITE_DATA__ROOT='/my data'
export BENCHSUITE_STORE=/scratch/store
cd /w

sweep="" signalled="" cancelled="" missed=""
trap 'signalled=yes; kill -s USR1 "$sweep" 2>/dev/null || missed=USR1' USR1
trap 'signalled=yes cancelled=yes; kill -s TERM "$sweep" 2>/dev/null || missed=TERM' TERM
timeout --foreground --preserve-status --signal=USR1 7080 benchsuite sweep /w/mine.yaml --until +7080s &
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
  qsub -v REQUEUES=$((${REQUEUES:-0} + 1)) -W depend=afterany:"$PBS_JOBID" /o/bs-mine.sh
fi
exit "$code"
