#include "graph/actions.h"

const char *action_name(ActionKind kind) {
    static const char *const names[N_ACTION_KINDS] = {"forward", "backward", "update"};
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

int actions_n_frames(const StepAction *actions, int n_actions) {
    int n_frames = 1;
    for (int i = 0; i < n_actions; i++) {
        if (n_frames <= actions[i].frame) n_frames = actions[i].frame + 1;
    }
    return n_frames;
}

void actions_print(const StepAction *actions, int n_actions, FILE *stream) {
    enum { A_LINE = 8 };
    int n_frames = actions_n_frames(actions, n_actions);
    fprintf(stream, "\nactions of a step%s\n", n_frames > 1 ? " (micro-batch @ frame)" : " (micro-batch)");
    for (int i = 0; i < n_actions; i++) {
        fprintf(stream, "  %s", action_name(actions[i].kind));
        if (actions[i].micro >= 0) fprintf(stream, " %d", actions[i].micro);
        if (actions[i].micro >= 0 && n_frames > 1) fprintf(stream, "@%d", actions[i].frame);
        if (i % A_LINE == A_LINE - 1 || i == n_actions - 1) fprintf(stream, "\n");
    }
}
