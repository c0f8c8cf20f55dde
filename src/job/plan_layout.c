/* A layout of the tuner in a plan's options, and as the words of a command line: what the call has given, and
 * then the layout. */
#include "job/plan_tune.h"

#include "base/text/plain.h"
#include "graph/passes/recompute.h"

#include <string.h>

const char *const tune_offload_words[N_TUNE_OFFLOADS] = {NULL, "optimizer", "optimizer,activations"};

/* ---- A layout in the options */

Status plan_layout_apply(PlanRun *plan, const PlanLayout *layout, Error *error) {
    TrainRun *run = &plan->train;
    TrainCommand *values = &run->values;
    int64_t n_ranks = 1;
    for (int axis = 0; axis < N_AXES; axis++) {
        values->parallel.size[axis] = layout->size[axis];
        n_ranks *= layout->size[axis];
    }
    values->parallel.schedule = (int)layout->schedule;
    values->parallel.n_chunks = layout->size[AXIS_PP] > 1 ? layout->n_chunks : 0;
    values->parallel.zero = layout->zero;
    values->train.micro_batch = layout->micro_batch;
    values->train.recompute = layout->recompute;
    values->train.precision = (int)layout->precision;
    if (layout->offload != TUNE_AS_GIVEN) {
        values->offload.what = tune_offload_words[layout->offload];
        values->offload.share = layout->share;
    }
    if (layout->has_no_samples) values->train.sample_tokens = 0;
    run->n_planned = (int)n_ranks;
    run->is_any_layout = false;
    TRY(mesh_shape(values->parallel.size, run->n_planned, &run->shape, error));
    TRY(train_options_complete(run, error));
    return train_async_check(run, error);
}

typedef struct {
    const char **word;
    int n;
    Arena *arena;
} WordList;

static void add_word(WordList *list, const char *word) {
    list->word[list->n++] = word;
}

static void add_option(WordList *list, const char *name, const char *value) {
    add_word(list, arena_printf(list->arena, "--%s", name));
    if (value) add_word(list, value);
}

static void add_number(WordList *list, const char *name, int64_t value) {
    add_option(list, name, arena_printf(list->arena, "%lld", (long long)value));
}

static void add_layout(WordList *list, const PlanRun *plan, const PlanLayout *layout) {
    static const Axis order[] = {AXIS_TP, AXIS_CP, AXIS_EP, AXIS_PP, AXIS_DP};
    bool has_stages = layout->size[AXIS_PP] > 1;
    for (int i = 0; i < N_AXES; i++)
        if (layout->size[order[i]] > 1) add_number(list, axis_name(order[i]), layout->size[order[i]]);
    if (has_stages) add_option(list, "schedule", schedule_info(layout->schedule)->name);
    if (has_stages && layout->n_chunks > 1) add_number(list, "chunks", layout->n_chunks);
    if (layout->zero) add_number(list, "zero", layout->zero);
    add_number(list, "micro-batch", layout->micro_batch);
    if (layout->recompute)
        add_option(list, "recompute",
                   recompute_text(layout->recompute, ARENA_ARRAY(list->arena, char, 24), 24));
    if (layout->offload != TUNE_AS_GIVEN) {
        add_option(list, "offload", tune_offload_words[layout->offload]);
        if (layout->share > 0.0)
            add_option(list, "offload-share", arena_printf(list->arena, "%.2f", layout->share));
    }
    if (layout->has_no_samples) add_number(list, "sample-tokens", 0);
    add_option(list, "dtype", precision_names[layout->precision]);
    if (machine_is_gpu(&plan->machine.machine)) add_option(list, "device", "cuda");
}

/* What the layout says itself is left out, and so is what is only of this call. */
static void add_others(WordList *list, const PlanRun *plan, const PlanLayout *layout) {
    static const char *const own[] = {"dp",       "tp",     "cp",    "ep",          "pp",
                                      "schedule", "chunks", "zero",  "micro-batch", "recompute",
                                      "dtype",    "device", "batch", "model",       NULL};
    const Options *options = &plan->train.options;
    add_option(list, "model", plan->train.values.model.preset);
    add_number(list, "batch", plan->train.values.train.batch);
    for (int i = 0; i < options_count(options->command); i++) {
        const OptionSpec *spec = options_spec(options->command, i, NULL);
        bool is_own = (spec->flags & OPTION_TRANSIENT) != 0 ||
                      (layout->offload != TUNE_AS_GIVEN && strcmp(spec->name, "offload") == 0);
        for (int k = 0; own[k]; k++) is_own = is_own || strcmp(own[k], spec->name) == 0;
        if (is_own || options->sources[i] < OPTION_FROM_RUN) continue;
        const char *value = options->asked[i];
        bool is_off = spec->type == OPTION_TYPE_BOOL && strcmp(value, "true") != 0;
        const char *name = is_off ? arena_printf(list->arena, "no-%s", spec->name) : spec->name;
        add_option(list, name, spec->type == OPTION_TYPE_BOOL ? NULL : value);
    }
}

enum { MOST_OF_LAYOUT = 32 }; /* words */

const char **plan_train_words(const PlanRun *plan, const PlanLayout *layout, int n_more, Arena *arena) {
    int n_options = options_count(plan->train.options.command);
    WordList list = {.arena = arena};
    list.word = ARENA_ARRAY(arena, const char *, 2 * n_options + MOST_OF_LAYOUT + n_more + 1);
    add_word(&list, "train");
    add_others(&list, plan, layout);
    add_layout(&list, plan, layout);
    return list.word;
}

const char *plan_words_text(const char *const *words, Arena *arena) {
    const char *line = "";
    for (; *words; words++) {
        size_t n = shell_quote(NULL, 0, *words);
        char *text = arena_alloc(arena, n + 1);
        shell_quote(text, n + 1, *words);
        line = arena_printf(arena, "%s%s%s", line, *line ? " " : "", text);
    }
    return line;
}

const char *plan_layout_text(const PlanRun *plan, const PlanLayout *layout, Arena *arena) {
    WordList list = {.word = ARENA_ARRAY(arena, const char *, MOST_OF_LAYOUT), .arena = arena};
    add_layout(&list, plan, layout);
    return plan_words_text(list.word, arena);
}
