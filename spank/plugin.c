/*
 * Entry points of the hpresume SPANK plugin.
 *
 * The plugin adds `--auto-resume[=0|1]` to srun and, where the option is on,
 * turns the srun process into the hpresume supervisor, which then runs the real
 * srun itself. In slurmstepd it cuts short what would keep a job from running
 * again when its batch host is lost. Nothing is decided here: see arguments.c for
 * what the user and the administrator may write, messages.c for what srun says
 * until then, supervisor.c for the hand-over, lost_host.c for slurmstepd.
 *
 * A process that does not use the option must not notice the plugin: no line,
 * no error code, no environment variable.
 */
#include <slurm/spank.h>

#include "arguments.h"
#include "lost_host.h"
#include "messages.h"
#include "supervisor.h"

#define EXPORT __attribute__((visibility("default")))

#pragma GCC visibility push(default)
SPANK_PLUGIN(hpresume, 1)
#pragma GCC visibility pop

EXPORT int slurm_spank_init(spank_t sp, int ac, char **av)
{
	switch (spank_context()) {
	case S_CTX_LOCAL:
		/*
		 * The protection belongs to one srun. Without this, a variable
		 * left by an outer command would switch it on in every srun below.
		 */
		arguments_clear_environment();
		arguments_read_plugstack(ac, av);
		arguments_register(sp);
		return 0;
	case S_CTX_REMOTE:
		/* slurmstepd must know the option that srun sends along. */
		arguments_register(sp);
		/* It is about to connect to srun, and to tell it that the tasks run. */
		lost_host_watch(sp, 5);
		return 0;
	default:
		/* Not for sbatch and salloc: --auto-resume is unknown there. */
		return 0;
	}
}

EXPORT int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
	(void) ac;
	(void) av;

	if (spank_context() != S_CTX_LOCAL)
		return 0;

	supervisor_note_command_index();

	if (arguments_auto_resume()) {
		messages_drop();
		supervisor_take_over(arguments_supervisor());
	}

	messages_show();
	arguments_erase_option(sp);
	return 0;
}

EXPORT int slurm_spank_task_exit(spank_t sp, int ac, char **av)
{
	(void) ac;
	(void) av;

	/* A TaskEpilog, and what is left of the task's processes, come first. */
	lost_host_watch(sp, 60);
	return 0;
}

EXPORT int slurm_spank_exit(spank_t sp, int ac, char **av)
{
	(void) ac;
	(void) av;

	/* The tree of the step comes now; an extern step has had no task. */
	if (spank_context() == S_CTX_REMOTE)
		lost_host_watch(sp, 60);
	return 0;
}
