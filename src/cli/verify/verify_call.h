/* Inside pgpt verify: a call of it. */
#ifndef PGPT_CLI_VERIFY_VERIFY_CALL_H
#define PGPT_CLI_VERIFY_VERIFY_CALL_H

#include "base/text/progress.h"
#include "cli/commands.h"
#include "device/device.h"
#include "train/verify/verify.h"

enum { VERIFY_MODELS = 5 };

typedef struct {
    bool all;
    int64_t n_sample, n_steps, batch, left_out, n_prompt;
    int precision, device, optimizer, moments, compress_across;
    int64_t host_ranks;
    const char *only, *compress;
    double tolerance;
    int64_t n_threads;
    bool json;
} VerifyCallOptions;

typedef struct {
    ModelConfig model;
    VerifyCallOptions call;
    OffloadOptions offload;
} VerifyCommand;

typedef struct {
    Launch *launch;
    Options options;
    VerifyCommand values;
    Backend backend;
    bool has_backend;
    VerifyModel models[VERIFY_MODELS];
    VerifyChoice choice;
    VerifyCase *cases;
    int n_cases;
    Verifier verifier;
    bool has_lines; /* one a layout */
    Progress progress;
    int n_differ;
    const char *transport; /* of the sums over ranks, in the last layout */
    double loss_deviation, weight_deviation, norm_deviation;
    double seconds;
} Verify;

/* Of the layouts of one mesh. */
typedef struct {
    int n_cases, n_differ;
    double loss, weight, seconds;
} VerifyMeshSummary;

/* Read the words of the command line, open the device, and say what every layout is trained with. */
Status verify_read_options(Verify *run, int n_words, char *const *words, Error *error);

/* What is said: before all layouts, while one is trained, after each, after all of a mesh, and at the end. */
void verify_say_beginning(const Verify *run);
void verify_show_progress(Verify *run, int i);
void verify_say_case(Verify *run, const VerifyCase *layout, const VerifyResult *result);
void verify_say_mesh(Verify *run, int i, const VerifyMeshSummary *summary);
void verify_say_end(const Verify *run);

/* The layouts that differ are a result and an error: one line says both. */
Status verify_print_json(const Verify *run, Error *failure, Error *error);

#endif
