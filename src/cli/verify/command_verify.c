/* pgpt verify: trains one layout after the other, and compares it with one process. */
#include "cli/verify/verify_call.h"

#include "base/system/timer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Ranks that were told different things would wait for each other. */
static Status check_same_options(Verify *run, Error *error) {
    if (run->launch->world.size == 1) return STATUS_OK;
    TRY(launch_check_same(run->launch, "--help", run->options.help_wanted ? "yes" : "no", error));
    return launch_check_options(run->launch, &run->options, error);
}

/* Does one of the texts, which | separates, stand in the layout's name? */
static bool is_named(const Verify *run, const VerifyCase *layout, const char *texts) {
    char name[VERIFY_NAME_BYTES], text[VERIFY_NAME_BYTES];
    verify_case_name(&run->choice, layout, name, sizeof name);
    for (const char *at = texts;; at++) {
        size_t n = strcspn(at, "|");
        snprintf(text, sizeof text, "%.*s", (int)(n < sizeof text ? n : sizeof text - 1), at);
        if (n && n < sizeof text && strstr(name, text)) return true;
        at += n;
        if (!*at) return false;
    }
}

/* Leave out what --only does not name. */
static Status keep_named(Verify *run, Error *error) {
    const char *texts = run->values.call.only;
    int n = 0;
    if (!*texts) return STATUS_OK;
    for (int i = 0; i < run->n_cases; i++) {
        if (is_named(run, &run->cases[i], texts)) run->cases[n++] = run->cases[i];
    }
    run->n_cases = n;
    if (n) return STATUS_OK;
    return error_user(error, "--only '%s' stands in no layout of %d rank%s; leave it out to see their names",
                      texts, run->launch->world.size, run->launch->world.size == 1 ? "" : "s");
}

/* Of all numbers of ranks that are wanted. */
static Status list_cases(Verify *run, Error *error) {
    static const int counts[] = {1, 2, 3, 4, 6, 8};
    enum { N_COUNTS = sizeof counts / sizeof counts[0] };
    Arena *arena = &run->options.arena;
    int n_ranks = run->launch->world.size, n_lists = run->values.call.all ? N_COUNTS : 1, n[N_COUNTS] = {0};
    VerifyCase *list[N_COUNTS] = {0};
    for (int i = 0; i < n_lists; i++) {
        run->choice.n_ranks = run->values.call.all ? counts[i] : n_ranks;
        if (run->choice.n_ranks <= n_ranks) list[i] = verify_cases(&run->choice, arena, &n[i]);
        run->n_cases += n[i];
    }
    run->cases = ARENA_ARRAY(arena, VerifyCase, run->n_cases + 1);
    for (int i = 0, at = 0; i < n_lists; at += n[i++])
        if (n[i]) memcpy(run->cases + at, list[i], (size_t)n[i] * sizeof **list);
    TRY(keep_named(run, error));
    if (run->values.call.n_sample)
        run->n_cases = verify_sample(run->cases, run->n_cases, (int)run->values.call.n_sample);
    run->has_lines = !run->values.call.all || run->values.call.n_sample;
    return STATUS_OK;
}

static void take_result(Verify *run, const VerifyResult *result, VerifyMeshSummary *summary) {
    run->n_differ += result->differs;
    run->transport = result->transport;
    run->loss_deviation = fmax(run->loss_deviation, result->loss_deviation);
    run->norm_deviation = fmax(run->norm_deviation, result->norm_deviation);
    run->weight_deviation = fmax(run->weight_deviation, result->weight_deviation);
    summary->n_cases++;
    summary->n_differ += result->differs;
    summary->loss = fmax(summary->loss, result->loss_deviation);
    summary->weight = fmax(summary->weight, result->weight_deviation);
    summary->seconds += result->seconds;
}

static bool ends_mesh(const Verify *run, int i) {
    return i + 1 == run->n_cases ||
           memcmp(&run->cases[i].shape, &run->cases[i + 1].shape, sizeof run->cases[i].shape) != 0;
}

static Status run_cases(Verify *run, Error *error) {
    VerifyMeshSummary summary = {0};
    for (int i = 0; i < run->n_cases; i++) {
        VerifyResult result;
        if (run->launch->is_root) verify_show_progress(run, i);
        TRY(verify_run(&run->verifier, &run->cases[i], &result, error));
        take_result(run, &result, &summary);
        if (run->launch->is_root) verify_say_case(run, &run->cases[i], &result);
        if (!ends_mesh(run, i)) continue;
        if (run->launch->is_root && !run->has_lines) verify_say_mesh(run, i, &summary);
        summary = (VerifyMeshSummary){0};
    }
    return STATUS_OK;
}

/* Two experts that a token likes nearly equally may change places where its numbers are rounded otherwise. */
static const char *what_rounding_may_do(const Verify *run) {
    bool has_experts = false;
    for (int i = 0; i < VERIFY_MODELS; i++) has_experts |= run->models[i].config.n_experts > 1;
    Precision precision = precision_of((PrecisionKind)run->values.call.precision);
    if (run->values.call.left_out || !has_experts || precision.weight == DTYPE_F32) return "";
    return "; in 16 bits layouts round otherwise, and a token may go to another expert for that: see whether "
           "they differ with --dtype f32";
}

static Status run_all(Verify *run, Error *error) {
    bool speaks = run->launch->is_root;
    uint64_t start = timer_now_ns();
    device_meet(&run->backend, &run->launch->world, run->launch->host_size, error);
    device_keep_comms(&run->backend, &run->launch->world, error);
    TRY(launch_agree(run->launch, error));
    list_cases(run, error);
    TRY(launch_agree(run->launch, error));
    if (speaks) verify_say_beginning(run);
    if (speaks) progress_begin(&run->progress, stderr, 0.0);
    run_cases(run, error);
    if (speaks) progress_end(&run->progress);
    TRY(error->status);
    run->seconds = timer_seconds_since(start);
    if (speaks) verify_say_end(run);
    Error failure = {0};
    if (run->n_differ)
        error_failed(&failure, "%d of %d layouts do not train as one process does%s", run->n_differ,
                     run->n_cases, what_rounding_may_do(run));
    if (speaks && run->values.call.json) TRY(verify_print_json(run, &failure, error));
    run->launch->is_agreed = run->n_differ > 0;
    *error = failure;
    return error->status;
}

Status command_verify(Launch *launch, int n_words, char *const *words, Error *error) {
    Verify run = {.launch = launch};
    verify_read_options(&run, n_words, words, error);
    if (launch_agree(launch, error) == STATUS_OK) check_same_options(&run, error);
    if (error->status == STATUS_OK) {
        if (!run.options.help_wanted) run_all(&run, error);
        else if (launch->is_root) command_show_help(&verify_command);
    }
    launch_fail(launch, error);
    verify_close(&run.verifier);
    if (run.has_backend) device_drop_comms(&run.backend);
    if (run.has_backend) run.backend.close(run.backend.context);
    options_free(&run.options);
    return error->status;
}
