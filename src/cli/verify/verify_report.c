/* What pgpt verify says: a table, one line a layout; of all layouts there are, one line a mesh. */
#include "cli/verify/verify_call.h"

#include "base/text/format.h"
#include "base/text/json.h"

#include <stdio.h>

static void say_difference(const VerifyResult *result) {
    if (result->parameter == VERIFY_BITS) {
        printf(
            "    first difference in step %lld: not the bits of the same layout without offload (rank %d)\n",
            (long long)result->step, result->rank);
        return;
    }
    if (result->parameter < 0) {
        printf("    first difference in step %lld: the %s is %.9g instead of %.9g\n", (long long)result->step,
               result->parameter == VERIFY_LOSS ? "loss" : "gradient norm", result->value, result->wanted);
        return;
    }
    printf("    first difference in step %lld: %s, element %lld, is %.9g instead of %.9g (rank %d)\n",
           (long long)result->step, result->name, (long long)result->element, result->value, result->wanted,
           result->rank);
}

enum { NAME_COLUMNS = 88 };

/* The bar is on stderr, and makes room. */
static void say_line(Verify *run, const char *name, double loss, double weight, double seconds,
                     const char *words) {
    progress_hide(&run->progress);
    printf("%-*s %8.1e %8.1e %9s  %s\n", NAME_COLUMNS, name, loss, weight, format_duration(seconds).text,
           words);
    fflush(stdout);
}

void verify_say_case(Verify *run, const VerifyCase *layout, const VerifyResult *result) {
    char name[VERIFY_NAME_BYTES];
    if (!run->has_lines && !result->differs) return;
    say_line(run, verify_case_name(&run->choice, layout, name, sizeof name), result->loss_deviation,
             result->weight_deviation, result->seconds, result->differs ? "DIFFERS" : "same");
    if (result->differs) say_difference(result);
}

/* And how much of all is done by then. */
void verify_say_mesh(Verify *run, int i, const VerifyMeshSummary *summary) {
    char name[128], mesh[64], words[64];
    const VerifyCase *layout = &run->cases[i];
    snprintf(name, sizeof name, "%s: %d layouts", verify_mesh_name(&layout->shape, mesh, sizeof mesh),
             summary->n_cases);
    snprintf(words, sizeof words, "%d differ  %3d %%", summary->n_differ,
             (int)(100L * (i + 1) / run->n_cases));
    say_line(run, name, summary->loss, summary->weight, summary->seconds, words);
}

void verify_show_progress(Verify *run, int i) {
    char name[VERIFY_NAME_BYTES], text[256];
    if (!progress_due(&run->progress)) return;
    snprintf(text, sizeof text, "%d/%d  %d differ  %s", i, run->n_cases, run->n_differ,
             verify_case_name(&run->choice, &run->cases[i], name, sizeof name));
    progress_update(&run->progress, (double)i / run->n_cases, text);
}

void verify_say_beginning(const Verify *run) {
    char text[256];
    const ModelConfig *model = &run->values.model;
    printf("%s\n", launch_describe(run->launch, run->backend.n_threads, text, sizeof text));
    printf("%d layouts, each with %lld steps of %lld x %lld tokens, %lld channels", run->n_cases,
           (long long)run->values.call.n_steps, (long long)run->values.call.batch, (long long)model->context,
           (long long)model->n_channels);
    if (!run->choice.varies_layers) printf(", %lld layers", (long long)model->n_layers);
    printf("; compared with one process\n\n%-*s %8s %8s %9s\n", NAME_COLUMNS,
           run->has_lines ? "layout" : "mesh", "loss", "weights", "time");
    fflush(stdout);
}

void verify_say_end(const Verify *run) {
    char text[256];
    if (backend_has_own_memory(&run->backend))
        printf("\non %s, sums over ranks by %s", device_describe(&run->backend, text, sizeof text),
               run->transport);
    printf("\n%d layouts in %s, %d differ (tolerance %g of the loss, %g of a tensor's largest weight)\n",
           run->n_cases, format_duration(run->seconds).text, run->n_differ, run->verifier.options.tolerance,
           run->verifier.options.weight_tolerance);
}

Status verify_print_json(const Verify *run, Error *failure, Error *error) {
    json_t *object = json_object();
    json_object_set_new(object, "command", json_string("verify"));
    json_object_set_new(object, "ranks", json_integer(run->launch->world.size));
    json_object_set_new(object, "layouts", json_integer(run->n_cases));
    json_object_set_new(object, "differ", json_integer(run->n_differ));
    json_object_set_new(object, "carrier", json_string(run->transport));
    json_object_set_new(object, "loss_deviation", json_make_number(run->loss_deviation));
    json_object_set_new(object, "norm_deviation", json_make_number(run->norm_deviation));
    json_object_set_new(object, "weight_deviation", json_make_number(run->weight_deviation));
    json_object_set_new(object, "tolerance", json_make_number(run->verifier.options.tolerance));
    json_object_set_new(object, "weight_tolerance", json_make_number(run->verifier.options.weight_tolerance));
    json_object_set_new(object, "seconds", json_make_number(run->seconds));
    if (failure->status != STATUS_OK) error_add_json(failure, object);
    return json_print(stdout, object, error);
}
