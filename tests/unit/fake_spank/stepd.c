/*
 * A stand-in for slurmstepd and slurmctld at the end of a step: FAKE answers of
 * libslurm, and real sockets. Nobody answers at the address that "tell" connects
 * to: the queue of its listener is full. Orders come on standard input:
 *
 *   step STEP                          the step's number, 4294967291 for a batch script
 *   job STATE BATCH NODE_STATE         what slurmctld says, as numbers
 *   told NAME                          the only variable that the step was given
 *   no-slurmctld                       it does not answer
 *   init, task-exit, exit              call the plugin
 *   threads                            how many there are
 *   tell                               connect as slurmstepd does, until it is cut short
 *                                      or slurmctld was asked twice in vain
 *   pause MS                           sleep as slurmstepd does between two attempts
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#define LIMIT_MS 60000

static uint32_t step = 0;
static char told[64] = "HPRESUME_ATTEMPT";
static job_info_t job = { .batch_host = "n1" };
static node_info_t node;
static bool answers = true;
static atomic_int asked = 0;

struct spank_handle {
	int unused;
};

spank_context_t spank_context(void)
{
	return S_CTX_REMOTE;
}

spank_err_t spank_get_item(spank_t sp, spank_item_t item, ...)
{
	va_list args;

	(void) sp;
	va_start(args, item);
	*va_arg(args, uint32_t *) = item == S_JOB_ID ? 7 : step;
	va_end(args);
	return ESPANK_SUCCESS;
}

spank_err_t spank_getenv(spank_t sp, const char *name, char *value, int size)
{
	(void) sp;
	if (strcmp(name, told))
		return ESPANK_ENV_NOEXIST;
	if (size < 2)
		return ESPANK_NOSPACE;
	strcpy(value, "1");
	return ESPANK_SUCCESS;
}

int slurm_load_job(job_info_msg_t **answer, uint32_t id, uint16_t flags)
{
	(void) flags;
	asked++;
	if (!answers || id != 7)
		return -1;
	*answer = calloc(1, sizeof(**answer));
	(*answer)->record_count = 1;
	(*answer)->job_array = &job;
	return 0;
}

int slurm_load_node_single(node_info_msg_t **answer, char *name, uint16_t flags)
{
	(void) flags;
	if (strcmp(name, "n1") != 0)
		return -1;
	*answer = calloc(1, sizeof(**answer));
	(*answer)->record_count = 1;
	(*answer)->node_array = &node;
	return 0;
}

void slurm_free_job_info_msg(job_info_msg_t *answer)
{
	free(answer);
}

void slurm_free_node_info_msg(node_info_msg_t *answer)
{
	free(answer);
}

#define LOG_FUNCTION(name)                         \
	void name(const char *format, ...)         \
	{                                          \
		va_list args;                      \
		va_start(args, format);            \
		vfprintf(stderr, format, args);    \
		va_end(args);                      \
		fputc('\n', stderr);               \
	}

LOG_FUNCTION(slurm_error)
LOG_FUNCTION(slurm_info)
LOG_FUNCTION(slurm_verbose)
LOG_FUNCTION(slurm_debug)

const char *spank_strerror(spank_err_t err)
{
	(void) err;
	return "";
}

spank_err_t spank_option_register(spank_t sp, struct spank_option *option)
{
	(void) sp;
	(void) option;
	return ESPANK_SUCCESS;
}

spank_err_t spank_job_control_unsetenv(spank_t sp, const char *name)
{
	(void) sp;
	(void) name;
	return ESPANK_SUCCESS;
}

static int begin(const struct sockaddr_in *address)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);

	if (connect(fd, (const struct sockaddr *) address, sizeof(*address)) != 0 &&
	    errno != EINPROGRESS)
		exit(98);
	return fd;
}

/* An address whose kernel takes no more connections, and says nothing. */
static struct sockaddr_in full_address(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	struct pollfd poller = { .events = POLLOUT };

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(listener, (struct sockaddr *) &address, sizeof(address)) != 0 ||
	    listen(listener, 0) != 0 ||
	    getsockname(listener, (struct sockaddr *) &address, &length) != 0)
		exit(97);
	do {
		poller.fd = begin(&address);
	} while (poll(&poller, 1, 200) == 1);
	close(poller.fd);
	return address;
}

static void tell(const struct sockaddr_in *address)
{
	struct pollfd poller = { .fd = begin(address), .events = POLLIN | POLLOUT };
	int before = asked;
	const char *end = "time is over";

	for (int ms = 0; ms < LIMIT_MS; ms += 50) {
		int n = poll(&poller, 1, 50);

		if (n < 0 && errno == EINTR)
			continue;
		if (n == 1) {
			int error = 0;
			socklen_t length = sizeof(error);

			getsockopt(poller.fd, SOL_SOCKET, SO_ERROR, &error, &length);
			end = error ? "cut short" : "answered";
			break;
		}
		if (asked - before >= 2) {
			end = "waits on";
			break;
		}
	}
	close(poller.fd);
	printf("%s\n", end);
}

static int threads(void)
{
	DIR *folder = opendir("/proc/self/task");
	struct dirent *entry;
	int count = 0;

	while ((entry = readdir(folder)) != NULL)
		count += entry->d_name[0] != '.';
	closedir(folder);
	return count;
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = full_address();
	struct spank_handle handle = { 0 };
	void *plugin = dlopen(argv[argc - 1], RTLD_LAZY);
	char line[256];

	if (plugin == NULL) {
		fprintf(stderr, "%s\n", dlerror());
		return 99;
	}
	while (fgets(line, sizeof(line), stdin)) {
		unsigned state, batch, node_state;
		spank_f *function = NULL;

		line[strcspn(line, "\n")] = '\0';
		if (sscanf(line, "step %u", &step) == 1 || sscanf(line, "told %63s", told) == 1) {
			continue;
		} else if (sscanf(line, "job %u %u %u", &state, &batch, &node_state) == 3) {
			job.job_state = state;
			job.batch_flag = batch;
			node.node_state = node_state;
		} else if (!strcmp(line, "no-slurmctld")) {
			answers = false;
		} else if (!strcmp(line, "init") || !strcmp(line, "task-exit") ||
			   !strcmp(line, "exit")) {
			const char *name = line[0] == 'i'   ? "slurm_spank_init"
					   : line[0] == 't' ? "slurm_spank_task_exit"
							    : "slurm_spank_exit";

			*(void **) &function = dlsym(plugin, name);
			printf("%s rc=%d\n", line, function(&handle, 0, NULL));
			if (line[0] == 'e')
				dlclose(plugin); /* as Slurm does */
		} else if (!strcmp(line, "threads")) {
			printf("%d\n", threads());
		} else if (!strcmp(line, "tell")) {
			tell(&address);
		} else if (sscanf(line, "pause %u", &state) == 1) {
			printf("%s\n", usleep(state * 1000) ? "cut short" : "slept");
		} else {
			fprintf(stderr, "unknown order: %s\n", line);
			return 99;
		}
	}
	return 0;
}
