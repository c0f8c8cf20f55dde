/* A question says what follows: so many messages of so many bytes, and how they are answered. What goes both
 * ways at once is sent and received as the socket lets, because two ends that only send would stand still
 * when the buffers are full. */
#include "lab/network/talk.h"

#include "base/system/timer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PORT = 7700, TRY_SECONDS = 10, SHORT_BYTES = 8, MAX_TRIPS = 1000 };

typedef enum { CONFIRM_EACH, CONFIRM_LAST, EXCHANGE } Answer;

typedef struct {
    int64_t answer, n_messages, n_bytes; /* of each message */
} Question;

/* ---- Bytes */

static Status lost(Error *error, const char *what) {
    return error_failed(error, "%s between two namespaces: %s", what, errno ? strerror(errno) : "it ended");
}

static Status put(int socket, const void *data, size_t n_bytes, Error *error) {
    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = send(socket, (const char *)data + done, n_bytes - done, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return lost(error, "sending");
        done += (size_t)n;
    }
    return STATUS_OK;
}

static Status get(int socket, void *data, size_t n_bytes, Error *error) {
    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = recv(socket, (char *)data + done, n_bytes - done, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = 0;
        if (n <= 0) return lost(error, "receiving");
        done += (size_t)n;
    }
    return STATUS_OK;
}

static Status make_room(Talk *talk, size_t n_bytes, Error *error) {
    if (n_bytes <= talk->n_bytes) return STATUS_OK;
    char *out = realloc(talk->out, n_bytes);
    if (out) talk->out = out;
    char *in = realloc(talk->in, n_bytes);
    if (in) talk->in = in;
    if (!out || !in) return error_failed(error, "no memory for messages of %zu bytes", n_bytes);
    memset(out, 0, n_bytes);
    memset(in, 0, n_bytes);
    talk->n_bytes = n_bytes;
    return STATUS_OK;
}

/* Both ways at once. */
static Status exchange(Talk *talk, size_t n_bytes, Error *error) {
    size_t sent = 0, received = 0;
    while (sent < n_bytes || received < n_bytes) {
        struct pollfd ready = {.fd = talk->socket};
        ready.events = (short)((sent < n_bytes ? POLLOUT : 0) | (received < n_bytes ? POLLIN : 0));
        if (poll(&ready, 1, -1) < 0 && errno != EINTR) return lost(error, "waiting");
        if (ready.revents & (POLLERR | POLLHUP)) return lost(error, "exchanging");
        if (ready.revents & POLLIN) {
            ssize_t n = recv(talk->socket, talk->in + received, n_bytes - received, MSG_DONTWAIT);
            if (n <= 0 && errno != EAGAIN && errno != EINTR) return lost(error, "receiving");
            received += n > 0 ? (size_t)n : 0;
        }
        if (ready.revents & POLLOUT) {
            ssize_t n = send(talk->socket, talk->out + sent, n_bytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (n < 0 && errno != EAGAIN && errno != EINTR) return lost(error, "sending");
            sent += n > 0 ? (size_t)n : 0;
        }
    }
    return STATUS_OK;
}

/* ---- Meeting */

static struct sockaddr_in place_of(const char *address) {
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    inet_pton(AF_INET, address, &place.sin_addr);
    return place;
}

static void set_up(Talk *talk) {
    int yes = 1;
    setsockopt(talk->socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

Status talk_listen(Talk *talk, const char *address, Error *error) {
    struct sockaddr_in place = place_of(address);
    int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    talk->socket = -1;
    if (listening >= 0 && bind(listening, (struct sockaddr *)&place, sizeof place) == 0 &&
        listen(listening, 1) == 0)
        talk->socket = accept(listening, NULL, NULL);
    if (talk->socket < 0) lost(error, "listening");
    else set_up(talk);
    if (listening >= 0) close(listening);
    return error->status;
}

/* The other one may not be there yet. */
Status talk_connect(Talk *talk, const char *address, Error *error) {
    struct sockaddr_in place = place_of(address);
    uint64_t begin_ns = timer_now_ns();
    do {
        talk->socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (talk->socket < 0) return lost(error, "a socket");
        if (connect(talk->socket, (struct sockaddr *)&place, sizeof place) == 0) {
            set_up(talk);
            return STATUS_OK;
        }
        close(talk->socket);
        talk->socket = -1;
        usleep(20000);
    } while (timer_seconds_since(begin_ns) < TRY_SECONDS);
    return lost(error, "connecting");
}

void talk_close(Talk *talk) {
    if (talk->socket >= 0) close(talk->socket);
    free(talk->out);
    free(talk->in);
    *talk = (Talk){.socket = -1};
}

/* ---- Answering */

static Status answer_one(Talk *talk, const Question *question, Error *error) {
    size_t n_bytes = (size_t)question->n_bytes;
    TRY(make_room(talk, n_bytes + SHORT_BYTES, error));
    for (int64_t i = 0; i < question->n_messages; i++) {
        if (question->answer == EXCHANGE) {
            TRY(exchange(talk, n_bytes, error));
            continue;
        }
        TRY(get(talk->socket, talk->in, n_bytes, error));
        if (question->answer == CONFIRM_EACH || i + 1 == question->n_messages)
            TRY(put(talk->socket, talk->out, SHORT_BYTES, error));
    }
    return STATUS_OK;
}

Status talk_answer(Talk *talk, Error *error) {
    Question question;
    for (;;) {
        Error ended = {0};
        if (get(talk->socket, &question, sizeof question, &ended) != STATUS_OK) return STATUS_OK;
        TRY(answer_one(talk, &question, error));
    }
}

/* ---- Asking */

static Status ask(Talk *talk, Answer answer, int64_t n_messages, int64_t n_bytes, Error *error) {
    Question question = {answer, n_messages, n_bytes};
    TRY(make_room(talk, (size_t)n_bytes + SHORT_BYTES, error));
    return put(talk->socket, &question, sizeof question, error);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

Status talk_ping(Talk *talk, int n_trips, double *seconds, Error *error) {
    double trips[MAX_TRIPS];
    if (n_trips > MAX_TRIPS) n_trips = MAX_TRIPS;
    TRY(ask(talk, CONFIRM_EACH, n_trips, SHORT_BYTES, error));
    for (int i = 0; i < n_trips; i++) {
        uint64_t begin_ns = timer_now_ns();
        TRY(put(talk->socket, talk->out, SHORT_BYTES, error));
        TRY(get(talk->socket, talk->in, SHORT_BYTES, error));
        trips[i] = timer_seconds_since(begin_ns);
    }
    qsort(trips, (size_t)n_trips, sizeof *trips, compare);
    *seconds = 0.5 * trips[n_trips / 4];
    return STATUS_OK;
}

Status talk_send(Talk *talk, int64_t n_bytes, int n_messages, bool one_by_one, double *seconds,
                 Error *error) {
    size_t each = (size_t)(n_bytes / n_messages);
    TRY(ask(talk, one_by_one ? CONFIRM_EACH : CONFIRM_LAST, n_messages, (int64_t)each, error));
    uint64_t begin_ns = timer_now_ns();
    for (int i = 0; i < n_messages; i++) {
        TRY(put(talk->socket, talk->out, each, error));
        if (one_by_one || i + 1 == n_messages) TRY(get(talk->socket, talk->in, SHORT_BYTES, error));
    }
    *seconds = timer_seconds_since(begin_ns);
    return STATUS_OK;
}

Status talk_all_reduce(Talk *talk, int64_t n_bytes, Error *error) {
    int64_t half = (n_bytes + 1) / 2;
    TRY(ask(talk, EXCHANGE, 2, half, error));
    for (int step = 0; step < 2; step++) TRY(exchange(talk, (size_t)half, error));
    return STATUS_OK;
}
