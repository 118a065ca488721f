"""A help of srun with every form in which an option is described."""

HELP = """\
Usage: srun [OPTIONS...] program [args...]

Run options:
  -A, --account=name          whom to charge
  -k, --no-kill               a flag, says this line
  -I, --immediate[=secs]      how long to wait
      --container             Path to a bundle
  -B  --extra-node-info=S[:C[:T]]  no comma, and text
                              --not-an-option in the middle of it
      --bcast=<dest_path>     copy the program
  -l, --label                 prefix of the lines
  -N, --nodes=N               how many nodes (N = min[-max])
      --ntasks-per-node=n     how many
  -J, --job-name=jobname      what to call it
      --power=flags           gone later

Options provided by plugins:
      --auto-resume=[0|1]     [hpresume] about this
      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH
                              [pyxis] the image
      --container-writable    [pyxis] a flag

      --a-very-long-option-of-a-plugin-that-does-not-fit=VALUE
                              more about it

Help options:
  -h, --help                  show this help message
"""
