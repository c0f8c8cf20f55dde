/* A child process whose output is read while it runs.
 *
 * Two pipes are polled, because a child that fills the one that nobody reads would wait for ever, and so
 * would we. The same loop looks at the clock and at our own signals. The child is the leader of a process
 * group, so that a launcher and the ranks that it started on this host can be ended together; it asks the
 * kernel to be ended with us, since a training run without anybody who reads its results is of no use. A
 * child that does not obey a polite signal is killed.
 *
 * That the program cannot be started is known only behind fork(): a third pipe, closed by a successful exec,
 * brings the reason back. */
#define _GNU_SOURCE /* pipe2 */

#include "lab/launch/launch_child.h"

#include "base/system/timer.h"
#include "run/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { POLL_MS = 50, GRACE_S = 10 };

/* ---- What it prints */

typedef struct {
    int descriptor;
    char *bytes;
    size_t n, capacity, most;
} Stream;

/* Room for at least one more read; of too much, the first half is forgotten. */
static bool make_room(Stream *stream) {
    enum { READ_BYTES = 64 << 10 };
    if (stream->n + READ_BYTES < stream->capacity) return true;
    if (stream->n >= stream->most) {
        stream->n /= 2;
        memmove(stream->bytes, stream->bytes + stream->n, stream->n);
        return true;
    }
    size_t capacity = 2 * stream->capacity + 2 * READ_BYTES;
    char *bytes = realloc(stream->bytes, capacity);
    if (!bytes) return false;
    stream->bytes = bytes;
    stream->capacity = capacity;
    return true;
}

static void close_stream(Stream *stream) {
    if (stream->descriptor >= 0) close(stream->descriptor);
    stream->descriptor = -1;
}

/* Takes what is there; at its end the descriptor is closed. */
static void read_stream(Stream *stream) {
    if (!make_room(stream)) {
        close_stream(stream);
        return;
    }
    ssize_t n = read(stream->descriptor, stream->bytes + stream->n, stream->capacity - stream->n - 1);
    if (n > 0) stream->n += (size_t)n;
    else if (n == 0 || (errno != EINTR && errno != EAGAIN)) close_stream(stream);
}

/* ---- Starting */

static void close_pipe(int ends[2]) {
    for (int i = 0; i < 2; i++) {
        if (ends[i] >= 0) close(ends[i]);
        ends[i] = -1;
    }
}

/* In the child: nothing here may allocate but setenv and exec, of which glibc's work after fork. */
static void become(const ChildSetup *setup, const int output[2], const int complaint[2], int trouble,
                   pid_t parent) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(127); /* it was quicker */
    for (int number = 1; number < NSIG; number++) signal(number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int nothing = open("/dev/null", O_RDONLY);
    bool is_ready =
        nothing >= 0 && dup2(nothing, 0) == 0 && dup2(output[1], 1) == 1 && dup2(complaint[1], 2) == 2;
    if (is_ready && setup->folder) is_ready = chdir(setup->folder) == 0;
    for (const char *const *entry = setup->environment; is_ready && entry && *entry; entry++)
        is_ready = putenv(strdup(*entry)) == 0;
    if (is_ready) execvp(setup->words[0], (char *const *)(uintptr_t)setup->words);
    int reason = errno;
    ssize_t ignored = write(trouble, &reason, sizeof reason);
    (void)ignored;
    _exit(127);
}

/* The child's number, or -1 and an error. */
static pid_t start(const ChildSetup *setup, int output[2], int complaint[2], Error *error) {
    int trouble[2];
    if (pipe2(trouble, O_CLOEXEC) != 0) {
        error_failed(error, "cannot start %s: %s", setup->words[0], strerror(errno));
        return -1;
    }
    pid_t parent = getpid(), child = fork();
    if (child == 0) become(setup, output, complaint, trouble[1], parent);
    if (child < 0) error_failed(error, "cannot start %s: %s", setup->words[0], strerror(errno));
    close(trouble[1]);
    int reason = 0;
    ssize_t n = child > 0 ? read(trouble[0], &reason, sizeof reason) : 0;
    close(trouble[0]);
    if (n != (ssize_t)sizeof reason) return child;
    waitpid(child, NULL, 0);
    if (reason == ENOENT || reason == EACCES)
        error_user(error, "cannot run '%s': %s; install it, or give its path", setup->words[0],
                   strerror(reason));
    else error_failed(error, "cannot run '%s': %s", setup->words[0], strerror(reason));
    return -1;
}

/* ---- Waiting */

typedef struct {
    pid_t child;
    uint64_t started_ns, told_ns; /* told: when it was asked to end; 0: not yet */
    double timeout_s;
} Watch;

static void keep_time(Watch *watch, ChildResult *result) {
    bool is_late = watch->timeout_s > 0 && timer_seconds_since(watch->started_ns) > watch->timeout_s;
    if (!watch->told_ns && (is_late || interrupt_was_signalled())) {
        result->was_interrupted = !is_late;
        result->timed_out = is_late;
        watch->told_ns = timer_now_ns();
        kill(-watch->child, SIGTERM);
    } else if (watch->told_ns && timer_seconds_since(watch->told_ns) > GRACE_S) {
        kill(-watch->child, SIGKILL);
    }
}

/* Until the child has ended and said all. Something that it left behind may keep the pipes open: nobody waits
 * for that. */
static void watch_child(Watch *watch, Stream *streams, ChildResult *result) {
    int state = 0;
    bool has_ended = false;
    while (!has_ended || streams[0].descriptor >= 0 || streams[1].descriptor >= 0) {
        struct pollfd polled[2];
        for (int i = 0; i < 2; i++)
            polled[i] = (struct pollfd){.fd = streams[i].descriptor, .events = POLLIN};
        int n_ready = poll(polled, 2, has_ended ? 0 : POLL_MS);
        for (int i = 0; i < 2 && n_ready > 0; i++)
            if (polled[i].revents) read_stream(&streams[i]);
        if (has_ended && n_ready <= 0) break;
        if (!has_ended) has_ended = waitpid(watch->child, &state, WNOHANG) == watch->child;
        if (!has_ended) keep_time(watch, result);
    }
    result->seconds = timer_seconds_since(watch->started_ns);
    result->exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : -1;
    result->signal = WIFSIGNALED(state) ? WTERMSIG(state) : 0;
    if (watch->told_ns) kill(-watch->child, SIGKILL); /* what is left of its group */
}

static void take(Stream *stream, char **text, size_t *n) {
    close_stream(stream);
    if (!stream->bytes) stream->bytes = calloc(1, 1);
    if (stream->bytes) stream->bytes[stream->n] = '\0';
    *text = stream->bytes;
    *n = stream->n;
}

Status child_run(const ChildSetup *setup, ChildResult *result, Error *error) {
    *result = (ChildResult){.exit_code = -1};
    int output[2] = {-1, -1}, complaint[2] = {-1, -1};
    if (pipe2(output, O_CLOEXEC) != 0 || pipe2(complaint, O_CLOEXEC) != 0) {
        error_failed(error, "cannot start %s: %s", setup->words[0], strerror(errno));
        close_pipe(output);
        close_pipe(complaint);
        return error->status;
    }
    Watch watch = {.started_ns = timer_now_ns(), .timeout_s = setup->timeout_s};
    watch.child = start(setup, output, complaint, error);
    close(output[1]);
    close(complaint[1]);
    Stream streams[2] = {{.descriptor = output[0], .most = CHILD_OUTPUT_BYTES},
                         {.descriptor = complaint[0], .most = CHILD_COMPLAINT_BYTES}};
    if (watch.child > 0) watch_child(&watch, streams, result);
    take(&streams[0], &result->output, &result->n_output);
    take(&streams[1], &result->complaint, &result->n_complaint);
    return error->status;
}

void child_free(ChildResult *result) {
    free(result->output);
    free(result->complaint);
    *result = (ChildResult){0};
}

/* ---- What became of it */

/* The words, as far as they fit. */
static const char *join(const char *const *words, char *text, size_t n_bytes) {
    size_t n = 0;
    text[0] = '\0';
    for (; *words && n + 2 < n_bytes; words++) {
        int added = snprintf(text + n, n_bytes - n, "%s%s", n ? " " : "", *words);
        n += added > 0 ? (size_t)added : 0;
    }
    if (n >= n_bytes - 1) memcpy(text + n_bytes - 4, "...", 4);
    return text;
}

/* One of pgpt's own that says what went wrong, and not what its watchdog adds: where ranks are, how to go
 * on. */
static bool is_telling(const char *line) {
    static const char *const others[] = {"pgpt: where each rank is", "pgpt: ending the job"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strncmp(line, others[i], strlen(others[i])) == 0) return false;
    return strncmp(line, "pgpt: ", 6) == 0;
}

/* The last line of a text that has words of its own: launchers draw frames of dashes around theirs. Of pgpt's
 * own lines, "pgpt: rank 1 on ...: ...", the last. */
static const char *telling_line(const char *text, size_t n, size_t *length) {
    const char *best = "", *line = text;
    bool is_ours = false;
    *length = 0;
    while (line < text + n) {
        size_t n_line = strcspn(line, "\n");
        bool has_words = strspn(line, " -=*\t\r") < n_line, says_pgpt = is_telling(line);
        if (has_words && (says_pgpt || !is_ours)) {
            best = says_pgpt ? line + 6 : line;
            *length = says_pgpt ? n_line - 6 : n_line;
            is_ours = is_ours || says_pgpt;
        }
        line += n_line + 1;
    }
    if (*length > 400) *length = 400;
    return best;
}

Status child_check(const ChildResult *result, const char *const *words, Error *error) {
    if (result->exit_code == 0 && !result->timed_out && !result->was_interrupted) return STATUS_OK;
    char command[400], ending[64];
    size_t length = 0;
    const char *said = telling_line(result->complaint, result->n_complaint, &length);
    join(words, command, sizeof command);
    if (result->was_interrupted) return error_failed(error, "interrupted; '%s' was ended", command);
    if (result->timed_out)
        snprintf(ending, sizeof ending, "was ended after %.0f s without a result", result->seconds);
    else if (result->signal)
        snprintf(ending, sizeof ending, "was ended by signal %d (%s)", result->signal,
                 strsignal(result->signal));
    else snprintf(ending, sizeof ending, "failed with exit code %d", result->exit_code);
    const char *format = length ? "'%s' %s: %.*s" : "'%s' %s%.*s";
    if (result->exit_code == 2) return error_user(error, format, command, ending, (int)length, said);
    return error_failed(error, format, command, ending, (int)length, said);
}

Status child_json(const ChildResult *result, const char *const *words, json_t **object, Error *error) {
    char command[400];
    size_t end = result->n_output, begin;
    while (end > 0 && result->output[end - 1] == '\n') end--;
    for (begin = end; begin > 0 && result->output[begin - 1] != '\n'; begin--) continue;
    Error wrong = {0};
    if (json_parse(result->output + begin, end - begin, "its last line", object, &wrong) != STATUS_OK)
        return error_failed(error, "'%s' did not end with a JSON object: %s",
                            join(words, command, sizeof command), wrong.text);
    return STATUS_OK;
}

bool child_exists(const char *program) {
    if (strchr(program, '/')) return access(program, X_OK) == 0;
    const char *path = getenv("PATH");
    for (const char *folder = path; folder && *folder;) {
        size_t n = strcspn(folder, ":");
        char candidate[4096];
        int length =
            snprintf(candidate, sizeof candidate, "%.*s/%s", n ? (int)n : 1, n ? folder : ".", program);
        if (length > 0 && (size_t)length < sizeof candidate && access(candidate, X_OK) == 0) return true;
        folder += n + (folder[n] == ':');
    }
    return false;
}
