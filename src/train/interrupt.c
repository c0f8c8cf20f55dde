/* A signal handler can reach nothing but a global, so this is the one place that has one. */
#include "train/interrupt.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t received;

static void remember(int number) {
    received = number;
}

static void set_handler(int number, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL);
}

void interrupt_watch(void) {
    received = 0;
    set_handler(SIGINT, remember, (int)SA_RESETHAND | SA_RESTART);
    set_handler(SIGTERM, remember, (int)SA_RESETHAND | SA_RESTART);
    set_handler(SIGUSR1, remember, (int)SA_RESETHAND | SA_RESTART);
}

bool interrupt_was_signalled(void) {
    return received != 0;
}

void interrupt_ignore(void) {
    set_handler(SIGINT, SIG_DFL, 0);
    set_handler(SIGTERM, SIG_DFL, 0);
    set_handler(SIGUSR1, SIG_DFL, 0);
}
