/* A signal handler can reach nothing but a global, so this is the one place that has some.
 *
 * A wish to stop often comes more than once: GNU timeout tells its child and then its whole group, launchers
 * tell every rank and are told themselves, a closed terminal is said by the system and by the shell. So a
 * signal that comes again within a moment is the same wish. Later it is somebody's impatience, and the
 * system's own answer to the signal is given. Each signal counts for itself: a scheduler that warns by
 * SIGUSR1 and asks by SIGTERM a minute later is not impatient.
 *
 * The system sends SIGXCPU every second from the soft limit on CPU time (ulimit -S -t) to the hard one:
 * nobody is impatient there.
 *
 * What was ignored when the program began stays ignored: nohup says so of SIGHUP, shells of the SIGINT of
 * background jobs. */
#include "run/interrupt.h"

#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGXCPU};
enum { N_NUMBERS = sizeof numbers / sizeof numbers[0] };

static atomic_int received;
static atomic_llong first_ns[N_NUMBERS]; /* when each came first; 0: not yet */
static struct sigaction before[N_NUMBERS];
static bool is_watching;

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now); /* one of the few calls that a handler may make */
    return (long long)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void give_up(int number) {
    struct sigaction action = {.sa_handler = SIG_DFL};
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL);
    raise(number); /* delivered when the handler returns */
}

static void remember(int number) {
    atomic_store(&received, number);
    for (int i = 0; i < N_NUMBERS; i++) {
        long long never = 0, now = now_ns();
        if (numbers[i] != number || atomic_compare_exchange_strong(&first_ns[i], &never, now)) continue;
        bool is_late = (double)(now - never) * 1e-9 >= INTERRUPT_MOMENT_SECONDS;
        if (is_late && number != SIGXCPU) give_up(number);
    }
}

/* What is ignored stays so. */
static void set_handlers(void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < N_NUMBERS; i++) {
        if (!is_watching) sigaction(numbers[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN) sigaction(numbers[i], &action, NULL);
    }
    is_watching = true;
}

static void restore_handlers(void) {
    for (int i = 0; is_watching && i < N_NUMBERS; i++) sigaction(numbers[i], &before[i], NULL);
    is_watching = false;
}

/* ---- Before there is anything to save */

static char doomed_file[PATH_MAX], doomed_folder[PATH_MAX]; /* "": none */

static void remove_doomed(int number) {
    if (doomed_file[0]) unlink(doomed_file);
    if (doomed_folder[0]) rmdir(doomed_folder);
    give_up(number);
}

void interrupt_remove(const char *file, const char *folder) {
    if (strlen(file) >= PATH_MAX || (folder && strlen(folder) >= PATH_MAX)) return;
    snprintf(doomed_file, sizeof doomed_file, "%s", file);
    snprintf(doomed_folder, sizeof doomed_folder, "%s", folder ? folder : "");
    set_handlers(remove_doomed);
}

void interrupt_keep(void) {
    if (!doomed_file[0]) return;
    restore_handlers();
    doomed_file[0] = doomed_folder[0] = '\0';
}

/* ---- While it trains */

void interrupt_watch(void) {
    interrupt_keep();
    atomic_store(&received, 0);
    for (int i = 0; i < N_NUMBERS; i++) atomic_store(&first_ns[i], 0);
    set_handlers(remember);
}

bool interrupt_was_signalled(void) {
    return atomic_load(&received) != 0;
}

void interrupt_ignore(void) {
    if (!interrupt_was_signalled()) restore_handlers();
}
