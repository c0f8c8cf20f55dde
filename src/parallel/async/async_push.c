/* Stochastic gradient push, after the sums that push gossip computes.
 *
 * Every rank has a vector x and a number w, its mass. In a step it keeps half of both and sends the other
 * half to one rank; what arrives is added. Nothing is ever lost, so the sums of x and of w over all ranks and
 * messages stay what they are, and x/w, which forgets how much mass a rank happens to have, tends to the
 * average on every rank. The rank trains at z = x/w: the program computes the gradient there and changes z,
 * and the same change is made to x.
 *
 * A message may be late. With a delay of D, what was sent in step k is added in step k + D by whoever it was
 * for, who waits for it only then. That is a fixed delay, not a deadline: which messages are in x after a
 * step does not depend on anybody's clock, and a run can be repeated bit by bit. Every rank sends and gets as
 * much, so masses stay what they are in the beginning: 1 without delay; with D messages of half a mass always
 * on their way to everybody, 1/(1 + D/2), and w is what makes up for it. An update changes only what is here,
 * so it moves z by 1/w times as much as it moves the average of all: the longer the delay, the lower the rate
 * has to be.
 *
 *     x += (z after the update) - (z before it)         z before it is x/w: it need not be kept
 *     send (x/2, w/2);  x = x/2;  w = w/2
 *     x += x of step k-D;  w += w of step k-D
 *     z = x/w
 *
 * Messages lie in a ring of D + 1 buffers for each direction. The mass travels behind the vector, in the same
 * message. */
#include "parallel/async/async_push.h"

#include "base/system/memory.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    CommRequest request[2]; /* what comes in, what goes out */
    float *in, *out;        /* n elements, and the mass behind them */
    bool is_known;          /* `in` is what would have come: nobody sends it */
} PushSlot;

struct AsyncPush {
    Comm *ranks;
    float *weights; /* z: the model's own array */
    float *x;
    double mass; /* w */
    int64_t n, delay;
    PushSlot *slot;
    int64_t first, end; /* messages that are under way, counted from the beginning: first .. end - 1 */
    void *memory;
    size_t memory_bytes;
};

enum { GRAIN = 16 }; /* arrays begin at multiples of 64 bytes */

static int64_t message_elements(int64_t n) {
    return n + (int64_t)(sizeof(double) / sizeof(float));
}

static int64_t array_elements(int64_t n) {
    return (message_elements(n) + GRAIN - 1) / GRAIN * GRAIN;
}

size_t push_bytes(int64_t n, int64_t delay) {
    return (size_t)array_elements(n) * (size_t)(2 * (delay + 1) + 1) * sizeof(float);
}

Status push_open(AsyncPush **out, Comm *ranks, float *weights, int64_t n, int64_t delay, Error *error) {
    AsyncPush *push = calloc(1, sizeof *push);
    *out = push;
    if (!push) return error_failed(error, "no memory for --sync push");
    *push = (AsyncPush){.ranks = ranks, .weights = weights, .n = n, .delay = delay};
    push->slot = calloc((size_t)delay + 1, sizeof *push->slot);
    if (!push->slot) return error_failed(error, "no memory for --sync push");
    push->memory_bytes = push_bytes(n, delay);
    TRY(memory_alloc(&push->memory, push->memory_bytes, "the messages of --sync push", error));
    float *next = push->memory;
    int64_t each = array_elements(n);
    push->x = next;
    for (int64_t i = 0; i <= delay; i++) {
        push->slot[i].in = next += each;
        push->slot[i].out = next += each;
    }
    push_restart(push);
    return STATUS_OK;
}

static PushSlot *slot_of(AsyncPush *push, int64_t number) {
    return &push->slot[number % (push->delay + 1)];
}

/* As if it had always been so: some of the mass here, the rest in D messages that are under way. A rank need
 * not wait for those: it knows what is in them. */
void push_restart(AsyncPush *push) {
    push->mass = 1.0 / (1.0 + 0.5 * (double)push->delay);
    double half = 0.5 * push->mass;
    float factor = (float)push->mass, half_factor = (float)half;
    for (int64_t i = 0; i < push->n; i++) push->x[i] = factor * push->weights[i];
    push->first = push->end;
    for (; push->end < push->first + push->delay; push->end++) {
        PushSlot *slot = slot_of(push, push->end);
        slot->is_known = true;
        for (int64_t i = 0; i < push->n; i++) slot->in[i] = half_factor * push->weights[i];
        memcpy(slot->in + push->n, &half, sizeof half);
    }
}

/* The update goes into x, and half of that into the message. `inverse` is what z was made of x with, so that
 * z as it was before the update comes out bit by bit. */
static void halve(AsyncPush *push, float *message) {
    float inverse = (float)(1.0 / push->mass);
    float *restrict x = push->x, *restrict out = message;
    const float *restrict z = push->weights;
    for (int64_t i = 0; i < push->n; i++) {
        float half = 0.5f * (x[i] + (z[i] - x[i] * inverse));
        x[i] = half;
        out[i] = half;
    }
    push->mass *= 0.5;
    memcpy(message + push->n, &push->mass, sizeof push->mass);
}

static Status take_oldest(AsyncPush *push, Error *error) {
    PushSlot *slot = slot_of(push, push->first++);
    if (!slot->is_known) TRY(comm_wait_posted(push->ranks, slot->request, 2, error));
    double mass;
    memcpy(&mass, slot->in + push->n, sizeof mass);
    float *restrict x = push->x;
    const float *restrict in = slot->in;
    for (int64_t i = 0; i < push->n; i++) x[i] += in[i];
    push->mass += mass;
    return STATUS_OK;
}

static void remove_bias(AsyncPush *push) {
    float inverse = (float)(1.0 / push->mass);
    float *restrict z = push->weights;
    const float *restrict x = push->x;
    for (int64_t i = 0; i < push->n; i++) z[i] = x[i] * inverse;
}

Status push_step(AsyncPush *push, int64_t step, Error *error) {
    PushSlot *slot = slot_of(push, push->end);
    int rank = push->ranks->rank, size = push->ranks->size;
    size_t n_bytes = (size_t)message_elements(push->n) * sizeof(float);
    slot->is_known = false;
    halve(push, slot->out);
    TRY(comm_post_receive(push->ranks, slot->in, n_bytes, async_push_from(rank, size, step), 0,
                          &slot->request[0], error));
    TRY(comm_post_send(push->ranks, slot->out, n_bytes, async_push_to(rank, size, step), 0, &slot->request[1],
                       error));
    push->end++;
    if (push->end - push->first > push->delay) TRY(take_oldest(push, error));
    remove_bias(push);
    return STATUS_OK;
}

Status push_finish(AsyncPush *push, double *mass, Error *error) {
    while (push->first < push->end) TRY(take_oldest(push, error));
    memcpy(push->weights, push->x, (size_t)push->n * sizeof *push->x);
    *mass = push->mass;
    return STATUS_OK;
}

void push_close(AsyncPush *push) {
    if (!push) return;
    /* After an error that all ranks know of, messages are under way into memory that is about to go. */
    Error ignored = {0};
    while (push->first < push->end && !push->ranks->is_broken) take_oldest(push, &ignored);
    if (push->memory) memory_free(push->memory, push->memory_bytes);
    free(push->slot);
    free(push);
}
