#define _GNU_SOURCE

#include "supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/spank.h>

#include "arguments.h"

/* A list of strings as the kernel keeps it: one buffer, a NUL after each. */
struct strings {
	char *buffer;
	char **items; /* ends with NULL */
	size_t count;
};

static int command_index = -1;

void supervisor_note_command_index(void)
{
	if (command_index < 0)
		command_index = optind;
}

static _Noreturn void give_up(const char *what, int error)
{
	slurm_error("hpresume: %s: %s; the step was not started", what, strerror(error));
	exit(1);
}

/* Read a file of /proc, whose size is not known beforehand, NUL included at the end. */
static char *read_whole(const char *path, size_t *length)
{
	size_t size = 0, capacity = 65536;
	char *buffer = malloc(capacity);
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (buffer == NULL || fd < 0)
		give_up(path, errno);

	for (;;) {
		/* One byte is kept for the closing NUL. */
		ssize_t n = read(fd, buffer + size, capacity - size - 1);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			give_up(path, errno);
		if (n == 0)
			break;
		size += (size_t) n;
		if (size == capacity - 1) {
			capacity *= 2;
			buffer = realloc(buffer, capacity);
			if (buffer == NULL)
				give_up(path, errno);
		}
	}
	close(fd);

	if (size > 0 && buffer[size - 1] != '\0')
		buffer[size++] = '\0';
	*length = size;
	return buffer;
}

static struct strings read_strings(const char *path)
{
	struct strings list = { 0 };
	size_t length;

	list.buffer = read_whole(path, &length);
	for (size_t i = 0; i < length; i++)
		list.count += list.buffer[i] == '\0';

	list.items = calloc(list.count + 1, sizeof(*list.items));
	if (list.items == NULL)
		give_up(path, errno);

	char *next = list.buffer;
	for (size_t i = 0; i < list.count; i++) {
		list.items[i] = next;
		next += strlen(next) + 1;
	}
	return list;
}

/*
 * The environment that srun was given, without our option. By now srun has
 * added variables of its own (SLURM_CONF, the options of other plugins) that
 * would act on every srun which the supervisor starts.
 */
static char **original_environment(void)
{
	struct strings list = read_strings("/proc/self/environ");
	size_t kept = 0;

	for (size_t i = 0; i < list.count; i++) {
		if (strncmp(list.items[i], OPTION_ENV_LOCAL "=", strlen(OPTION_ENV_LOCAL "=")) == 0 ||
		    strncmp(list.items[i], OPTION_ENV_REMOTE "=", strlen(OPTION_ENV_REMOTE "=")) == 0)
			continue;
		list.items[kept++] = list.items[i];
	}
	list.items[kept] = NULL;
	return list.items;
}

static char *format(const char *pattern, ...) __attribute__((format(printf, 1, 2)));

static char *format(const char *pattern, ...)
{
	va_list args;
	char *text;

	va_start(args, pattern);
	int length = vasprintf(&text, pattern, args);
	va_end(args);
	if (length < 0)
		give_up("no memory for the supervisor's arguments", ENOMEM);
	return text;
}

static char *own_executable(void)
{
	char path[PATH_MAX + 1];
	ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);

	if (length < 0)
		give_up("/proc/self/exe", errno);
	path[length] = '\0';
	return format("--srun=%s", path);
}

/*
 * The interpreter of a script that begins with "#!/…/python" and nothing more;
 * NULL for any other program, and where the script cannot be executed.
 */
static char *python_of(const char *path)
{
	char line[PATH_MAX + 4];
	int fd = access(path, X_OK) == 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;

	if (fd < 0)
		return NULL;
	ssize_t length = read(fd, line, sizeof(line) - 1);
	close(fd);
	if (length < 4)
		return NULL;
	line[length] = '\0';

	char *end = strchr(line, '\n');
	if (end == NULL || strncmp(line, "#!/", 3) != 0)
		return NULL;
	*end = '\0';
	if (strpbrk(line, " \t") != NULL)
		return NULL;
	return strncmp(strrchr(line, '/'), "/python", 7) == 0 ? format("%s", line + 2) : NULL;
}

static char **supervisor_arguments(const char *path, char *python)
{
	struct strings srun = read_strings("/proc/self/cmdline");

	if (srun.count == 0)
		give_up("/proc/self/cmdline", ENODATA);

	char *own[] = {
		python,
		"-I",
		(char *) path,
		"supervise",
		"--plugin",
		own_executable(),
		format("--command-index=%d", command_index),
		/* Slurm loads a plugin of its own release only, so this is srun's. */
		format("--slurm=%u.%02u", SLURM_VERSION_MAJOR(SLURM_VERSION_NUMBER),
		       SLURM_VERSION_MINOR(SLURM_VERSION_NUMBER)),
		"--",
	};
	const size_t skipped = python == NULL ? 2 : 0;
	const size_t own_count = sizeof(own) / sizeof(own[0]) - skipped;
	char **argv = calloc(own_count + srun.count + 1, sizeof(*argv));

	if (argv == NULL)
		give_up("no memory for the supervisor's arguments", errno);
	memcpy(argv, own + skipped, own_count * sizeof(*argv));
	memcpy(argv + own_count, srun.items, srun.count * sizeof(*argv));
	return argv;
}

/*
 * srun blocks most signals before it loads plugins and, from 26.05 on, ignores
 * SIGTTIN; both would survive exec. Other dispositions are the user's (nohup).
 */
static void restore_signals(void)
{
	struct sigaction action = { .sa_handler = SIG_DFL };
	sigset_t none;

	sigemptyset(&action.sa_mask);
	sigaction(SIGTTIN, &action, NULL);
	sigemptyset(&none);
	pthread_sigmask(SIG_SETMASK, &none, NULL);
}

/*
 * File descriptors are left alone. Those of the user have to survive, and what
 * srun has opened by now is close-on-exec, but for a pipe that its configless
 * start leaves behind before 26.05, of which nobody holds another end.
 */
_Noreturn void supervisor_take_over(const char *path)
{
	if (path == NULL)
		exit(1);

	/*
	 * PYTHONPATH, PYTHONHOME and the like are for the user's training. The
	 * supervisor must not trip over them, so Python is told to ignore them (-I).
	 */
	char *python = python_of(path);
	char **argv = supervisor_arguments(path, python);
	char **envp = original_environment();

	restore_signals();
	execve(python != NULL ? python : path, argv, envp);

	int error = errno;
	/* For a script, ENOENT is also the answer when its interpreter is gone. */
	const char *hint = error == ENOENT && access(path, F_OK) == 0 ? " (its interpreter)" : "";

	slurm_error("hpresume: cannot start the supervisor %s: %s%s; the step was not started",
		    path, strerror(error), hint);
	exit(1);
}
