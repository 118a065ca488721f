/* What the user writes after srun, and the administrator in plugstack.conf. */
#ifndef HPRESUME_ARGUMENTS_H
#define HPRESUME_ARGUMENTS_H

#include <stdbool.h>

#include <slurm/spank.h>

/*
 * Variables in which Slurm carries the option. srun reads the first like an
 * option of its own; it writes the second for slurmstepd, prolog and epilog.
 */
#define OPTION_ENV_REMOTE "_SLURM_SPANK_OPTION_hpresume_auto_resume"
#define OPTION_ENV_LOCAL "SLURM_SPANK_" OPTION_ENV_REMOTE

/* Make --auto-resume known to the current process. */
void arguments_register(spank_t sp);

/* Forget a value of --auto-resume that came through the environment. */
void arguments_clear_environment(void);

/* Keep what Slurm noted about the option out of the step's environment. */
void arguments_erase_option(spank_t sp);

/* Read plugstack.conf's arguments. A fault is kept for arguments_supervisor(). */
void arguments_read_plugstack(int ac, char **av);

/* Whether the user has asked for protection. */
bool arguments_auto_resume(void);

/*
 * The program that runs the step. NULL, after one line that says why, if
 * plugstack.conf is wrong about it.
 */
const char *arguments_supervisor(void);

#endif
