/* Several hosts made of network namespaces on this machine, each with a cable of a given rate to one switch,
 * and a launcher that starts ranks on them, one a host.
 *
 *     Hosts hosts;
 *     if (hosts_open(&hosts, 4, folder, error) != STATUS_OK) ... error->text says what is missing
 *     TRY_GOTO(hosts_set_rate(&hosts, 1e9, error), done);
 *     ... launcher_open(&launcher, hosts.launcher, error), child_run ...
 *     hosts_close(&hosts);
 *
 * Needs root, ip, tc, nsenter and Open MPI. The namespaces belong to processes that end with hosts_close, or
 * with this process; nothing of the machine's own network is touched. */
#ifndef PGPT_LAB_NETWORK_HOSTS_H
#define PGPT_LAB_NETWORK_HOSTS_H

#include "base/error.h"

#include <stdint.h>
#include <sys/types.h>

enum { HOSTS_MOST = 16 };

typedef struct {
    int n;
    pid_t holder[HOSTS_MOST + 1]; /* processes that hold a namespace each; the last one the switch's */
    char *launcher;               /* the command, as --launcher takes it */
    char *agent, *temporary;      /* what it needs */
} Hosts;

/* `folder` is there, and gets the launcher's scripts. Cables have no rate yet. On failure there is nothing to
 * close. */
Status hosts_open(Hosts *hosts, int n, const char *folder, Error *error);
void hosts_close(Hosts *hosts); /* safe on {0} */

/* Bits a second that go through each cable, either way. */
Status hosts_set_rate(Hosts *hosts, double rate, Error *error);

/* Bytes that have left all hosts by their cables so far, headers of the network included. */
Status hosts_count_sent(const Hosts *hosts, int64_t *n_bytes, Error *error);

#endif
