/* A sample of an operation that no program has would be read and never asked for: it is a misspelling. Those
 * that the CPU has kernels for are all that instructions of a step are; what ranks send is of the links. */
#include "plan/samples.h"

#include "backend/cpu/kernels.h"
#include "base/text/format.h"
#include "base/text/plain.h"

#include <string.h>

static const Op *const OPERATIONS[] = {
#define PLAIN(op, kernel)        &op,
#define WITH_SCRATCH(op, kernel) &op,
    CPU_KERNELS(PLAIN, WITH_SCRATCH)
#undef PLAIN
#undef WITH_SCRATCH
};

enum { N_OPERATIONS = sizeof OPERATIONS / sizeof OPERATIONS[0], MOST_NAMES = N_OPERATIONS + 16 };

/* NULL-terminated. */
static void list_names(const char *names[MOST_NAMES]) {
    int n = 0;
    for (int i = 0; i < N_OPERATIONS; i++) names[n++] = OPERATIONS[i]->name;
    for (int i = 0; sample_variants[i]; i++) names[n++] = sample_variants[i];
    names[n] = NULL;
}

static bool is_listed(const char *name, const char *const *names) {
    while (*names && strcmp(*names, name) != 0) names++;
    return *names != NULL;
}

/* Rows, columns and terms of a GEMM; FLOPs, bytes and the head size of attention; bytes. */
static int sizes_of(const char *name) {
    static const char *const begins[] = {"linear", "grouped_"}, *const attention[] = {
                                                                    "attention", "attention_backward",
                                                                    "attention+dropout",
                                                                    "attention_backward+dropout", NULL};
    bool is_gemm = false;
    for (int i = 0; i < 2; i++) is_gemm |= strncmp(name, begins[i], strlen(begins[i])) == 0;
    return is_gemm || is_listed(name, attention) ? SAMPLE_MOST_SIZES : 1;
}

Status samples_check_operations(const Samples *samples, const char *key, Error *error) {
    const char *names[MOST_NAMES];
    list_names(names);
    for (int i = 0; i < samples->n_groups; i++) {
        const SampleGroup *group = &samples->group[i];
        if (!is_listed(group->name, names))
            return error_user(error,
                              "%s: no program has an operation '%s'; %s'pgpt train --print-program' shows "
                              "their names",
                              key, plain_value(group->name).text,
                              format_did_you_mean(group->name, names).text);
        if (group->n_sizes != sizes_of(group->name))
            return error_user(error, "%s: '%s' with %d number%s before its rate; write %s", key,
                              plain_value(group->name).text, group->n_sizes, group->n_sizes == 1 ? "" : "s",
                              sizes_of(group->name) == 1 ? "its bytes, as 'add:3145728=11.3'"
                              : strncmp(group->name, "attention", 9) == 0
                                  ? "FLOPs, bytes and the head size, as 'attention:1e9,1e7,64=40'"
                                  : "rows, columns and terms, as 'linear:2048,768,768=91.2'");
    }
    return STATUS_OK;
}
