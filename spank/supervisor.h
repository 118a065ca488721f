/* Turns the srun process into the supervisor. */
#ifndef HPRESUME_SUPERVISOR_H
#define HPRESUME_SUPERVISOR_H

/*
 * Remember where srun's option parser stopped: the index of the user's command
 * in srun's argv. Only the first call counts. Later ones are about further
 * components of a heterogeneous step, counted from their own beginning.
 */
void supervisor_note_command_index(void);

/*
 * Replace this process by
 *
 *   PATH supervise --plugin --srun=<this executable> --command-index=<index>
 *        --slurm=<its release> -- <srun's argv, unchanged>
 *
 * in the environment that srun was started with. A Python script is run as
 * "python -I PATH …". Never returns: where it cannot be done, or path is NULL, the
 * process ends with an error.
 */
_Noreturn void supervisor_take_over(const char *path);

#endif
