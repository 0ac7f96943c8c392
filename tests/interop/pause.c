/*
 * pause: mckey, with a second between its last send and its leave of the group.
 *
 * mckey does not request completions of its sends, and destroys its queue pair at once. On Linux 6.12 rxe sends in
 * another thread, and does not send what is left then. This is loaded into mckey with LD_PRELOAD.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

int rdma_leave_multicast(struct rdma_cm_id *id, struct sockaddr *address)
{
	int (*leave)(struct rdma_cm_id *, struct sockaddr *) = dlsym(RTLD_NEXT, "rdma_leave_multicast");

	sleep(1);
	return leave(id, address);
}
