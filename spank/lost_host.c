/*
 * When a batch host dies, its srun does, and slurmstepd on the job's other nodes
 * does not know. It tries six times, for TCPTimeout (2 s) each and with pauses
 * between, to tell that srun of the end of its tasks; in a step of seven nodes or
 * more five times to reach the slurmstepd above it in the step's tree; and for a
 * minute to be rid of output that was on its way. The job is COMPLETING until
 * then (14 s, 36 s, 74 s seen), and nothing in Slurm cuts that short.
 */
#define _GNU_SOURCE

#include "lost_host.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include <slurm/slurm.h>

#include "unanswered.h"

/* How often the sockets are looked at (ms). */
#define LOOK_MS 200

/* A host that lives answers within a round trip; this long without is a reason to ask (ms). */
#define SILENT_MS 500

/* The same once the host is known to be lost (ms). */
#define LOST_LOOK_MS   20
#define LOST_SILENT_MS 20

/* Pause between two questions to slurmctld (ms). */
#define ASK_MS 1000

/* Longest wait for its answer where the process is about to end (s). */
#define ASK_LIMIT_S 5

/* Ends a sleep of the thread that gets it; without a handler it means nothing. */
#define WAKE SIGWINCH

typedef int (*load_job_t)(job_info_msg_t **, uint32_t, uint16_t);
typedef int (*load_node_t)(node_info_msg_t **, char *, uint16_t);
typedef void (*free_job_t)(job_info_msg_t *);
typedef void (*free_node_t)(node_info_msg_t *);

/* What the thread is started with. */
static pthread_t caller; /* slurmstepd's thread that calls us and then waits */
static uint32_t job_id;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool watching;	   /* under lock */
static long long until_ms; /* under lock */

/* Held while libslurm is in use: its process may not end under it. */
static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;

static long long clock_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static void sleep_ms(long ms)
{
	struct timespec pause = { ms / 1000, ms % 1000 * 1000000L };

	nanosleep(&pause, NULL);
}

static bool job_is_over(const job_info_t *job)
{
	uint32_t base = job->job_state & JOB_STATE_BASE;

	return base != JOB_RUNNING && base != JOB_SUSPENDED;
}

/* Looked up when they are needed: a plugin that misses one is not loaded at all. */
static bool node_is_down(char *name)
{
	load_node_t load = (load_node_t) dlsym(RTLD_DEFAULT, "slurm_load_node_single");
	free_node_t release = (free_node_t) dlsym(RTLD_DEFAULT, "slurm_free_node_info_msg");
	node_info_msg_t *answer = NULL;

	if (load == NULL || release == NULL || name == NULL ||
	    load(&answer, name, SHOW_ALL) != 0 || answer == NULL)
		return false;

	bool down = answer->record_count == 1 &&
		    (answer->node_array[0].node_state & NODE_STATE_BASE) == NODE_STATE_DOWN;

	release(answer);
	return down;
}

static bool batch_host_is_lost(void)
{
	load_job_t load = (load_job_t) dlsym(RTLD_DEFAULT, "slurm_load_job");
	free_job_t release = (free_job_t) dlsym(RTLD_DEFAULT, "slurm_free_job_info_msg");
	job_info_msg_t *answer = NULL;
	bool lost = false;

	if (load == NULL || release == NULL || load(&answer, job_id, SHOW_ALL) != 0 ||
	    answer == NULL)
		return false;
	if (answer->record_count == 1) {
		const job_info_t *job = &answer->job_array[0];

		lost = job->batch_flag && job_is_over(job) && node_is_down(job->batch_host);
		if (lost)
			slurm_info("hpresume: job %u has ended, and %s, where its script ran, is "
				   "DOWN: its srun is not waited for",
				   job_id, job->batch_host);
	}
	release(answer);
	return lost;
}

static void nothing(int number)
{
	(void) number;
}

/* Whether WAKE ends sleeps from now on. Somebody else's handler is left alone. */
static bool take_signal(void)
{
	struct sigaction action = { .sa_handler = nothing, .sa_flags = SA_RESTART };
	struct sigaction before;

	return sigaction(WAKE, NULL, &before) == 0 && !(before.sa_flags & SA_SIGINFO) &&
	       (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN) &&
	       sigaction(WAKE, &action, NULL) == 0;
}

/* Until the process ends: no wait for the lost host lasts, nor a pause before the next. */
static _Noreturn void cut_short(struct attempts *known)
{
	bool wakes = take_signal();
	bool ended = false;

	for (;;) {
		if (unanswered_look(known, clock_ms(), LOST_SILENT_MS, true) > 0) {
			ended = true;
		} else if (ended && wakes) {
			/* Once after each attempt: other sleeps are not ours to end. */
			ended = false;
			pthread_kill(caller, WAKE);
		}
		sleep_ms(LOST_LOOK_MS);
	}
}

static void *watch(void *unused)
{
	struct attempts known = { 0 };
	long long ask_ms = 0;
	bool over = false;

	(void) unused;
	while (!over) {
		sleep_ms(LOOK_MS);
		long long now_ms = clock_ms();
		bool waits = unanswered_look(&known, now_ms, SILENT_MS, false) > 0;

		if (waits && now_ms >= ask_ms) {
			pthread_mutex_lock(&asking);
			bool lost = batch_host_is_lost();
			pthread_mutex_unlock(&asking);

			if (lost)
				cut_short(&known);
			ask_ms = clock_ms() + ASK_MS;
		}

		pthread_mutex_lock(&lock);
		over = !waits && now_ms >= until_ms;
		watching = !over;
		pthread_mutex_unlock(&lock);
	}
	return NULL;
}

static void wait_for_answer(void)
{
	struct timespec limit;

	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += ASK_LIMIT_S;
	(void) pthread_mutex_timedlock(&asking, &limit);
}

static bool start_thread(void)
{
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t all, before;

	if (pthread_attr_init(&attributes) != 0)
		return false;
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	/* Signals are for slurmstepd's own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(&thread, &attributes, watch, NULL);

	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return error == 0;
}

/* The attempts of a protected step, and steps of its supervisor, are told these. */
static const char *const MARKS[] = { "HPRESUME_ATTEMPT", "HPRESUME_OWN_STEP" };

static bool is_protected(spank_t sp)
{
	char value[16];

	for (size_t i = 0; i < sizeof(MARKS) / sizeof(*MARKS); i++) {
		spank_err_t error = spank_getenv(sp, MARKS[i], value, sizeof(value));

		if (error == ESPANK_SUCCESS || error == ESPANK_NOSPACE)
			return true;
	}
	return false;
}

void lost_host_watch(spank_t sp, int seconds)
{
	static bool registered = false;
	uint32_t step_id;

	/* The end of a batch script is told to slurmctld alone. */
	if (spank_get_item(sp, S_JOB_STEPID, &step_id) != ESPANK_SUCCESS ||
	    step_id == SLURM_BATCH_SCRIPT)
		return;
	/* An extern step is told nothing, and has to be over as well before its job runs again. */
	if (step_id != SLURM_EXTERN_CONT && !is_protected(sp))
		return;

	pthread_mutex_lock(&lock);
	until_ms = clock_ms() + seconds * 1000LL;
	if (!watching && (registered || atexit(wait_for_answer) == 0) &&
	    spank_get_item(sp, S_JOB_ID, &job_id) == ESPANK_SUCCESS) {
		registered = true;
		caller = pthread_self();
		watching = start_thread();
	}
	pthread_mutex_unlock(&lock);
}
