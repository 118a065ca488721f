"""The only part of hpresume that talks to Slurm."""
