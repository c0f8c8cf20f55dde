/* Telling the observers of a run, one after the other. Whoever asks to stop is heard after the others.
 *
 * The observers that want meetings are numbered among themselves, and what they want travels as one bit each:
 * the ranks agree on it with the rest that they agree on after a step. */
#include "train/observers/observer.h"

#include <stdlib.h>

enum { MOST_WANTING = 32 };

Status observers_add(ObserverList *list, const TrainObserver *observer, Error *error) {
    if (observer->wants && list->n_wanting == MOST_WANTING)
        return error_failed(error, "more than %d observers want meetings", MOST_WANTING);
    size_t n = (size_t)list->n + 1;
    TrainObserver *observers = realloc(list->observer, n * sizeof *observers);
    if (observers) list->observer = observers;
    bool *has_failed = realloc(list->has_failed, n * sizeof *has_failed);
    if (has_failed) list->has_failed = has_failed;
    if (!observers || !has_failed) return error_failed(error, "no memory for observers");
    observers[list->n] = *observer;
    has_failed[list->n] = false;
    list->n_wanting += observer->wants != NULL;
    list->n++;
    return STATUS_OK;
}

void observers_free(ObserverList *list) {
    free(list->observer);
    free(list->has_failed);
    *list = (ObserverList){0};
}

Status observers_postpone(ObserverList *list, Error *error) {
    if (error->status != STATUS_OK && list->trouble.status == STATUS_OK) list->trouble = *error;
    *error = (Error){0};
    return STATUS_OK;
}

/* ---- On all ranks, or on the root */

static bool is_told(const ObserverList *list, const TrainObserver *observer) {
    return list->is_root || observer->on_all_ranks;
}

Status observers_begin(ObserverList *list, const BeginEvent *event, Error *error) {
    for (int i = 0; i < list->n; i++) {
        const TrainObserver *observer = &list->observer[i];
        if (observer->begin && is_told(list, observer)) TRY(observer->begin(observer->context, event, error));
        list->n_begun = i + 1;
    }
    return STATUS_OK;
}

void observers_before_step(ObserverList *list, int64_t step) {
    for (int i = 0; i < list->n; i++) {
        const TrainObserver *observer = &list->observer[i];
        if (observer->before_step && is_told(list, observer)) observer->before_step(observer->context, step);
    }
}

Status observers_start(ObserverList *list, int64_t step, Error *error) {
    for (int i = 0; i < list->n; i++) {
        const TrainObserver *observer = &list->observer[i];
        if (observer->start && is_told(list, observer)) TRY(observer->start(observer->context, step, error));
    }
    return STATUS_OK;
}

Status observers_meet(ObserverList *list, int64_t n_done, bool is_last, int64_t wanted, Error *error) {
    for (int i = 0; i < list->n; i++) {
        const TrainObserver *observer = &list->observer[i];
        MeetEvent event = {.n_done = n_done, .is_last = is_last};
        if (observer->wants) {
            event.is_wanted = wanted & 1;
            wanted >>= 1;
        }
        if (observer->meet && observer->on_all_ranks) TRY(observer->meet(observer->context, &event, error));
    }
    return STATUS_OK;
}

Status observers_end(ObserverList *list, const EndEvent *event, Error *error) {
    while (list->n_begun > 0) {
        const TrainObserver *observer = &list->observer[--list->n_begun];
        if (!observer->end || !is_told(list, observer)) continue;
        Error own = {0};
        observer->end(observer->context, event, &own);
        if (error->status == STATUS_OK) *error = own;
    }
    if (error->status == STATUS_OK) *error = list->trouble; /* of a checkpoint that was only now told of */
    return error->status;
}

/* ---- On the root */

/* What observer i has answered to what it was told. */
static void hear(ObserverList *list, int i, bool stops, Error *error) {
    list->stop_is_wanted |= stops;
    list->has_failed[i] |= error->status != STATUS_OK;
    observers_postpone(list, error);
}

void observers_tell_step(ObserverList *list, const StepEvent *event) {
    for (int i = 0; i < list->n && list->is_root; i++) {
        const TrainObserver *observer = &list->observer[i];
        Error error = {0};
        if (observer->step && !list->has_failed[i])
            hear(list, i, observer->step(observer->context, event, &error), &error);
    }
}

void observers_tell_sample(ObserverList *list, int64_t step, const char *text, size_t n_bytes) {
    for (int i = 0; i < list->n && list->is_root; i++) {
        const TrainObserver *observer = &list->observer[i];
        Error error = {0};
        if (observer->sample && !list->has_failed[i])
            hear(list, i, observer->sample(observer->context, step, text, n_bytes, &error), &error);
    }
}

void observers_tell_saved(ObserverList *list, int64_t step, const char *path) {
    for (int i = 0; i < list->n && list->is_root; i++) {
        const TrainObserver *observer = &list->observer[i];
        Error error = {0};
        if (observer->saved && !list->has_failed[i])
            hear(list, i, observer->saved(observer->context, step, path, &error), &error);
    }
}

int64_t observers_wanted(ObserverList *list, int64_t n_done) {
    int64_t wanted = 0, bit = 1;
    for (int i = 0; i < list->n && list->is_root; i++) {
        const TrainObserver *observer = &list->observer[i];
        if (!observer->wants) continue;
        if (observer->wants(observer->context, n_done)) wanted |= bit;
        bit <<= 1;
    }
    return wanted;
}

/* ---- What all ranks know */

int64_t observers_next_due(const ObserverList *list, int64_t n_done) {
    int64_t next = INT64_MAX;
    for (int i = 0; i < list->n; i++) {
        const TrainObserver *observer = &list->observer[i];
        if (!observer->next_due || !observer->on_all_ranks) continue;
        int64_t due = observer->next_due(observer->context, n_done);
        if (due < next) next = due;
    }
    return next;
}

bool observers_run_alone(const ObserverList *list, int64_t step) {
    for (int i = 0; i < list->n; i++) {
        const TrainObserver *observer = &list->observer[i];
        if (observer->runs_alone && observer->on_all_ranks && observer->runs_alone(observer->context, step))
            return true;
    }
    return false;
}

int64_t observer_next_multiple(int64_t every, int64_t n_done) {
    if (every <= 0 || every > INT64_MAX - n_done) return INT64_MAX;
    return n_done - n_done % every + every;
}
