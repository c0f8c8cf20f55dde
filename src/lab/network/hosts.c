/* A namespace is held by a process that does nothing else, and is gone with it, as are its cables (veth
 * pairs). What is set up in there is set up by nsenter. The launcher starts its daemons by `ssh HOST
 * COMMAND`; ours have no ssh in them, so a script enters the namespace instead.
 *
 * A token bucket (tc tbf) at both ends of a cable makes the rate. Frames are long, so that fast cables do not
 * keep the machine busy, and TCP is told that nothing is lost: its windows would be what is measured. */
#define _GNU_SOURCE /* unshare, asprintf */
#include "lab/network/hosts.h"

#include "lab/launch/launch_child.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const programs[] = {"ip", "tc", "nsenter", NULL};

/* ---- The processes that hold namespaces */

static void write_setting(const char *name, const char *value) {
    char path[128];
    snprintf(path, sizeof path, "/proc/sys/net/ipv4/%s", name);
    FILE *file = fopen(path, "w");
    if (!file) return; /* a kernel without it: then slower to start */
    fputs(value, file);
    fclose(file);
}

static void hold(int index, int channel) {
    char name[32], answer = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_IGN); /* of the terminal: the parent's business */
    if (unshare(CLONE_NEWNET | CLONE_NEWUTS) != 0) answer = (char)errno;
    int length = snprintf(name, sizeof name, "pgpt-host%d", index + 1);
    if (!answer && sethostname(name, (size_t)length) != 0) answer = (char)errno;
    write_setting("tcp_slow_start_after_idle", "0");
    write_setting("tcp_no_metrics_save", "1");
    write_setting("tcp_congestion_control", "reno");
    write_setting("tcp_rmem", "4096 8388608 16777216");
    write_setting("tcp_wmem", "4096 8388608 16777216");
    if (write(channel, &answer, 1) != 1 || answer) _exit(1);
    close(channel);
    for (;;) pause();
}

static Status start_holder(Hosts *hosts, int index, Error *error) {
    int ends[2];
    char answer = 0;
    if (pipe(ends) != 0) return error_failed(error, "cannot make a pipe: %s", strerror(errno));
    fflush(NULL);
    pid_t id = fork();
    if (id == 0) {
        close(ends[0]);
        hold(index, ends[1]);
    }
    close(ends[1]);
    hosts->holder[index] = id > 0 ? id : 0;
    if (id < 0) error_failed(error, "cannot start a process: %s", strerror(errno));
    else if (read(ends[0], &answer, 1) != 1) error_failed(error, "a process in a namespace has ended");
    else if (answer)
        error_failed(error, "network namespaces are not permitted here: %s", strerror((int)answer));
    close(ends[0]);
    return error->status;
}

/* ---- Cables */

static Status command(const Hosts *hosts, int at, const char *const *words, Error *error) {
    const char *all[32] = {"nsenter", "--target", NULL, "--net", "--"};
    char id[16];
    int n = 5;
    ChildResult result = {0};
    snprintf(id, sizeof id, "%d", (int)hosts->holder[at]);
    all[2] = id;
    for (; *words && n + 1 < 32; words++) all[n++] = *words;
    if (child_run(&(ChildSetup){.words = all, .timeout_s = 10}, &result, error) == STATUS_OK)
        child_check(&result, all, error);
    child_free(&result);
    return error->status;
}

#define COMMAND(at, ...) command(hosts, at, (const char *const[]){__VA_ARGS__, NULL}, error)

static const char LONGEST_FRAME[] = "9000";

static Status lay_cable(const Hosts *hosts, int i, Error *error) {
    int middle = hosts->n;
    char port[16], id[16], address[24];
    snprintf(port, sizeof port, "port%d", i + 1);
    snprintf(id, sizeof id, "%d", (int)hosts->holder[i]);
    snprintf(address, sizeof address, "10.77.0.%d/24", i + 1);
    TRY(COMMAND(middle, "ip", "link", "add", port, "mtu", LONGEST_FRAME, "type", "veth", "peer", "name",
                "eth0", "netns", id));
    TRY(COMMAND(middle, "ip", "link", "set", port, "master", "bridge", "txqueuelen", "10000", "up"));
    TRY(COMMAND(i, "ip", "link", "set", "lo", "up"));
    TRY(COMMAND(i, "ip", "link", "set", "eth0", "mtu", LONGEST_FRAME, "txqueuelen", "10000", "up"));
    return COMMAND(i, "ip", "address", "add", address, "dev", "eth0");
}

static Status lay_cables(const Hosts *hosts, Error *error) {
    int middle = hosts->n;
    TRY(COMMAND(middle, "ip", "link", "add", "bridge", "type", "bridge"));
    TRY(COMMAND(middle, "ip", "link", "set", "bridge", "mtu", LONGEST_FRAME, "up"));
    for (int i = 0; i < hosts->n; i++) TRY(lay_cable(hosts, i, error));
    return STATUS_OK;
}

Status hosts_set_rate(Hosts *hosts, double rate, Error *error) {
    char rate_text[32], burst_text[32], port[16];
    double burst = rate / 8 / 4000; /* a quarter of a millisecond, and a frame at least */
    snprintf(rate_text, sizeof rate_text, "%.0fbit", rate);
    snprintf(burst_text, sizeof burst_text, "%.0f", burst > 10000 ? burst : 10000);
    for (int i = 0; i < hosts->n; i++) {
        snprintf(port, sizeof port, "port%d", i + 1);
        TRY(COMMAND(i, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate_text, "burst",
                    burst_text, "limit", "64mb"));
        TRY(COMMAND(hosts->n, "tc", "qdisc", "replace", "dev", port, "root", "tbf", "rate", rate_text,
                    "burst", burst_text, "limit", "64mb"));
    }
    return STATUS_OK;
}

/* "eth0: received 7 more, sent ..." */
static Status count_host(pid_t holder, int64_t *n_bytes, Error *error) {
    char path[48], line[512];
    bool is_found = false;
    snprintf(path, sizeof path, "/proc/%d/net/dev", (int)holder);
    FILE *file = fopen(path, "r");
    while (file && !is_found && fgets(line, sizeof line, file)) {
        const char *at = strstr(line, "eth0:");
        is_found =
            at && sscanf(at, "eth0: %*u %*u %*u %*u %*u %*u %*u %*u %" SCNd64, n_bytes) == 1; /* NOLINT */
    }
    if (file) fclose(file);
    return is_found ? STATUS_OK : error_failed(error, "%s does not say what was sent", path);
}

Status hosts_count_sent(const Hosts *hosts, int64_t *n_bytes, Error *error) {
    *n_bytes = 0;
    for (int i = 0; i < hosts->n; i++) {
        int64_t n;
        TRY(count_host(hosts->holder[i], &n, error));
        *n_bytes += n;
    }
    return STATUS_OK;
}

/* ---- The launcher */

/* What `ssh HOST COMMAND` would do. */
static void write_agent(const Hosts *hosts, FILE *file) {
    fprintf(file, "#!/bin/sh\nwhile :; do case $1 in -*) shift ;; *) break ;; esac; done\ncase $1 in\n");
    for (int i = 0; i < hosts->n; i++)
        fprintf(file, "10.77.0.%d) process=%d ;;\n", i + 1, (int)hosts->holder[i]);
    fprintf(file, "*) echo \"there is no host $1\" >&2; exit 255 ;;\nesac\nshift\n"
                  "exec nsenter --target \"$process\" --net --uts -- sh -c \"$*\"\n");
}

static void write_launcher(const Hosts *hosts, FILE *file) {
    fprintf(file,
            "#!/bin/sh\n"
            "export TMPDIR='%s' OMPI_MCA_plm_rsh_agent='%s' OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self\n"
            "export OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_oob_tcp_if_include=eth0 "
            "OMPI_MCA_mpi_yield_when_idle=1\n"
            "exec nsenter --target %d --net --uts -- %s --host ",
            hosts->temporary, hosts->agent, (int)hosts->holder[0],
            child_exists("mpirun.openmpi") ? "mpirun.openmpi" : "mpirun");
    for (int i = 0; i < hosts->n; i++) fprintf(file, "%s10.77.0.%d", i ? "," : "", i + 1);
    fprintf(file, " \"$@\"\n");
}

static Status write_script(const Hosts *hosts, const char *path,
                           void (*write_it)(const Hosts *hosts, FILE *file), Error *error) {
    FILE *file = fopen(path, "w");
    if (!file) return error_failed(error, "cannot write %s: %s", path, strerror(errno));
    write_it(hosts, file);
    bool is_written = fchmod(fileno(file), 0700) == 0 && !ferror(file);
    if (fclose(file) != 0 || !is_written)
        return error_failed(error, "cannot write %s: %s", path, strerror(errno));
    return STATUS_OK;
}

static Status write_scripts(Hosts *hosts, const char *folder, Error *error) {
    char *here = realpath(folder, NULL);
    if (!here) return error_failed(error, "cannot find %s: %s", folder, strerror(errno));
    if (strpbrk(here, " '\"\t\n")) error_failed(error, "the folder's name has blanks or quotes: %s", here);
    else if (asprintf(&hosts->agent, "%s/agent", here) < 0 ||
             asprintf(&hosts->launcher, "%s/launch", here) < 0 ||
             asprintf(&hosts->temporary, "%s/tmp", here) < 0)
        error_failed(error, "no memory for a name");
    else if (mkdir(hosts->temporary, 0700) != 0 && errno != EEXIST)
        error_failed(error, "cannot make %s: %s", hosts->temporary, strerror(errno));
    free(here);
    if (error->status != STATUS_OK) return error->status;
    TRY(write_script(hosts, hosts->agent, write_agent, error));
    return write_script(hosts, hosts->launcher, write_launcher, error);
}

/* ---- All of it */

static Status open_hosts(Hosts *hosts, const char *folder, Error *error) {
    for (const char *const *name = programs; *name; name++)
        if (!child_exists(*name))
            return error_failed(error, "%s is not installed (Debian: iproute2, util-linux)", *name);
    if (geteuid() != 0) return error_failed(error, "only root can make network namespaces");
    for (int i = 0; i <= hosts->n; i++) TRY(start_holder(hosts, i, error));
    TRY(lay_cables(hosts, error));
    return write_scripts(hosts, folder, error);
}

Status hosts_open(Hosts *hosts, int n, const char *folder, Error *error) {
    *hosts = (Hosts){.n = n};
    if (n > HOSTS_MOST) return error_failed(error, "at most %d hosts can be made", HOSTS_MOST);
    if (open_hosts(hosts, folder, error) != STATUS_OK) hosts_close(hosts);
    return error->status;
}

void hosts_close(Hosts *hosts) {
    for (int i = 0; i <= HOSTS_MOST; i++) {
        if (hosts->holder[i] <= 0) continue;
        kill(hosts->holder[i], SIGKILL);
        while (waitpid(hosts->holder[i], NULL, 0) < 0 && errno == EINTR) continue;
    }
    free(hosts->agent);
    free(hosts->launcher);
    free(hosts->temporary);
    *hosts = (Hosts){0};
}
