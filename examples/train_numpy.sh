#!/bin/bash
# As train_auto_resume.sh, for the training without PyTorch: every task of the step is a rank.
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# shellcheck source=scripts/hpresume-env.sh
. "$here/../scripts/hpresume-env.sh"

# One thread a rank is plenty for a network of this size.
export OPENBLAS_NUM_THREADS=1
exec "${PYTHON:-python3}" "$here/train_numpy.py" \
    --checkpoint "${CHECKPOINT:-digits-$SLURM_JOB_ID.npz}" "$@"
