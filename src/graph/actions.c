#include "graph/actions.h"

const char *action_name(ActionKind kind) {
    static const char *const names[N_ACTION_KINDS] = {"forward", "backward", "update", "weight gradient"};
    return names[kind];
}

int actions_serial(int n_micro_batches, StepAction *actions) {
    int n = 0;
    for (int micro = 0; micro < n_micro_batches; micro++) {
        StepAction action = {.micro = micro, .is_first = micro == 0, .is_last = micro == n_micro_batches - 1};
        action.kind = ACTION_FORWARD;
        actions[n++] = action;
        action.kind = ACTION_BACKWARD;
        actions[n++] = action;
    }
    actions[n++] = (StepAction){.kind = ACTION_UPDATE, .micro = -1, .is_first = true, .is_last = true};
    return n;
}

int64_t actions_bound(int64_t n_micro_batches, int64_t n_chunks) {
    return 3 * n_chunks * n_micro_batches + 1; /* an update a micro-batch only where the backward is whole */
}

int actions_n_frames_of(const StepAction *actions, int n_actions, int chunk) {
    int n_frames = 1;
    for (int i = 0; i < n_actions; i++) {
        if (actions[i].chunk == chunk && n_frames <= actions[i].frame) n_frames = actions[i].frame + 1;
    }
    return n_frames;
}

int actions_n_frames(const StepAction *actions, int n_actions) {
    int n_frames = 1;
    for (int i = 0; i < n_actions; i++) {
        if (n_frames <= actions[i].frame) n_frames = actions[i].frame + 1;
    }
    return n_frames;
}

static int n_chunks_of(const StepAction *actions, int n_actions) {
    int n_chunks = 1;
    for (int i = 0; i < n_actions; i++) {
        if (n_chunks <= actions[i].chunk) n_chunks = actions[i].chunk + 1;
    }
    return n_chunks;
}

void actions_print(const StepAction *actions, int n_actions, FILE *stream) {
    enum { A_LINE = 8 };
    int n_frames = actions_n_frames(actions, n_actions), n_chunks = n_chunks_of(actions, n_actions);
    fprintf(stream, "\nactions of a step (micro-batch%s%s)\n", n_chunks > 1 ? " / chunk" : "",
            n_frames > 1 ? " @ frame" : "");
    for (int i = 0; i < n_actions; i++) {
        fprintf(stream, "  %s", action_name(actions[i].kind));
        if (actions[i].micro >= 0) fprintf(stream, " %d", actions[i].micro);
        if (actions[i].micro >= 0 && n_chunks > 1) fprintf(stream, "/%d", actions[i].chunk);
        if (actions[i].micro >= 0 && n_frames > 1) fprintf(stream, "@%d", actions[i].frame);
        if (i % A_LINE == A_LINE - 1 || i == n_actions - 1) fprintf(stream, "\n");
    }
}
