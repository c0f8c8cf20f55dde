/* There are a dozen or two at most, communicators of one process, and they are asked about once a
 * millisecond: a list will do. */
#include "base/system/watchers.h"

#include <stdlib.h>

struct Watcher {
    WatcherCheck check;
    void *context;
    Watcher *next;
};

Status watchers_add(Watchers *watchers, WatcherCheck check, void *context, Error *error) {
    Watcher *watcher = calloc(1, sizeof *watcher), **end = &watchers->first;
    if (!watcher) return error_failed(error, "no memory for a watcher");
    *watcher = (Watcher){.check = check, .context = context};
    while (*end) end = &(*end)->next;
    *end = watcher;
    return STATUS_OK;
}

void watchers_remove(Watchers *watchers, const void *context) {
    for (Watcher **at = &watchers->first; *at; at = &(*at)->next) {
        Watcher *watcher = *at;
        if (watcher->context != context) continue;
        *at = watcher->next;
        free(watcher);
        return;
    }
}

Status watchers_ask(const Watchers *watchers, Error *error) {
    for (const Watcher *at = watchers->first; at; at = at->next) TRY(at->check(at->context, error));
    return STATUS_OK;
}

void watchers_close(Watchers *watchers) {
    while (watchers->first) watchers_remove(watchers, watchers->first->context);
}
