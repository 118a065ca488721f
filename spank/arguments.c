#define _GNU_SOURCE

#include "arguments.h"

#include "messages.h"

#include <stdlib.h>
#include <string.h>

#ifndef HPRESUME_SUPERVISOR
#define HPRESUME_SUPERVISOR "/usr/local/bin/hpresume"
#endif

#define SUPERVISOR_KEY "supervisor="

static int on_auto_resume(int val, const char *optarg, int remote);

static struct spank_option auto_resume_option = {
	.name = "auto-resume",
	.arginfo = "[0|1]",
	.usage = "[hpresume] resume this step when it loses a node",
	.has_arg = 2,
	.val = 0,
	.cb = on_auto_resume,
};

static bool auto_resume = false;
static const char *supervisor = HPRESUME_SUPERVISOR;
/* The argument of plugstack.conf that cannot be used, if there is one. */
static const char *bad_argument = NULL;

/*
 * Called once for each time the option is found: in the environment, then on
 * the command line. The last call wins.
 */
static int on_auto_resume(int val, const char *optarg, int remote)
{
	(void) val;

	if (remote)
		return 0;

	/* Slurm turns a missing value into "(null)" when it keeps it as text. */
	if (optarg == NULL || *optarg == '\0' || strcmp(optarg, "(null)") == 0 ||
	    strcmp(optarg, "1") == 0) {
		/* srun's warnings about its options come after this call. */
		messages_keep();
		auto_resume = true;
		return 0;
	}
	if (strcmp(optarg, "0") == 0) {
		auto_resume = false;
		return 0;
	}
	slurm_error("hpresume: --auto-resume=%s: the value must be 1 (or none) for on, 0 for off",
		    optarg);
	return -1;
}

void arguments_register(spank_t sp)
{
	/*
	 * Where this fails, --auto-resume is unknown to srun, which then refuses
	 * it: no step runs unprotected, and other steps need no message.
	 */
	spank_err_t rc = spank_option_register(sp, &auto_resume_option);

	if (rc != ESPANK_SUCCESS)
		slurm_debug("hpresume: cannot register --auto-resume: %s", spank_strerror(rc));
}

void arguments_clear_environment(void)
{
	unsetenv(OPTION_ENV_LOCAL);
	unsetenv(OPTION_ENV_REMOTE);
}

void arguments_erase_option(spank_t sp)
{
	/* The names SPANK_… that prolog and epilog see come from a list of their own. */
	if (getenv(OPTION_ENV_REMOTE) != NULL)
		(void) spank_job_control_unsetenv(sp, OPTION_ENV_REMOTE);
	arguments_clear_environment();
}

void arguments_read_plugstack(int ac, char **av)
{
	const size_t key_length = strlen(SUPERVISOR_KEY);

	for (int i = 0; i < ac; i++) {
		if (strncmp(av[i], SUPERVISOR_KEY, key_length) == 0 && av[i][key_length] == '/')
			supervisor = av[i] + key_length;
		else if (bad_argument == NULL)
			bad_argument = av[i];
	}
}

bool arguments_auto_resume(void)
{
	return auto_resume;
}

const char *arguments_supervisor(void)
{
	if (bad_argument == NULL)
		return supervisor;

	slurm_error("hpresume: plugstack.conf: %s is not supervisor=/absolute/path; "
		    "the step was not started", bad_argument);
	return NULL;
}
