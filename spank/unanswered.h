/* Connections of this process that are being made, and that nobody answers. */
#ifndef HPRESUME_UNANSWERED_H
#define HPRESUME_UNANSWERED_H

#include <stdbool.h>
#include <stddef.h>

#define UNANSWERED_MOST 32

/* One attempt to connect, known by the inode of its socket. */
struct attempt {
	unsigned long inode;
	long long since_ms; /* when it was first seen */
	bool seen;
	bool ended;
};

/* The attempts that were seen at the last look; all zero at first. */
struct attempts {
	struct attempt items[UNANSWERED_MOST];
	size_t count;
};

/*
 * Look at all sockets of this process at now_ms (of a clock that only goes
 * forward). Returns how many attempts to connect have been seen, unanswered,
 * for at least min_ms. With end, these fail at once, as if their time was over.
 */
int unanswered_look(struct attempts *known, long long now_ms, long long min_ms, bool end);

#endif
