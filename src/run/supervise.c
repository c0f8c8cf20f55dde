/* The job runs in a process group of its own, so that Ctrl-C reaches it once, through here. What is left of
 * an attempt is ended as a whole before the next begins: two of them must not write to one folder. Launchers
 * give ranks groups of their own, so it is not the group that counts, but whose children they are.
 *
 * A signal is passed on, but not again within a moment (run/interrupt.h): launchers take a second one for
 * impatience too.
 *
 * Training repeats itself bit by bit. A step that was not a finite number twice in a row, as the notices
 * tell, is so for good.
 *
 * A job of which nothing moves any more, not even its watchdogs, is ended from here: the notices in its
 * folder tell.
 *
 * Words are handed to execvp as they are; no shell sees them. */
#include "run/supervise.h"

#include "base/system/process.h"
#include "base/system/timer.h"
#include "base/text/format.h"
#include "run/fault.h"
#include "run/interrupt.h"
#include "run/notice.h"
#include "run/resume.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const int stop_signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};
enum { N_STOP_SIGNALS = sizeof stop_signals / sizeof stop_signals[0], N_SIGNALS = N_STOP_SIGNALS + 2 };

static volatile sig_atomic_t received;                /* the signal that asked us to stop */
static volatile sig_atomic_t pending[N_STOP_SIGNALS]; /* still to be passed on */

static void remember(int number) {
    received = number;
    for (int i = 0; i < N_STOP_SIGNALS; i++) {
        if (stop_signals[i] == number) pending[i] = 1;
    }
}

/* What was switched off stays off, by nohup or by a shell for its background jobs: a terminal that is closed
 * is no wish to stop then. Nor is it the end if nobody reads what is said here, or a log is full: the job
 * must not be left alone. */
static void watch_signals(struct sigaction *before) {
    received = 0;
    struct sigaction action = {.sa_handler = remember}, ignore = {.sa_handler = SIG_IGN};
    sigemptyset(&action.sa_mask); /* no SA_RESTART: waiting ends */
    sigemptyset(&ignore.sa_mask);
    for (int i = 0; i < N_STOP_SIGNALS; i++) {
        pending[i] = 0;
        sigaction(stop_signals[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN) sigaction(stop_signals[i], &action, NULL);
    }
    sigaction(SIGPIPE, &ignore, &before[N_STOP_SIGNALS]);
    sigaction(SIGXFSZ, &ignore, &before[N_STOP_SIGNALS + 1]);
}

static void restore_signals(const struct sigaction *before) {
    for (int i = 0; i < N_STOP_SIGNALS; i++) sigaction(stop_signals[i], &before[i], NULL);
    sigaction(SIGPIPE, &before[N_STOP_SIGNALS], NULL);
    sigaction(SIGXFSZ, &before[N_STOP_SIGNALS + 1], NULL);
}

/* ---- one attempt */

bool supervise_has_option(int n_words, char *const *words, const char *option) {
    size_t n = strlen(option);
    for (int i = 0; i < n_words; i++) {
        const char *other = words[i];
        if (strncmp(other, option, n) == 0 && (other[n] == '\0' || other[n] == '=')) return true;
    }
    return false;
}

/* The words of an attempt, NULL at the end; from malloc. */
static char **make_words(const SuperviseOptions *options, int attempt) {
    char **words = calloc((size_t)options->n_words + 3, sizeof *words);
    if (!words) return NULL;
    memcpy(words, options->command, (size_t)options->n_words * sizeof *words);
    if (attempt > 0 && !supervise_has_option(options->n_words, options->command, "--resume")) {
        words[options->n_words] = (char *)"--resume";
        words[options->n_words + 1] = (char *)"auto";
    }
    return words;
}

/* In the child. What goes wrong is told through the pipe, which closes by itself when it goes well. */
static void become(char **words, int attempt, const struct sigaction *before, int report) {
    char number[16];
    snprintf(number, sizeof number, "%d", attempt);
    setpgid(0, 0);
    restore_signals(before);
    if (isatty(STDIN_FILENO)) { /* a group in the background is stopped when it reads from the terminal */
        int nothing = open("/dev/null", O_RDONLY);
        if (nothing >= 0) dup2(nothing, STDIN_FILENO);
    }
    if (setenv(ATTEMPT_VARIABLE, number, 1) == 0) execvp(words[0], words);
    int code = errno;
    if (write(report, &code, sizeof code) < 0) _exit(126);
    _exit(127);
}

static Status start(const SuperviseOptions *options, int attempt, const struct sigaction *before,
                    pid_t *child, Error *error) {
    int report[2], code = 0;
    char **words = make_words(options, attempt);
    if (!words) return error_failed(error, "no memory for the words of the job");
    if (pipe(report) != 0) {
        free(words);
        return error_failed(error, "cannot make a pipe: %s", strerror(errno));
    }
    fcntl(report[0], F_SETFD, FD_CLOEXEC);
    fcntl(report[1], F_SETFD, FD_CLOEXEC);
    fflush(NULL);
    *child = fork();
    if (*child == 0) become(words, attempt, before, report[1]);
    if (*child < 0) error_failed(error, "cannot start a process: %s", strerror(errno));
    else setpgid(*child, *child); /* both do it: whoever comes first */
    close(report[1]);
    if (*child > 0 && read(report[0], &code, sizeof code) == (ssize_t)sizeof code) {
        waitpid(*child, NULL, 0);
        error_user(error, "cannot start %s: %s; what comes behind -- is the command that starts the job",
                   words[0], strerror(code));
    }
    close(report[0]);
    free(words);
    return error->status;
}

static void rest(void) {
    nanosleep(&(struct timespec){0, 50 * 1000 * 1000}, NULL);
}

/* Ranks watch each other. Where nobody is left to do it, since there is one rank only, or all of them stand
 * still, their notices do too. */
typedef struct {
    uint64_t sum;                   /* of all beats */
    uint64_t changed_ns, looked_ns; /* when it was last seen to change; when we last looked */
} Pulse;

/* Has no rank been heard of for so long that they cannot end the job themselves any more? */
static bool has_frozen(const SuperviseOptions *options, Pulse *pulse, double started) {
    if (timer_seconds_since(pulse->looked_ns) < 1.0) return false;
    RankNotice *notices;
    uint64_t sum = 0;
    double timeout = 0.0;
    for (int i = 0, n = notices_read(options->run, &notices); i < n; i++) {
        if (notices[i].time < started) continue; /* an earlier attempt's */
        sum += notices[i].beat;
        timeout = notices[i].hang_timeout;
    }
    free(notices);
    pulse->looked_ns = timer_now_ns();
    if (sum != pulse->sum || sum == 0) pulse->changed_ns = pulse->looked_ns;
    pulse->sum = sum;
    double seconds = timer_seconds_since(pulse->changed_ns);
    if (timeout <= 0.0 || seconds < 2.0 * timeout + 5.0) return false;
    log_warning(options->log, "no rank has been heard of for %s; ending the job",
                format_duration(seconds).text);
    return true;
}

/* As signals come; the same one again after a moment too: it ends a job that is slow to save. */
static void pass_on(pid_t child, uint64_t passed_ns[N_STOP_SIGNALS]) {
    for (int i = 0; i < N_STOP_SIGNALS; i++) {
        if (!pending[i]) continue;
        pending[i] = 0;
        if (passed_ns[i] && timer_seconds_since(passed_ns[i]) < INTERRUPT_MOMENT_SECONDS) continue;
        passed_ns[i] = timer_now_ns();
        kill(-child, stop_signals[i]);
        kill(-child, SIGCONT); /* what is stopped hears nothing */
    }
}

/* Until it ends. */
static int wait_for(const SuperviseOptions *options, pid_t child, double started) {
    int status = 0;
    Pulse pulse = {.looked_ns = timer_now_ns()};
    uint64_t passed_ns[N_STOP_SIGNALS] = {0};
    for (pid_t ended; (ended = waitpid(child, &status, WNOHANG)) != child; rest()) {
        if (ended < 0 && errno != EINTR) return 127;
        pass_on(child, passed_ns);
        if (has_frozen(options, &pulse, started)) kill(-child, SIGKILL);
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Children that are not the job's: a shell that became this process may have had some. */
typedef struct {
    int64_t id[64];
    int n;
} Strangers;

static Strangers find_strangers(void) {
    Strangers found;
    enum { MOST = sizeof found.id / sizeof found.id[0] };
    found.n = process_children(found.id, MOST);
    if (found.n > MOST) found.n = MOST;
    return found;
}

static bool is_stranger(const Strangers *strangers, int64_t id) {
    for (int i = 0; i < strangers->n; i++) {
        if (strangers->id[i] == id) return true;
    }
    return false;
}

/* Kills what is left of the job; how many are still there. */
static int end_children(const Strangers *strangers) {
    int64_t id[64];
    enum { MOST = sizeof id / sizeof id[0] };
    int n = process_children(id, MOST), n_left = 0;
    for (int i = 0; i < n && i < MOST; i++) {
        if (is_stranger(strangers, id[i]) || waitpid((pid_t)id[i], NULL, WNOHANG) != 0) continue;
        kill((pid_t)id[i], SIGKILL);
        n_left++;
    }
    return n_left + (n > MOST);
}

/* Ranks that have outlived their launcher, wherever it has put them: a process whose parent is gone becomes a
 * child of this one (adopt_orphans), and so, one after the other, do all that are left. False if one cannot
 * be ended: it hangs in the system. */
static bool end_rest(pid_t child, const Strangers *strangers) {
    const double patience = 30.0;
    kill(-child, SIGKILL);
    for (uint64_t start_ns = timer_now_ns(); end_children(strangers) > 0; rest()) {
        if (timer_seconds_since(start_ns) > patience) return false;
    }
    return true;
}

static void adopt_orphans(bool wanted) {
    prctl(PR_SET_CHILD_SUBREAPER, wanted ? 1UL : 0UL, 0UL, 0UL, 0UL);
}

/* ---- between two attempts */

/* Where the ranks were; tells whether the run had begun in this attempt, and the step that was not a
 * number. */
static bool report_ranks(const SuperviseOptions *options, double started, int64_t *bad_step) {
    enum { MOST_LINES = 16 };
    RankNotice *notices;
    int n = notices_read(options->run, &notices), n_new = 0;
    for (int i = 0; i < n; i++) {
        char name[256];
        if (notices[i].time < started) continue;
        if (notices[i].bad_step) *bad_step = notices[i].bad_step;
        if (n_new++ < MOST_LINES)
            log_note(options->log, "%s was last in: %s", notice_name(&notices[i], name, sizeof name),
                     notices[i].where);
    }
    if (n_new > MOST_LINES)
        log_note(options->log, "and %d more ranks: see %s/ranks", n_new - MOST_LINES, options->run);
    free(notices);
    return n_new > 0;
}

static bool has_checkpoint(const SuperviseOptions *options) {
    Arena arena = {0};
    const char *found = NULL;
    resume_find(options->run, &arena, &found, &(Error){0});
    arena_free(&arena);
    return found != NULL;
}

static void sleep_for(double seconds) {
    for (uint64_t start_ns = timer_now_ns(); !received && timer_seconds_since(start_ns) < seconds;) rest();
}

static const char *code_text(int code, char *text, size_t n_bytes) {
    if (code > 128 && code < 128 + 65)
        snprintf(text, n_bytes, "signal %d (%s)", code - 128, strsignal(code - 128));
    else snprintf(text, n_bytes, "exit code %d", code);
    return text;
}

/* Is there another attempt to be made? Says what is going on either way. */
static bool goes_on(const SuperviseOptions *options, SuperviseResult *result, double started) {
    char text[128];
    code_text(result->exit_code, text, sizeof text);
    result->was_stopped = received != 0;
    if (result->was_stopped) {
        log_note(options->log, "the job was asked to stop and ended with %s", text);
        return false;
    }
    if (result->exit_code == 0) return false;
    log_warning(options->log, "the job ended with %s", text);
    int64_t bad_before = result->bad_step;
    result->bad_step = 0;
    bool had_begun = report_ranks(options, started, &result->bad_step);
    if (log_is_unheard(options->log)) return false; /* the job has the same pipe, and ended for that */
    if (result->bad_step && result->bad_step == bad_before) {
        log_warning(
            options->log,
            "the loss or gradient of step %lld was not a finite number once more: it will be so each time; "
            "not starting it again. Go on with a lower --lr, or with --clip and --warmup",
            (long long)result->bad_step);
        return false;
    }
    if (result->exit_code == STATUS_USER && !had_begun) {
        log_note(options->log, "it had not begun: starting it again would not help");
        return false;
    }
    if (result->n_restarts == options->most_restarts) {
        log_note(options->log, "it has been started %d time%s; giving up (--restarts %d)",
                 options->most_restarts + 1, options->most_restarts ? "s" : "", options->most_restarts);
        return false;
    }
    return true;
}

Status supervise(const SuperviseOptions *options, SuperviseResult *result, Error *error) {
    *result = (SuperviseResult){0};
    struct sigaction before[N_SIGNALS];
    uint64_t start_ns = timer_now_ns();
    Strangers strangers = find_strangers();
    watch_signals(before);
    adopt_orphans(true);
    for (;;) {
        double started = timer_wall_seconds();
        pid_t child = -1;
        if (start(options, result->n_restarts, before, &child, error) != STATUS_OK) break;
        result->exit_code = wait_for(options, child, started);
        bool is_over = end_rest(child, &strangers);
        if (!goes_on(options, result, started)) break;
        if (!is_over) {
            log_warning(
                options->log,
                "a process of the job does not end, even when killed; not starting another beside it");
            break;
        }
        log_note(options->log, "starting it again from %s in %s (%d of %d)",
                 has_checkpoint(options) ? "its last checkpoint" : "the beginning, for it has no checkpoint,",
                 format_duration(options->wait_seconds).text, result->n_restarts + 1, options->most_restarts);
        sleep_for(options->wait_seconds);
        if (received) {
            result->was_stopped = true;
            break;
        }
        result->n_restarts++;
    }
    adopt_orphans(false);
    restore_signals(before);
    result->seconds = timer_seconds_since(start_ns);
    return error->status;
}
