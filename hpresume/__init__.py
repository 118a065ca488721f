"""hpresume: training steps on Slurm that survive the loss of nodes."""

__version__ = "0.1.0"
