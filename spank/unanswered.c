#define _GNU_SOURCE

#include "unanswered.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Whether a descriptor is a TCP socket whose connect() waits, or whose data, or
 * question whether there is room for more, was sent in vain. A reader that is
 * merely slow answers both.
 */
static bool has_no_answer(int fd)
{
	struct tcp_info info = { 0 };
	socklen_t length = sizeof(info);

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0)
		return false;
	return info.tcpi_state == TCP_SYN_SENT ||
	       (info.tcpi_unacked > 0 && info.tcpi_retransmits > 0) || info.tcpi_probes > 0;
}

static struct attempt *find(struct attempts *known, unsigned long inode, long long now_ms)
{
	for (size_t i = 0; i < known->count; i++) {
		if (known->items[i].inode == inode)
			return &known->items[i];
	}
	if (known->count == UNANSWERED_MOST)
		return NULL;

	struct attempt *found = &known->items[known->count++];

	*found = (struct attempt) { .inode = inode, .since_ms = now_ms };
	return found;
}

static void forget_unseen(struct attempts *known)
{
	size_t kept = 0;

	for (size_t i = 0; i < known->count; i++) {
		if (known->items[i].seen)
			known->items[kept++] = known->items[i];
	}
	known->count = kept;
}

int unanswered_look(struct attempts *known, long long now_ms, long long min_ms, bool end)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;
	int old = 0;

	if (folder == NULL)
		return 0;
	for (size_t i = 0; i < known->count; i++)
		known->items[i].seen = false;

	while ((entry = readdir(folder)) != NULL) {
		struct stat status;

		if (entry->d_name[0] < '0' || entry->d_name[0] > '9')
			continue;
		/*
		 * A copy: the number may stand for another file in a moment, for
		 * other threads go on. The copy stands for this one.
		 */
		int fd = fcntl(atoi(entry->d_name), F_DUPFD_CLOEXEC, 3);

		if (fd < 0)
			continue;
		if (fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode) && has_no_answer(fd)) {
			struct attempt *found = find(known, status.st_ino, now_ms);

			if (found != NULL) {
				found->seen = true;
				if (!found->ended && now_ms - found->since_ms >= min_ms) {
					old++;
					/* connect() ends with ECONNRESET, write() with EPIPE. */
					found->ended = end && shutdown(fd, SHUT_RDWR) == 0;
				}
			}
		}
		close(fd);
	}
	closedir(folder);
	forget_unseen(known);
	return old;
}
