#define _GNU_SOURCE

#include "messages.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* More than srun says about its options; past the limit, SIGXFSZ would end it. */
#define ROOM 65536

/* Whether the user's limit of file sizes leaves room: it holds for memfd too. */
static int has_room(void)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
	       (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= ROOM);
}

/* The user's stderr while fd 2 is the file that keeps; -1 otherwise. */
static int users_stderr = -1;

void messages_keep(void)
{
	static int registered = 0;

	/* Where the user has closed it, fd 2 is missing or a file of srun's own. */
	if (users_stderr >= 0 || fcntl(STDERR_FILENO, F_GETFD) != 0)
		return;
	if (!has_room())
		return;
	if (!registered && atexit(messages_show) != 0)
		return;
	registered = 1;

	fflush(stderr);
	int file = memfd_create("hpresume", MFD_CLOEXEC);
	int copy = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);

	if (file >= 0 && copy >= 0 && dup2(file, STDERR_FILENO) >= 0)
		users_stderr = copy;
	else if (copy >= 0)
		close(copy);
	if (file >= 0)
		close(file);
}

/* Give fd 2 back to the user; the file that kept, or -1 where there is none. */
static int end_keeping(void)
{
	if (users_stderr < 0)
		return -1;

	fflush(stderr);
	int file = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);

	dup2(users_stderr, STDERR_FILENO);
	close(users_stderr);
	users_stderr = -1;
	return file;
}

void messages_drop(void)
{
	int file = end_keeping();

	if (file >= 0)
		close(file);
}

void messages_show(void)
{
	int file = end_keeping();
	char buffer[4096];
	ssize_t length;

	if (file < 0)
		return;
	lseek(file, 0, SEEK_SET);
	while ((length = read(file, buffer, sizeof(buffer))) > 0) {
		for (ssize_t done = 0, n; done < length; done += n) {
			n = write(STDERR_FILENO, buffer + done, (size_t) (length - done));
			if (n <= 0)
				break;
		}
	}
	close(file);
}
