#!/bin/bash
#SBATCH --nodes=2
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=train-%j.out

# sbatch batch.sh                            two nodes, both in the step
# sbatch --nodes=3 batch.sh -N 2 ./train_auto_resume.sh
#                                            one node more than the step uses: a spare, taken in
#                                            seconds when another node is lost
# What stands behind batch.sh goes to srun: its options, the script, the script's arguments.
# After a requeue the output is appended to, not begun again.

srun --auto-resume=1 "${@:-train_auto_resume.sh}"
