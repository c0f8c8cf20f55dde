/* pgpt data prepare. */
#include "cli/data/data.h"

#include "base/system/memory.h"
#include "base/system/timer.h"
#include "base/text/format.h"
#include "base/text/plain.h"
#include "data/shards/prepare.h"

#include <stdlib.h>
#include <string.h>

static Status check(const DataCall *call, Error *error) {
    if (!*call->values->tokenizer) {
        return error_user(error, "--tokenizer is missing; give a kind (%s), or a tokenizer's file or folder",
                          tokenizer_kinds());
    }
    if (!*call->values->out) return error_user(error, "--out is missing; name the folder to be made");
    return STATUS_OK;
}

/* Opened again as a training run would, which is the best check of what was written. */
static Status report(DataCall *call, double seconds, Error *error) {
    ShardSet set;
    TRY(shard_set_open(call->values->out, &set, error));
    double n_tokens = (double)set.n_tokens;
    log_note(&call->log,
             "%s: %s tokens (%.2f bytes each) of %s documents in %s, %s held out; %s in %s; learn from it: "
             "pgpt train --data %s",
             set.folder, format_count(n_tokens).text, (double)set.n_text_bytes / n_tokens,
             format_count((double)set.n_documents).text, format_things((int64_t)set.n_shards, "file").text,
             format_count((double)(set.n_tokens - set.validation_start)).text,
             format_bytes(set.n_text_bytes).text, format_duration(seconds).text, shell_path(set.folder).text);
    if (call->values->json) {
        json_t *object = json_object();
        json_object_set_new(object, "command", json_string("data prepare"));
        json_object_set_new(object, "tokens", json_integer((json_int_t)set.n_tokens));
        json_object_set_new(object, "validation_tokens",
                            json_integer((json_int_t)(set.n_tokens - set.validation_start)));
        json_object_set_new(object, "documents", json_integer((json_int_t)set.n_documents));
        json_object_set_new(object, "bytes", json_integer((json_int_t)set.n_text_bytes));
        json_object_set_new(object, "bytes_per_token", json_make_number((double)set.n_text_bytes / n_tokens));
        json_object_set_new(object, "shards", json_integer((json_int_t)set.n_shards));
        json_object_set_new(object, "token_bytes", json_integer((json_int_t)set.token_bytes));
        json_object_set_new(object, "tokenizer", json_make_text(set.tokenizer_kind));
        json_object_set_new(object, "vocabulary", json_integer((json_int_t)set.n_vocabulary));
        json_object_set_new(object, "seconds", json_make_number(seconds));
        json_object_set_new(object, "peak_bytes", json_integer((json_int_t)memory_resident_peak_bytes()));
        json_object_set_new(object, "out", json_make_text(set.folder));
        json_print(stdout, object, error);
    }
    shard_set_close(&set);
    return error->status;
}

static Status prepare(DataCall *call, InputList *list, Error *error) {
    const DataValues *values = call->values;
    const char *scratch = getenv("TMPDIR");
    Tokenizer *tokenizer = NULL;
    if (prepare_learns(values->tokenizer)) { /* then the text is read twice */
        TRY(input_list_make_rereadable(list, scratch && *scratch ? scratch : "/tmp", error));
    }
    TRY(prepare_tokenizer(values->tokenizer, (int)values->max_vocabulary, list, &tokenizer, error));
    PrepareOptions options = {.folder = values->out,
                              .validation_fraction = values->validation_fraction,
                              .shard_tokens = (uint64_t)values->shard_tokens,
                              .n_threads = (int)values->n_threads,
                              .progress = data_progress(call)};
    prepare_shards(list, tokenizer, &options, error);
    data_progress_end(call);
    tokenizer_free(tokenizer);
    return error->status;
}

Status data_prepare(DataCall *call, Error *error) {
    uint64_t start = timer_now_ns();
    InputList list;
    TRY(check(call, error));
    TRY(data_open_inputs(call, &list, error));
    prepare(call, &list, error);
    input_list_close(&list);
    TRY(error->status);
    return report(call, timer_seconds_since(start), error);
}
