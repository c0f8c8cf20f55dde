/* A text is read once, when its machine is opened: words are sorted by operation, and an instruction finds
 * its group by bisection. Sizes are compared as logarithms, so a factor of two is as far anywhere. */
#include "plan/samples.h"

#include "base/text/plain.h"
#include "ops/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WORD = 160 };

/* ---- What an instruction is measured by */

static bool begins(const Node *node, const char *words) {
    return strncmp(node->op->name, words, strlen(words)) == 0;
}

bool node_gemm(const Node *node, double *M, double *N, double *K) {
    bool is_grouped = begins(node, "grouped_"), is_weight = strstr(node->op->name, "weight_gradient") != NULL;
    if (!is_grouped && !begins(node, "linear")) return false;
    const Tensor *x = node->input[0], *other = node->input[1];
    if (!x || !other) return false;
    *M = (double)shape_rows(x->shape);
    *K = (double)shape_columns(x->shape);
    *N = node->output[0] ? (double)shape_columns(node->output[0]->shape) : *K;
    if (is_weight) { /* dy, x: rows are the terms */
        *K = *M;
        *M = (double)shape_columns(x->shape);
        *N = (double)shape_columns(other->shape);
    }
    if (is_grouped) {
        const Tensor *weight = is_weight ? node->output[0] : other;
        double n = weight && weight->shape.n_dims == 3 ? (double)weight->shape.dim[0] : 1.0;
        *(is_weight ? K : M) /= n;
    }
    return true;
}

bool node_adds(const Node *node, bool is_behind_first) {
    if (node->op != &OP_LINEAR_WEIGHT_GRADIENT) return false;
    return node->write[0] == WRITE_ADD || (node->write[0] == WRITE_ADD_AFTER_FIRST && is_behind_first);
}

/* What a kernel does besides, and takes time for: an activation, numbers drawn for dropout, a sum. */
typedef enum {
    VARIANT_ADDS,
    VARIANT_ACTIVATION,
    VARIANT_ACTIVATION_BACKWARD,
    VARIANT_ATTENTION,
    VARIANT_ATTENTION_BACKWARD,
    VARIANT_NORM,
    VARIANT_NORM_BACKWARD,
    N_VARIANTS
} Variant;

const char *const sample_variants[] = {[VARIANT_ADDS] = "linear_weight_gradient+add",
                                       [VARIANT_ACTIVATION] = "linear+activation",
                                       [VARIANT_ACTIVATION_BACKWARD] = "linear_input_gradient+activation",
                                       [VARIANT_ATTENTION] = "attention+dropout",
                                       [VARIANT_ATTENTION_BACKWARD] = "attention_backward+dropout",
                                       [VARIANT_NORM] = "residual_norm+dropout",
                                       [VARIANT_NORM_BACKWARD] = "residual_norm_backward+dropout",
                                       [N_VARIANTS] = NULL};

/* N_VARIANTS: nothing. */
static Variant variant_of(const Node *node, bool adds) {
    const void *attributes = node->attributes;
    if (adds) return VARIANT_ADDS;
    if (node->op == &OP_LINEAR || node->op == &OP_LINEAR_INPUT_GRADIENT) {
        if (((const LinearAttributes *)attributes)->activation == ACTIVATION_NONE) return N_VARIANTS;
        return node->op == &OP_LINEAR ? VARIANT_ACTIVATION : VARIANT_ACTIVATION_BACKWARD;
    }
    if (node->op == &OP_ATTENTION || node->op == &OP_ATTENTION_BACKWARD) {
        if (((const AttentionAttributes *)attributes)->dropout <= 0.0f) return N_VARIANTS;
        return node->op == &OP_ATTENTION ? VARIANT_ATTENTION : VARIANT_ATTENTION_BACKWARD;
    }
    if (node->op == &OP_RESIDUAL_NORM || node->op == &OP_RESIDUAL_NORM_BACKWARD) {
        if (((const ResidualNormAttributes *)attributes)->probability <= 0.0f) return N_VARIANTS;
        return node->op == &OP_RESIDUAL_NORM ? VARIANT_NORM : VARIANT_NORM_BACKWARD;
    }
    return N_VARIANTS;
}

SampleKey sample_key(const Node *node, bool adds) {
    Cost cost = op_cost(node);
    const char *variant = sample_variants[variant_of(node, adds)];
    SampleKey key = {.name = variant ? variant : node->op->name};
    double *size = key.size;
    if (node_gemm(node, &size[0], &size[1], &size[2])) {
        key.n_sizes = 3;
        key.work = cost.flops;
    } else if ((node->op == &OP_ATTENTION || node->op == &OP_ATTENTION_BACKWARD) && cost.flops > 0.0) {
        key.n_sizes = 3;
        size[0] = cost.flops, size[1] = cost.bytes;
        size[2] = ((const AttentionAttributes *)node->attributes)->head_size;
        key.work = cost.flops;
    } else {
        key.n_sizes = 1;
        key.work = size[0] = cost.bytes;
    }
    for (int i = 0; i < key.n_sizes; i++) size[i] = fmax(size[i], 1.0);
    return key;
}

/* ---- Reading */

typedef struct {
    const char *name;
    int n_sizes, number; /* of its word: the order among those of a name */
    Sample sample;
} Word;

static int by_name(const void *a, const void *b) {
    const Word *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : (x->number > y->number) - (x->number < y->number);
}

/* "name:size,size=rate" */
static bool read_word(char *text, Arena *arena, Word *word) {
    char *colon = strchr(text, ':'), *end;
    if (!colon || colon == text) return false;
    *colon = '\0';
    word->name = arena_strdup(arena, text);
    for (text = colon + 1;; text = end + 1) {
        double size = strtod(text, &end);
        if (end == text || !(size >= 1.0 && size < 1e18) || word->n_sizes == SAMPLE_MOST_SIZES) return false;
        word->sample.size[word->n_sizes++] = log(size);
        if (*end != ',') break;
    }
    if (*end != '=') return false;
    text = end + 1;
    double rate = strtod(text, &end);
    if (end == text || *end || !(rate > 0.0 && rate < 1e12)) return false;
    word->sample.rate = log(rate * 1e9);
    return true;
}

static size_t count_words(const char *text) {
    size_t n = 0;
    for (text += strspn(text, " "); *text; n++) {
        text += strcspn(text, " ");
        text += strspn(text, " ");
    }
    return n;
}

static Status read_words(const char *text, Arena *arena, Word *words, Error *error) {
    for (int i = 0; *(text += strspn(text, " ")); i++) {
        char copy[MOST_WORD];
        size_t n = strcspn(text, " ");
        words[i] = (Word){.number = i};
        bool is_good = n < sizeof copy;
        if (is_good) {
            memcpy(copy, text, n);
            copy[n] = '\0';
            is_good = read_word(copy, arena, &words[i]);
        }
        if (!is_good) {
            const char *word = arena_printf(arena, "%.*s", n < MOST_WORD ? (int)n : MOST_WORD, text);
            return error_user(
                error,
                "samples: '%s': write an operation, its sizes and its rate, as 'linear:2048,768,768=91.2'",
                plain_value(word).text);
        }
        text += n;
    }
    return STATUS_OK;
}

Status samples_read(const char *text, Arena *arena, Samples *samples, Error *error) {
    *samples = (Samples){0};
    size_t n = text ? count_words(text) : 0;
    if (!n) return STATUS_OK;
    Word *words = ARENA_ARRAY(arena, Word, n);
    TRY(read_words(text, arena, words, error));
    qsort(words, n, sizeof *words, by_name);
    Sample *all = ARENA_ARRAY(arena, Sample, n);
    samples->group = ARENA_ARRAY(arena, SampleGroup, n);
    for (size_t i = 0; i < n; i++) {
        SampleGroup *group = samples->n_groups ? &samples->group[samples->n_groups - 1] : NULL;
        all[i] = words[i].sample;
        if (!group || strcmp(group->name, words[i].name) != 0) {
            group = &samples->group[samples->n_groups++];
            *group = (SampleGroup){.name = words[i].name, .n_sizes = words[i].n_sizes, .sample = &all[i]};
        }
        if (group->n_sizes != words[i].n_sizes)
            return error_user(error, "samples: those of '%s' have %d sizes, and %d",
                              plain_value(group->name).text, group->n_sizes, words[i].n_sizes);
        group->n++;
    }
    return STATUS_OK;
}

/* ---- Between them */

static int compare_group(const void *name, const void *group) {
    return strcmp(name, ((const SampleGroup *)group)->name);
}

const SampleGroup *samples_group(const Samples *samples, const char *name) {
    if (!samples || !samples->n_groups) return NULL;
    return bsearch(name, samples->group, (size_t)samples->n_groups, sizeof *samples->group, compare_group);
}

/* Of attention, work for a byte is what its rate goes by (how many positions are seen), and how much there is
 * of it tells less. */
static void set_apart(const SampleGroup *group, const double *from, const double *to, double *apart) {
    for (int k = 0; k < group->n_sizes && k < SAMPLE_MOST_SIZES; k++) apart[k] = to[k] - from[k];
    if (group->n_sizes != 3 || strncmp(group->name, "attention", strlen("attention")) != 0) return;
    apart[0] -= apart[1];
    apart[1] *= 0.5;
}

bool samples_seconds(const Samples *samples, const Node *node, bool adds, double *seconds) {
    if (!samples) return false;
    SampleKey key = sample_key(node, adds);
    const SampleGroup *group = samples_group(samples, key.name);
    if (!group) group = samples_group(samples, node->op->name); /* of this variant none was measured */
    if (!group || key.n_sizes != group->n_sizes || key.work <= 0.0) return false;
    double at[SAMPLE_MOST_SIZES] = {0.0}, sum = 0.0, weights = 0.0;
    for (int k = 0; k < key.n_sizes; k++) at[k] = log(key.size[k]);
    for (int i = 0; i < group->n; i++) {
        double squares = 1e-6, apart[SAMPLE_MOST_SIZES]; /* as far as a thousandth is the same */
        set_apart(group, group->sample[i].size, at, apart);
        for (int k = 0; k < key.n_sizes; k++) squares += apart[k] * apart[k];
        double weight = 1.0 / (squares * squares);
        weights += weight;
        sum += weight * group->sample[i].rate;
    }
    *seconds = key.work / exp(sum / weights);
    return true;
}

/* ---- Writing */

const char *samples_add(const char *text, const SampleKey *key, double seconds, Arena *arena) {
    const char *sizes = "";
    for (int i = 0; i < key->n_sizes; i++)
        sizes = arena_printf(arena, "%s%s%.6g", sizes, i ? "," : "", key->size[i]);
    return arena_printf(arena, "%s%s%s:%s=%.4g", text, *text ? " " : "", key->name, sizes,
                        key->work / seconds * 1e-9);
}

const char *samples_scale(const char *text, double factor, Arena *arena) {
    const char *all = "";
    for (text += strspn(text, " "); *text; text += strspn(text, " ")) {
        size_t n = strcspn(text, " "), head = strcspn(text, "=") + 1;
        all = arena_printf(arena, "%s%s%.*s%.4g", all, *all ? " " : "", (int)head, text,
                           factor * strtod(text + head, NULL));
        text += n;
    }
    return all;
}
