"""Where this task stands: node list, master and rank from Slurm's live state.

``hpresume env`` prints them for a shell; ``scripts/hpresume-env.sh`` gives the
same without Python. It runs on every node at every start of a step, so: the
standard library only, two questions to Slurm, a bound in time, and an answer
without Slurm where there can be one.
"""
