#!/bin/bash
# The start of a training on every node of the step: batch.sh runs it with one task a node.
#
# All setup belongs in here and not in the batch script: a node that takes the place of a lost one
# runs this script from its first line, and nothing else.
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# Set up the environment here: module load, conda activate, a virtual environment …
# TORCHRUN, PROCESSES_PER_NODE and CHECKPOINT can be set from outside.

# Sets NODE_LIST, MASTER_NODE, MASTER_ADDR, MASTER_PORT, NNODES and NODE_RANK. With hpresume on the
# nodes' PATH, `eval "$(hpresume env || echo false)" || exit 1` does the same. Mind the path in a
# copy of this file.
#
# Why not from the variables that Slurm sets:
# - SLURM_JOB_NODELIST is the job as it was when the batch script began, and lists spare nodes too;
# - SLURM_NODEID counts the nodes of the step, but SLURM_NODE does not exist;
# - a fixed port is still taken when the attempt before has left a process behind, or another
#   job runs on the node.
# shellcheck source=scripts/hpresume-env.sh
. "$here/../scripts/hpresume-env.sh"

echo "node $NODE_RANK of $NNODES ($(hostname)): master $MASTER_NODE at $MASTER_ADDR:$MASTER_PORT, attempt ${HPRESUME_ATTEMPT:-1}"

# No restarts by torchrun: it cannot replace a node. It ends, and the step is resumed as a whole.
exec "${TORCHRUN:-torchrun}" \
    --nnodes="$NNODES" \
    --nproc-per-node="${PROCESSES_PER_NODE:-1}" \
    --node-rank="$NODE_RANK" \
    --master-addr="$MASTER_ADDR" \
    --master-port="$MASTER_PORT" \
    --max-restarts=0 \
    "$here/train_ddp.py" --checkpoint "${CHECKPOINT:-digits-$SLURM_JOB_ID.pt}" "$@"
