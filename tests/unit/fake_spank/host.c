/*
 * A stand-in for srun and slurmstepd: loads a SPANK plugin and calls it in the
 * order that Slurm does, so that the plugin is tested without a cluster.
 *
 * The plugin reads this program's own argv, as it would read srun's. So the
 * orders come from the file FAKE_SPANK_SCRIPT, one a line:
 *
 *   context local|remote|allocator|slurmd
 *   plugstack ARG          one more argument of the plugstack.conf line
 *   setenv NAME=VALUE      what srun itself adds to its environment
 *   like-srun              block and ignore signals as srun does at this point
 *   init                   slurm_spank_init
 *   parse                  srun's options: environment first, then argv
 *   remote-option VALUE    the option as slurmstepd receives it
 *   component              go on behind the next ":" of argv, as for a further
 *                          component of a heterogeneous step
 *   post-opt               slurm_spank_init_post_opt
 *   getenv NAME
 *   warn TEXT              a message of srun's
 *   exit CODE
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <slurm/spank.h>

#define OPTION_VALUE 0xfff
#define ENV_PREFIX "_SLURM_SPANK_OPTION_hpresume_"

struct spank_handle {
	bool in_init;
};

static spank_context_t context = S_CTX_LOCAL;
static struct spank_handle handle;
static struct spank_option registered;
static bool found;
static char *found_value;
static char *plugstack[16];
static int plugstack_count;

static void say(const char *level, const char *format, va_list args)
{
	fprintf(stderr, "%s: ", level);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
}

#define LOG_FUNCTION(name, level)                  \
	void name(const char *format, ...)         \
	{                                          \
		va_list args;                      \
		va_start(args, format);            \
		say(level, format, args);          \
		va_end(args);                      \
	}

LOG_FUNCTION(slurm_error, "error")
LOG_FUNCTION(slurm_info, "info")
LOG_FUNCTION(slurm_verbose, "verbose")
LOG_FUNCTION(slurm_debug, "debug")

spank_context_t spank_context(void)
{
	return context;
}

const char *spank_strerror(spank_err_t err)
{
	return err == ESPANK_BAD_ARG ? "Bad argument" : "Unspecified";
}

spank_err_t spank_option_register(spank_t sp, struct spank_option *opt)
{
	if (!sp->in_init || getenv("FAKE_SPANK_REFUSE_OPTION"))
		return ESPANK_BAD_ARG;
	registered = *opt;
	printf("registered --%s has_arg=%d\n", opt->name, opt->has_arg);
	return ESPANK_SUCCESS;
}

spank_err_t spank_job_control_unsetenv(spank_t sp, const char *name)
{
	(void) sp;
	printf("job control unsetenv %s\n", name);
	return ESPANK_SUCCESS;
}

/* Only slurmstepd has a step to tell of. */
/* Only for slurmstepd. */
spank_err_t spank_getenv(spank_t sp, const char *name, char *value, int size)
{
	(void) sp;
	(void) name;
	(void) value;
	(void) size;
	return ESPANK_NOT_REMOTE;
}

spank_err_t spank_get_item(spank_t sp, spank_item_t item, ...)
{
	(void) sp;
	(void) item;
	return ESPANK_NOT_REMOTE;
}

static void call_back(const char *value, int remote)
{
	int rc = registered.cb(registered.val, value, remote);

	printf("callback rc=%d\n", rc);
	fflush(stdout);
	if (rc != 0 && !remote)
		exit(255);
	found = true;
	found_value = value ? strdup(value) : NULL;
}

static void parse(int argc, char **argv)
{
	struct option options[] = {
		{ "nodes", required_argument, NULL, 'N' },
		{ "ntasks", required_argument, NULL, 'n' },
		{ "job-name", required_argument, NULL, 'J' },
		{ "account", required_argument, NULL, 'A' },
		{ "label", no_argument, NULL, 'l' },
		{ registered.name, registered.has_arg, NULL, OPTION_VALUE },
		{ NULL, 0, NULL, 0 },
	};
	const char *from_env = getenv("SLURM_SPANK_" ENV_PREFIX "auto_resume");
	int c;

	if (registered.name == NULL)
		options[5] = options[6];
	else if (from_env)
		call_back(from_env, 0);

	/* srun reads argv twice: the first pass is for --het-group only. */
	for (int pass = 0; pass < 2; pass++) {
		optind = 0;
		while ((c = getopt_long(argc, argv, "+N:n:J:A:l", options, NULL)) != -1) {
			if (c == '?')
				exit(255);
			if (pass == 1 && c == OPTION_VALUE)
				call_back(optarg, 0);
		}
	}
	printf("optind %d\n", optind);
	if (found)
		setenv(ENV_PREFIX "auto_resume", found_value ? found_value : "", 1);
}

static void like_srun(void)
{
	static const int blocked[] = { SIGINT, SIGQUIT, SIGCONT, SIGTERM, SIGHUP, SIGALRM,
				       SIGUSR1, SIGUSR2, SIGPIPE, SIGWINCH };
	sigset_t set;

	sigemptyset(&set);
	for (size_t i = 0; i < sizeof(blocked) / sizeof(blocked[0]); i++)
		sigaddset(&set, blocked[i]);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	signal(SIGTTIN, SIG_IGN);
}

static spank_f *entry(void *plugin, const char *name)
{
	spank_f *function;

	*(void **) &function = dlsym(plugin, name);
	if (function == NULL) {
		fprintf(stderr, "host: %s\n", dlerror());
		exit(99);
	}
	return function;
}

static const char *after(const char *line, const char *word)
{
	size_t n = strlen(word);

	return strncmp(line, word, n) == 0 && line[n] == ' ' ? line + n + 1 : NULL;
}

int main(int argc, char **argv)
{
	char line[4096];
	const char *rest;
	FILE *script = fopen(getenv("FAKE_SPANK_SCRIPT"), "re");
	void *plugin = dlopen(getenv("FAKE_SPANK_PLUGIN"), RTLD_LAZY);

	if (script == NULL || plugin == NULL) {
		fprintf(stderr, "host: %s\n", plugin ? "no script" : dlerror());
		return 99;
	}
	while (fgets(line, sizeof(line), script)) {
		line[strcspn(line, "\n")] = '\0';
		if ((rest = after(line, "context"))) {
			context = !strcmp(rest, "local")     ? S_CTX_LOCAL
				  : !strcmp(rest, "remote")  ? S_CTX_REMOTE
				  : !strcmp(rest, "slurmd")  ? S_CTX_SLURMD
							     : S_CTX_ALLOCATOR;
		} else if ((rest = after(line, "plugstack"))) {
			plugstack[plugstack_count++] = strdup(rest);
		} else if ((rest = after(line, "setenv"))) {
			putenv(strdup(rest));
		} else if ((rest = after(line, "getenv"))) {
			const char *value = getenv(rest);
			printf("%s%s%s\n", rest, value ? "=" : " unset", value ? value : "");
		} else if ((rest = after(line, "warn"))) {
			slurm_info("%s", rest);
		} else if ((rest = after(line, "exit"))) {
			exit(atoi(rest));
		} else if ((rest = after(line, "remote-option"))) {
			call_back(rest, 1);
		} else if (!strcmp(line, "like-srun")) {
			like_srun();
		} else if (!strcmp(line, "init")) {
			handle.in_init = true;
			printf("init rc=%d\n", entry(plugin, "slurm_spank_init")(
						       &handle, plugstack_count, plugstack));
			handle.in_init = false;
		} else if (!strcmp(line, "parse")) {
			parse(argc, argv);
		} else if (!strcmp(line, "component")) {
			for (int i = optind; i < argc; i++) {
				if (!strcmp(argv[i], ":")) {
					argv += i;
					argc -= i;
					break;
				}
			}
		} else if (!strcmp(line, "post-opt")) {
			printf("post-opt\n");
			fflush(stdout);
			printf("post-opt rc=%d\n", entry(plugin, "slurm_spank_init_post_opt")(
							   &handle, plugstack_count, plugstack));
		} else {
			fprintf(stderr, "host: unknown order: %s\n", line);
			return 99;
		}
	}
	return 0;
}
