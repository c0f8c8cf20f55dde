/* Several things make a step smaller, and each costs something else: a smaller micro-batch keeps the device
 * less busy, recomputation takes a few percent more time (selective) or a third more arithmetic (of whole
 * blocks), 16-bit numbers round, ZeRO communicates. Which of them the user would rather pay is not known
 * here, so the mildest of each kind that fits is offered.
 *
 * Memory is close to a + b·(micro-batch): a is mostly what the parameters need, which is known without
 * planning. So one plan gives b, and b the micro-batch to try next; from there it goes up or down by factors
 * of two until the largest that fits is known, two or three plans in all. What cannot fit, because its
 * parameters alone do not, is not planned at all: models that are far too large get their answer at once. */
#include "plan/advice.h"

#include "base/divisor.h"
#include "base/text/format.h"
#include "graph/passes/recompute.h"
#include "train/options.h"

#include <stdio.h>
#include <string.h>

enum { MOST_LEVELS = 64 };

typedef struct {
    const MemoryQuestion *question;
    MemoryAdvice *advice;
    int64_t level
        [MOST_LEVELS]; /* micro-batches to choose from, the present one first, each smaller than the last */
    int n_levels;
} Search;

static bool same_choice(const MemoryChoice *a, const MemoryChoice *b) {
    return a->batch == b->batch && a->micro_batch == b->micro_batch && a->recompute == b->recompute &&
           a->precision == b->precision && a->zero == b->zero && a->offloads == b->offloads;
}

/* ---- the micro-batches */

/* The present one, and what halving it again and again comes to; a micro-batch must divide the batch. */
static void list_levels(Search *search) {
    const MemoryChoice *present = &search->question->present;
    search->level[search->n_levels++] = present->micro_batch;
    for (int64_t most = present->micro_batch / 2; most >= 1 && search->n_levels < MOST_LEVELS; most /= 2) {
        int64_t divisor =
            search->question->has_one_micro_batch ? most : divisor_at_most(present->batch, most);
        if (divisor < search->level[search->n_levels - 1]) search->level[search->n_levels++] = divisor;
    }
}

static MemoryChoice at_level(const Search *search, MemoryChoice choice, int level) {
    choice.micro_batch = search->level[level];
    if (search->question->has_one_micro_batch) choice.batch = choice.micro_batch;
    return choice;
}

/* ---- planning */

static uint64_t state_of(Search *search, const MemoryChoice *choice) {
    uint64_t n_bytes = search->question->state(search->question->context, choice);
    if (n_bytes < search->advice->least_state) search->advice->least_state = n_bytes;
    return n_bytes;
}

/* Does it fit? False too when enough plans have been made. */
static bool fits(Search *search, const MemoryChoice *choice, uint64_t *n_bytes) {
    const MemoryQuestion *question = search->question;
    MemoryAdvice *advice = search->advice;
    *n_bytes = question->needed;
    if (same_choice(choice, &question->present)) return false;
    if (advice->n_plans == MEMORY_MOST_PLANS) return false;
    Error error = {0};
    advice->n_plans++;
    if (question->plan(question->context, choice, n_bytes, &error) != STATUS_OK) return false;
    if (*n_bytes < advice->least.n_bytes) advice->least = (MemoryAnswer){*choice, *n_bytes};
    return *n_bytes <= question->usable;
}

/* The level whose micro-batch should just fit, by what level 0 takes beyond the parameters. */
static int guess_level(const Search *search, uint64_t state, uint64_t at_first) {
    double rest = at_first > state ? (double)(at_first - state) : 1.0;
    double room = (double)search->question->usable - (double)state;
    double most = room / (rest / (double)search->level[0]);
    int level = 1;
    while (level < search->n_levels - 1 && (double)search->level[level] > most) level++;
    return level;
}

/* The largest micro-batch with which this choice fits. */
static bool find_largest(Search *search, MemoryChoice choice, MemoryAnswer *found) {
    uint64_t state = state_of(search, &choice), n_bytes;
    if (state > search->question->usable) return false;
    *found = (MemoryAnswer){at_level(search, choice, 0), 0};
    if (fits(search, &found->choice, &found->n_bytes)) return true;
    if (search->n_levels == 1) return false;
    int level = guess_level(search, state, found->n_bytes);
    *found = (MemoryAnswer){at_level(search, choice, level), 0};
    if (fits(search, &found->choice, &found->n_bytes)) {
        while (level > 1) { /* perhaps the guess was too careful */
            MemoryChoice larger = at_level(search, choice, --level);
            if (!fits(search, &larger, &n_bytes)) break;
            *found = (MemoryAnswer){larger, n_bytes};
        }
        return true;
    }
    while (++level < search->n_levels) {
        *found = (MemoryAnswer){at_level(search, choice, level), 0};
        if (fits(search, &found->choice, &found->n_bytes)) return true;
    }
    return false;
}

/* ---- kinds of advice */

static void offer(Search *search, const MemoryAnswer *answer) {
    MemoryAdvice *advice = search->advice;
    if (advice->n_answers < MEMORY_MOST_ANSWERS) advice->answer[advice->n_answers++] = *answer;
}

/* Is it worth naming beside a smaller micro-batch alone? */
static bool gains(const Search *search, const MemoryAnswer *answer) {
    const MemoryAdvice *advice = search->advice;
    return !advice->n_answers || answer->choice.micro_batch > advice->answer[0].choice.micro_batch;
}

static void try_choice(Search *search, MemoryChoice choice) {
    MemoryAnswer answer;
    if (find_largest(search, choice, &answer) && gains(search, &answer)) offer(search, &answer);
}

/* What is cheap, and whole blocks where that lets more sequences in at once. */
static void try_recompute(Search *search) {
    static const int64_t kinds[] = {RECOMPUTE_SELECTIVE, 1};
    int64_t most = 0;
    for (int i = 0; i < 2; i++) {
        MemoryChoice choice = search->question->present;
        MemoryAnswer answer;
        if (choice.recompute > 0 || choice.recompute == kinds[i] || most == choice.micro_batch) continue;
        choice.recompute = kinds[i];
        if (!find_largest(search, choice, &answer) || answer.choice.micro_batch <= most ||
            !gains(search, &answer))
            continue;
        most = answer.choice.micro_batch;
        offer(search, &answer);
    }
}

/* The first stage with which everything else may stay as it is. */
static void try_zero(Search *search) {
    const MemoryQuestion *question = search->question;
    for (int stage = question->present.zero + 1; question->n_ranks > 1 && stage <= 3; stage++) {
        MemoryAnswer answer = {question->present, 0};
        answer.choice.zero = stage;
        if (state_of(search, &answer.choice) > question->usable) continue;
        if (!fits(search, &answer.choice, &answer.n_bytes)) continue;
        offer(search, &answer);
        return;
    }
}

/* Optimizer state elsewhere, and everything else as it is. */
static void try_offload(Search *search) {
    const MemoryQuestion *question = search->question;
    if (!question->may_offload || question->present.offloads) return;
    MemoryAnswer answer = {question->present, 0};
    answer.choice.offloads = true;
    if (state_of(search, &answer.choice) > question->usable) return;
    if (fits(search, &answer.choice, &answer.n_bytes)) offer(search, &answer);
}

/* Several things together, where none alone is enough. */
static void try_together(Search *search) {
    MemoryChoice choice = search->question->present;
    if (choice.recompute <= 0) choice.recompute = 1;
    if (search->question->may_offload) {
        choice.offloads = true;
        try_choice(search, choice);
        if (search->advice->n_answers) return;
        choice.offloads = search->question->present.offloads;
    }
    if (search->question->n_ranks > 1 && choice.zero < 3) {
        choice.zero = 3;
        try_choice(search, choice);
    }
    if (search->advice->n_answers || choice.precision == PRECISION_PURE_BF16) return;
    choice.precision = PRECISION_PURE_BF16;
    try_choice(search, choice);
}

MemoryAdvice memory_advise(const MemoryQuestion *question) {
    const MemoryChoice *present = &question->present;
    MemoryAdvice advice = {.least = {*present, question->needed}, .least_state = UINT64_MAX};
    if (present->batch < 1 || present->micro_batch < 1) return advice;
    Search search = {.question = question, .advice = &advice};
    list_levels(&search);
    try_choice(&search, *present);
    try_recompute(&search);
    /* On a CPU 16 bits cost time, so there they are the last resort. */
    if (question->is_gpu && (present->precision == PRECISION_F32 || present->precision == PRECISION_TF32)) {
        MemoryChoice choice = *present;
        choice.precision = PRECISION_BF16;
        try_choice(&search, choice);
    }
    try_zero(&search);
    try_offload(&search);
    if (!advice.n_answers) try_together(&search);
    return advice;
}

uint64_t memory_state_bytes(const GradientSyncOptions *sync, const MemoryChoice *choice,
                            const OptimizerOptions *optimizer, const ParameterTable *table) {
    GradientSyncOptions chosen = *sync;
    chosen.zero = choice->zero;
    Precision precision = optimizer_precision(optimizer, precision_of((PrecisionKind)choice->precision));
    double n_bytes =
        sync_state_bytes(&chosen, precision, parameters_count_groups(table), optimizer_n_moments(optimizer));
    if (choice->offloads) {
        int per_parameter = optimizer_n_moments(optimizer) * (int)dtype_info(precision.moment)->n_bytes +
                            (precision.has_master ? 4 : 0);
        int n_ranks = gradient_strategy(chosen.zero)->shards_optimizer ? sync_n_ranks(&chosen) : 1;
        n_bytes -= (double)table->n_elements * (double)per_parameter / (double)n_ranks;
        if (n_bytes < 0.0) n_bytes = 0.0;
    }
    if (optimizer->eager) /* gradients have no memory of their own */
        n_bytes -= (double)table->n_elements * (double)dtype_info(precision.gradient)->n_bytes;
    return (uint64_t)n_bytes;
}

/* ---- in words */

/* What a bus and a disk are good for, as a rule: the advice is a figure to expect, not a promise, and without
 * clipping much of it hides behind the backward. */
#define BUS_BYTES_A_SECOND  5e10
#define DISK_BYTES_A_SECOND 1.5e9

/* As options, those that are as they were left out. */
static void append_choice(const MemoryQuestion *question, const MemoryChoice *choice, char *text,
                          size_t n_bytes) {
    const MemoryChoice *present = &question->present;
    size_t n = strlen(text);
    char recompute[24];
    if (choice->micro_batch != present->micro_batch)
        n += (size_t)snprintf(text + n, n_bytes - n, "%s %lld ",
                              question->has_one_micro_batch ? "--batch" : "--micro-batch",
                              (long long)choice->micro_batch);
    if (choice->recompute != present->recompute)
        n += (size_t)snprintf(text + n, n_bytes - n, "--recompute %s %s",
                              recompute_text(choice->recompute, recompute, sizeof recompute),
                              choice->recompute > 0 && present->recompute_blocks ? "--recompute-blocks 0 "
                                                                                 : "");
    if (choice->precision != present->precision)
        n += (size_t)snprintf(text + n, n_bytes - n, "--dtype %s ", precision_names[choice->precision]);
    if (choice->zero != present->zero)
        n += (size_t)snprintf(text + n, n_bytes - n, "--zero %d ", choice->zero);
    if (choice->offloads == present->offloads) return;
    if (question->is_gpu)
        snprintf(text + n, n_bytes - n, "--offload optimizer, some %.2g s more a step ",
                 question->offload_bytes / BUS_BYTES_A_SECOND);
    else
        snprintf(text + n, n_bytes - n, "--offload optimizer:file=DIR, some %.2g s more a step ",
                 question->offload_bytes / DISK_BYTES_A_SECOND);
}

const char *memory_advice_text(const MemoryQuestion *question, const MemoryAdvice *advice, char *text,
                               size_t n_bytes) {
    const char *ranks = question->n_ranks == 0 ? ""
                        : question->is_gpu     ? ", or more GPUs with --zero 3"
                                               : ", or more hosts with --zero 3";
    char choice[192] = "";
    if (!advice->n_plans && advice->least_state > question->usable && advice->least_state < UINT64_MAX) {
        snprintf(text, n_bytes,
                 "weights, gradients and moments alone take %s at the least: use a smaller --model%s",
                 format_bytes(advice->least_state).text, ranks);
        return text;
    }
    if (!advice->n_answers) {
        append_choice(question, &advice->least.choice, choice, sizeof choice);
        if (*choice)
            snprintf(text, n_bytes,
                     "even with %sit would need %s: use a shorter --sequence or a smaller --model%s", choice,
                     format_bytes(advice->least.n_bytes).text, ranks);
        else snprintf(text, n_bytes, "use a shorter --sequence or a smaller --model%s", ranks);
        return text;
    }
    snprintf(text, n_bytes, "what would fit: ");
    for (int i = 0; i < advice->n_answers; i++) {
        *choice = 0;
        append_choice(question, &advice->answer[i].choice, choice, sizeof choice);
        size_t n = strlen(text);
        snprintf(text + n, n_bytes - n, "%s%s(%s)", i ? ", " : "", choice,
                 format_bytes(advice->answer[i].n_bytes).text);
    }
    return text;
}
