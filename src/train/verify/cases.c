#include "train/verify/cases.h"

#include "comm/algo/algo.h"
#include "graph/passes/recompute.h"
#include "model/parameter_shard.h"
#include "ops/experts/experts.h"
#include "parallel/mesh_hosts.h"
#include "parallel/sync/gradient_sync.h"

#include <stdio.h>
#include <string.h>

/* ---- names */

const char *verify_mesh_name(const MeshShape *shape, char *text, size_t n_bytes) {
    size_t n = 0;
    snprintf(text, n_bytes, "one rank");
    for (int axis = 0; axis < N_AXES; axis++) {
        if (shape->size[axis] == 1) continue;
        n += (size_t)snprintf(text + n, n_bytes - n, "%s%s %d", n ? ", " : "", axis_name((Axis)axis),
                              shape->size[axis]);
    }
    return text;
}

const char *verify_case_name(const VerifyChoice *choice, const VerifyCase *layout, char *text,
                             size_t n_bytes) {
    char mesh[64], model[32], schedule[64] = "", sync[64] = "";
    const char *name = choice->model[layout->model].name;
    bool has_stages = layout->shape.size[AXIS_PP] > 1, is_alone = mesh_n_ranks(&layout->shape) == 1;
    const char *recompute =
        layout->recompute == RECOMPUTE_SELECTIVE
            ? layout->recompute_blocks ? ", recompute selective and a block" : ", recompute selective"
        : layout->recompute_blocks ? ", recompute a block"
        : layout->recompute        ? ", recompute"
                                   : "";
    const char *tied = layout->tied ? "tied, " : "untied, ";
    snprintf(model, sizeof model, "%s%s%s", name, *name ? ", " : "", choice->varies_tied ? tied : "");
    if (!is_alone)
        snprintf(sync, sizeof sync, "%szero %d, %s%s",
                 layout->context == CONTEXT_ALL_TO_ALL ? "all-to-all, " : "", layout->zero,
                 layout->all_reduce >= 0 ? comm_algorithm_names[layout->all_reduce] : "",
                 layout->all_reduce >= 0 ? ", " : "");
    if (has_stages) snprintf(schedule, sizeof schedule, "%s, ", schedule_info(layout->schedule)->name);
    if (layout->n_chunks > 1)
        snprintf(schedule + strlen(schedule), sizeof schedule - strlen(schedule), "%d chunks, ",
                 layout->n_chunks);
    snprintf(text, n_bytes, "%s%s%s%s%s%lld micro-batch%s%s%s%s%s%s%s", model,
             is_alone ? "" : verify_mesh_name(&layout->shape, mesh, sizeof mesh), is_alone ? "" : ", ", sync,
             schedule, (long long)layout->n_micro_batches, layout->n_micro_batches == 1 ? "" : "es",
             layout->by_sequence ? ", sequence" : "", layout->style == TENSOR_ROW ? ", row style" : "",
             layout->tensor_chunks > 1 ? ", in turns" : "", recompute, layout->overlaps ? "" : ", no overlap",
             layout->checks_later ? ", clip check" : "");
    return text;
}

ModelConfig verify_case_config(const VerifyChoice *choice, const VerifyCase *layout) {
    ModelConfig config = choice->model[layout->model].config;
    config.tied = layout->tied;
    config.n_layers = layout->n_layers;
    return config;
}

/* ---- dimensions: each sets the i-th value that there is for a layout in which those above are set; false:
 * there are no more. What does not go together is sorted out at the end (is_legal). */

static bool set_model(const VerifyChoice *choice, VerifyCase *layout, int i) {
    if (i >= choice->n_models) return false;
    layout->model = i;
    return true;
}

static bool set_tied(const VerifyChoice *choice, VerifyCase *layout, int i) {
    bool given = choice->model[layout->model].config.tied;
    layout->tied = i ? !given : given;
    return i < (choice->varies_tied && !choice->model[layout->model].keeps_tied ? 2 : 1);
}

static bool set_schedule(const VerifyChoice *choice, VerifyCase *layout, int i) {
    (void)choice;
    bool has_stages = layout->shape.size[AXIS_PP] > 1;
    layout->schedule = has_stages ? (ScheduleKind)i : SCHEDULE_1F1B;
    return i < (has_stages ? N_SCHEDULES : 1);
}

/* And the layers that so many parts need. */
static bool set_chunks(const VerifyChoice *choice, VerifyCase *layout, int i) {
    enum { FEWEST_LAYERS = 3, MOST_STAGES = 4 };
    int n_stages = layout->shape.size[AXIS_PP];
    bool has_choice = layout->schedule == SCHEDULE_INTERLEAVED && n_stages <= MOST_STAGES;
    layout->n_chunks = n_stages > 1 ? schedule_info(layout->schedule)->default_chunks + i : 1;
    layout->n_layers = choice->model[layout->model].config.n_layers;
    if (choice->varies_layers) layout->n_layers = n_stages * layout->n_chunks + 1;
    if (choice->varies_layers && layout->n_layers < FEWEST_LAYERS) layout->n_layers = FEWEST_LAYERS;
    return i < (has_choice ? 2 : 1);
}

int verify_n_shares(const VerifyCase *layout) {
    return layout->shape.size[AXIS_DP] * layout->shape.size[AXIS_EP];
}

/* Ranks that sum their gradients. */
static int n_sums(const VerifyCase *layout) {
    return verify_n_shares(layout) * layout->shape.size[AXIS_CP];
}

static bool set_context(const VerifyChoice *choice, VerifyCase *layout, int i) {
    (void)choice;
    layout->context = (ContextStyle)i;
    return i < (layout->shape.size[AXIS_CP] > 1 ? N_CONTEXT_STYLES : 1);
}

static bool set_zero(const VerifyChoice *choice, VerifyCase *layout, int i) {
    (void)choice;
    layout->zero = i;
    return i <= (n_sums(layout) > 1 ? ZERO_STAGES : 0);
}

/* The fewest micro-batches that a rank's share can be cut into, of `least` or more; as many as it has
 * sequences where those are fewer. */
static int64_t cut_share(const VerifyChoice *choice, const VerifyCase *layout, int64_t least) {
    int64_t n_shares = verify_n_shares(layout), share = (choice->batch + n_shares - 1) / n_shares;
    for (int64_t size = share; size > 1; size--) {
        if ((share + size - 1) / size >= least) return (share + size - 1) / size;
    }
    return share;
}

/* As many as there are stages, or one; twice as many; a pipeline with a single one. */
static bool set_micro_batches(const VerifyChoice *choice, VerifyCase *layout, int i) {
    int n_stages = layout->shape.size[AXIS_PP];
    int64_t few = cut_share(choice, layout, n_stages), many = cut_share(choice, layout, 2L * n_stages);
    layout->accumulates = i == 1;
    layout->n_micro_batches = i == 0 ? few : i == 1 ? many : 1;
    if (i == 1 && many == few) layout->n_micro_batches = 0; /* nothing new */
    return i < (n_stages > 1 && layout->zero == 0 ? 3 : 2);
}

/* Whole blocks, what is cheap, and the first block whole (the others none or what is cheap) take turns, as
 * colours do on a board: so each meets any two other choices. */
static bool set_recompute(const VerifyChoice *choice, VerifyCase *layout, int i) {
    (void)choice;
    int turn = layout->model + layout->tied + layout->zero + (int)layout->schedule + layout->n_chunks +
               layout->accumulates;
    for (int axis = 0; axis < N_AXES; axis++) turn += layout->shape.size[axis];
    bool has_first = i && turn % 3 == 2;
    layout->recompute_blocks = has_first;
    layout->recompute = i == 0      ? RECOMPUTE_NONE
                        : has_first ? (turn / 3 % 2 ? RECOMPUTE_SELECTIVE : RECOMPUTE_NONE)
                        : turn % 3  ? RECOMPUTE_SELECTIVE
                                    : 1;
    return i < 2;
}

/* What need not meet everything else is tried where nothing else is chosen. */
static bool is_plain(const VerifyCase *layout) {
    return !layout->accumulates && !layout->recompute && !layout->recompute_blocks;
}

static bool set_sequence(const VerifyChoice *choice, VerifyCase *layout, int i) {
    (void)choice;
    bool is_split = layout->shape.size[AXIS_TP] > 1;
    layout->by_sequence = is_split && i == 0;
    return i < (is_split && is_plain(layout) ? 2 : 1);
}

/* Parts of a micro-batch that take turns; or the naive style. */
static bool set_tensor(const VerifyChoice *choice, VerifyCase *layout, int i) {
    (void)choice;
    bool is_split = layout->shape.size[AXIS_TP] > 1, exchanges = layout->shape.size[AXIS_EP] > 1;
    bool takes_turns = (is_split || exchanges) && layout->shape.size[AXIS_PP] == 1;
    layout->tensor_chunks = takes_turns && i == 1 ? 2 : 1;
    layout->style = i == 1 + takes_turns ? TENSOR_ROW : TENSOR_COLUMN;
    return i == 0 || (takes_turns && i == 1) || (i == 1 + takes_turns && is_split && !layout->by_sequence);
}

static bool set_overlap(const VerifyChoice *choice, VerifyCase *layout, int i) {
    (void)choice;
    layout->overlaps = i == 0;
    return i < (is_plain(layout) && n_sums(layout) > 1 ? 2 : 1);
}

/* Where stages would wait for each other, or moves of the optimizer's state for the norm. */
static bool set_clipping(const VerifyChoice *choice, VerifyCase *layout, int i) {
    bool has_stages = layout->shape.size[AXIS_PP] > 1;
    bool waits = has_stages ? !schedule_info(layout->schedule)->is_asynchronous : choice->moves_state;
    layout->checks_later = i == 1;
    bool is_usual = layout->by_sequence || layout->shape.size[AXIS_TP] == 1; /* as layers are split */
    return i < (waits && is_usual && is_plain(layout) && layout->overlaps ? 2 : 1);
}

static int default_algorithm(void) {
    for (int i = 0; comm_algorithm_names[i]; i++) {
        if (comm_algorithm(i) == &ALGORITHM_RING) return i;
    }
    return 0;
}

static bool set_algorithm(const VerifyChoice *choice, VerifyCase *layout, int i) {
    layout->all_reduce = choice->has_algorithms ? default_algorithm() : -1;
    if (i == 0) return true;
    if (!choice->has_algorithms || !is_plain(layout) || layout->zero || !layout->overlaps ||
        n_sums(layout) == 1 || layout->shape.size[AXIS_PP] > 1)
        return false;
    layout->all_reduce = i - 1 < layout->all_reduce ? i - 1 : i; /* the others */
    return comm_algorithm_names[layout->all_reduce] != NULL;
}

typedef bool (*SetValue)(const VerifyChoice *choice, VerifyCase *layout, int i);

static const SetValue dimensions[] = {
    set_model,     set_tied,     set_context, set_schedule, set_chunks,   set_zero,      set_micro_batches,
    set_recompute, set_sequence, set_tensor,  set_overlap,  set_clipping, set_algorithm,
};

enum { N_DIMENSIONS = sizeof dimensions / sizeof dimensions[0] };

/* ---- all of them */

typedef struct {
    VerifyCase *cases;
    int n_cases, capacity;
    const VerifyChoice *choice;
    Arena *arena;
} CaseList;

/* Are there positions and heads enough for the ranks that share a sequence? */
static bool can_share(const VerifyChoice *choice, const VerifyCase *layout) {
    const ModelConfig *config = &choice->model[layout->model].config;
    int n_ranks = layout->shape.size[AXIS_CP];
    int64_t n_heads = config->n_kv_heads / layout->shape.size[AXIS_TP];
    if (n_ranks > 1 && config->depth_capacity > 0.0) return false; /* a router sees whole sequences */
    return n_ranks == 1 || (n_ranks <= context_most_ranks(layout->context, config->context) &&
                            (layout->context == CONTEXT_RING || n_ranks <= n_heads));
}

/* All-to-all has nothing to do with the order in which stages work. */
static bool is_far_fetched(const VerifyCase *layout) {
    return layout->context == CONTEXT_ALL_TO_ALL && layout->shape.size[AXIS_PP] > 1 &&
           (!is_plain(layout) || layout->schedule != SCHEDULE_1F1B);
}

/* Something beside axes, ZeRO, schedule, chunks, accumulation and recomputation. */
static bool has_extra(const VerifyChoice *choice, const VerifyCase *layout) {
    const int *size = layout->shape.size;
    int64_t n_positions = choice->model[layout->model].config.context;
    bool can_ring = size[AXIS_CP] <= context_most_ranks(CONTEXT_RING, n_positions);
    return (layout->context != CONTEXT_RING && can_ring) || (size[AXIS_TP] > 1 && !layout->by_sequence) ||
           layout->tensor_chunks > 1 || !layout->overlaps || layout->checks_later ||
           (layout->all_reduce >= 0 && layout->all_reduce != default_algorithm()) ||
           (size[AXIS_PP] > 1 && layout->n_micro_batches == 1);
}

/* They come first. */
static int count_usual(const VerifyChoice *choice) {
    int n = 0;
    while (n < choice->n_models && !choice->model[n].is_special) n++;
    return n ? n : 1;
}

/* Each combination of those is tried with every usual model, tied and untied. What comes on top meets every
 * model too, but not all at once: where there are several models they take turns, with the head that they
 * have. Special models are on top themselves: in every combination that is plain, and in some of the others,
 * now with one head and now with the other. */
static bool is_passed_over(const VerifyChoice *choice, const VerifyCase *layout) {
    const VerifyModel *model = &choice->model[layout->model];
    bool is_more = has_extra(choice, layout);
    int turn = layout->zero + (int)layout->schedule;
    for (int axis = 0; axis < N_AXES; axis++) turn += layout->shape.size[axis];
    if (choice->n_models == 1 || mesh_n_ranks(&layout->shape) == 1 || (!is_more && !model->is_special))
        return false;
    if (layout->tied != (model->is_special ? turn / 2 % 2 : model->config.tied)) return true;
    if (!model->is_special) return turn % count_usual(choice) != layout->model;
    if (is_plain(layout) && !is_more) return false;
    return turn % (layout->shape.size[AXIS_EP] > 1 ? 2 : 4);
}

/* Are there hosts to compress between, with the same ranks of dp in every part of the model? */
static bool has_hosts(const VerifyChoice *choice, const VerifyCase *layout) {
    const MeshShape *shape = &layout->shape;
    int n_ranks = mesh_n_ranks(shape), at[N_AXES];
    Error none = {0};
    Arena arena = {0};
    int *hosts = ARENA_ARRAY(&arena, int, n_ranks);
    for (int i = 0; i < n_ranks; i++) hosts[i] = i / choice->host_ranks;
    bool is_right = shape->size[AXIS_DP] > 1 && mesh_check_hosts(shape, hosts, &none) == STATUS_OK;
    for (int i = 0; i < n_ranks && is_right; i++) {
        mesh_coordinates(shape, i, at);
        at[AXIS_TP] = at[AXIS_PP] = 0;
        is_right =
            mesh_host_place(shape, i, hosts).host == mesh_host_place(shape, mesh_rank(shape, at), hosts).host;
    }
    arena_free(&arena);
    return is_right;
}

/* What --compress cannot go with; along cp one process has not the parts of a gradient that ranks have, and
 * in 16 bits tp's parts of an activation are rounded before they are summed. */
static bool can_compress(const VerifyChoice *choice, const VerifyCase *layout) {
    const int *size = layout->shape.size;
    if (!choice->is_f32 && size[AXIS_TP] > 1) return false;
    bool is_unflushed = size[AXIS_PP] > 1 && schedule_info(layout->schedule)->is_asynchronous;
    return size[AXIS_CP] == 1 && size[AXIS_EP] == 1 && layout->zero < 3 && !is_unflushed &&
           !layout->checks_later;
}

static bool is_legal(const VerifyChoice *choice, const VerifyCase *layout) {
    const int *size = layout->shape.size;
    if (choice->compresses && !can_compress(choice, layout)) return false;
    if (choice->host_ranks && !has_hosts(choice, layout)) return false;
    ScheduleShape shape = {(int)layout->n_micro_batches, size[AXIS_PP], layout->n_chunks};
    Error none = {0};
    if (!can_share(choice, layout) || is_far_fetched(layout) || is_passed_over(choice, layout)) return false;
    const ModelConfig *config = &choice->model[layout->model].config;
    if (size[AXIS_TP] > config->vocabulary) return false; /* each needs a token */
    bool shares_heads = size[AXIS_TP] > 1 && layout->style != TENSOR_ROW;
    if (choice->n_block && shares_heads && !shard_heads_fill_blocks(config, size[AXIS_TP], choice->n_block))
        return false;
    if (size[AXIS_EP] > 1 && size[AXIS_EP] > config->n_experts) return false;
    if (!layout->n_micro_batches || size[AXIS_PP] * layout->n_chunks > layout->n_layers) return false;
    if (size[AXIS_PP] > 1 && schedule_check_shape(layout->schedule, &shape, &none) != STATUS_OK) return false;
    bool is_unflushed = size[AXIS_PP] > 1 && schedule_info(layout->schedule)->is_asynchronous;
    if (is_unflushed && (choice->scales_loss || choice->is_flushed)) return false;
    if (layout->checks_later && choice->waits) return false;
    if (is_unflushed && config->n_experts && config->router == ROUTER_BALANCE_FREE) return false;
    /* In 16 bits every sum of that style is rounded, and a router that is undecided turns. */
    if (config->n_experts && layout->style == TENSOR_ROW && !choice->is_f32) return false;
    /* Where no sum can be left out, or it would not show. */
    bool sums_layers = size[AXIS_TP] > 1 && (choice->is_f32 || !layout->by_sequence);
    return !choice->breaks || n_sums(layout) > 1 || size[AXIS_PP] > 1 || sums_layers;
}

static void add_case(CaseList *list, const VerifyCase *layout) {
    if (!is_legal(list->choice, layout)) return;
    if (list->n_cases == list->capacity) {
        list->capacity = 2 * list->capacity + 32;
        VerifyCase *larger = ARENA_ARRAY(list->arena, VerifyCase, list->capacity);
        if (list->n_cases) memcpy(larger, list->cases, (size_t)list->n_cases * sizeof *larger);
        list->cases = larger;
    }
    list->cases[list->n_cases++] = *layout;
}

static void add_values(CaseList *list, const VerifyCase *layout, int dimension) {
    if (dimension == N_DIMENSIONS) {
        add_case(list, layout);
        return;
    }
    for (int i = 0;; i++) {
        VerifyCase next = *layout;
        if (!dimensions[dimension](list->choice, &next, i)) return;
        add_values(list, &next, dimension + 1);
    }
}

/* Every way to write n_left as a product of sizes of the axes from `axis` on. */
static void add_meshes(CaseList *list, VerifyCase *layout, int axis, int n_left) {
    if (axis == N_AXES) {
        if (n_left == 1) add_values(list, layout, 0);
        return;
    }
    for (int size = 1; size <= n_left; size++) {
        if (n_left % size) continue;
        layout->shape.size[axis] = size;
        add_meshes(list, layout, axis + 1, n_left / size);
    }
}

VerifyCase *verify_cases(const VerifyChoice *choice, Arena *arena, int *n_cases) {
    CaseList list = {.arena = arena, .choice = choice};
    VerifyCase layout = {0};
    add_meshes(&list, &layout, 0, choice->n_ranks);
    *n_cases = list.n_cases;
    return list.cases;
}

/* ---- a sample */

enum { N_CHOSEN = 13, N_TRAITS = N_CHOSEN + N_AXES, N_VALUES = 32, N_MARKS = N_TRAITS * N_VALUES };

/* What was chosen, as small numbers. */
static void list_traits(const VerifyCase *layout, int *trait /* (N_TRAITS) */) {
    const int *size = layout->shape.size;
    bool has_stages = size[AXIS_PP] > 1;
    int numbers[N_TRAITS] = {layout->model,
                             layout->tied,
                             layout->zero,
                             layout->all_reduce + 1,
                             layout->accumulates                          ? 1
                             : has_stages && layout->n_micro_batches == 1 ? 2
                                                                          : 0,
                             layout->recompute_blocks ? 3 : 1 + (int)layout->recompute,
                             layout->overlaps,
                             layout->by_sequence,
                             has_stages ? 1 + (int)layout->schedule : 0,
                             layout->n_chunks,
                             layout->tensor_chunks > 1 ? 1 : 2 * (int)layout->style,
                             (int)layout->context,
                             layout->checks_later};
    memcpy(numbers + N_CHOSEN, size, N_AXES * sizeof *size);
    for (int i = 0; i < N_TRAITS; i++) trait[i] = i * N_VALUES + numbers[i] % N_VALUES;
}

/* Pairs of values that have not met, of a case; marks them if it is chosen. */
static int count_new(const VerifyCase *layout, bool (*met)[N_MARKS], bool marks) {
    int trait[N_TRAITS], n = 0;
    list_traits(layout, trait);
    for (int i = 0; i < N_TRAITS; i++) {
        for (int k = 0; k < i; k++) {
            n += !met[trait[i]][trait[k]];
            if (marks) met[trait[i]][trait[k]] = true;
        }
    }
    return n;
}

static int greatest_divisor(int a, int b) {
    return b ? greatest_divisor(b, a % b) : a;
}

/* One by one, always the case in which most pairs of values meet for the first time. Of equal ones, the next
 * in an order that jumps about, so that they are not all of one mesh. */
int verify_sample(VerifyCase *cases, int n_cases, int n_wanted) {
    if (n_wanted >= n_cases) return n_cases;
    Arena arena = {0};
    bool(*met)[N_MARKS] = arena_alloc(&arena, sizeof(bool[N_MARKS][N_MARKS]));
    bool *is_chosen = ARENA_ARRAY(&arena, bool, n_cases);
    int stride = (int)(0.618 * n_cases) + 1, n_kept = 0, at = 0;
    while (greatest_divisor(stride, n_cases) > 1) stride++;
    for (int i = 0; i < n_wanted; i++) {
        int best = -1, most = -1;
        for (int k = 0; k < n_cases; k++, at = (at + stride) % n_cases) {
            if (is_chosen[at]) continue;
            int n = count_new(&cases[at], met, false);
            if (n > most) best = at, most = n;
        }
        if (best < 0) break;
        count_new(&cases[best], met, true);
        is_chosen[best] = true;
        at = (best + stride) % n_cases;
    }
    for (int i = 0; i < n_cases; i++) {
        if (is_chosen[i]) cases[n_kept++] = cases[i];
    }
    arena_free(&arena);
    return n_kept;
}
