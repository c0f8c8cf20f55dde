/* Samples of all ranks on the first one. A sample travels as a record of fixed size, its bytes, and the
 * tokens that were kept of it; all of a rank's lie one behind the other, in the order of the samples. */
#include "cli/model/generate.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    int64_t n_bytes, n_tokens, n_kept;
    double log_probability;
    int32_t end;
} Record;

static int64_t n_kept(const GenerateSample *sample) {
    return sample->tokens ? sample->n_tokens : 0;
}

static size_t sample_bytes(const GenerateSample *sample) {
    return sizeof(Record) + sample->n_bytes + sizeof *sample->tokens * (size_t)n_kept(sample);
}

static char *put(char *at, const void *bytes, size_t n) {
    if (n) memcpy(at, bytes, n);
    return at + n;
}

/* This rank's samples, from malloc; NULL: no memory. */
static char *pack(const GenerateSamples *set, int64_t *n_bytes) {
    size_t n = 0;
    for (int64_t i = set->share; i < set->n_samples; i += set->n_shares) n += sample_bytes(&set->samples[i]);
    char *packed = malloc(n + 1), *at = packed;
    for (int64_t i = set->share; packed && i < set->n_samples; i += set->n_shares) {
        const GenerateSample *sample = &set->samples[i];
        Record record;
        memset(&record, 0, sizeof record);
        record.n_bytes = (int64_t)sample->n_bytes;
        record.n_tokens = sample->n_tokens;
        record.n_kept = n_kept(sample);
        record.log_probability = sample->log_probability;
        record.end = (int32_t)sample->end;
        at = put(at, &record, sizeof record);
        at = put(at, sample->text, sample->n_bytes);
        at = put(at, sample->tokens, sizeof *sample->tokens * (size_t)record.n_kept);
    }
    *n_bytes = (int64_t)n;
    return packed;
}

static Status take_sample(GenerateSample *sample, const char **at, Error *error) {
    Record record;
    memcpy(&record, *at, sizeof record);
    *at += sizeof record;
    size_t n_bytes = (size_t)record.n_bytes, tokens_bytes = sizeof *sample->tokens * (size_t)record.n_kept;
    sample->text = malloc(n_bytes + 1);
    sample->tokens = record.n_kept ? malloc(tokens_bytes) : NULL;
    if (!sample->text || (record.n_kept && !sample->tokens))
        return error_failed(error, "out of memory: no room for a text of %zu bytes", n_bytes);
    memcpy(sample->text, *at, n_bytes);
    if (sample->tokens) memcpy(sample->tokens, *at + n_bytes, tokens_bytes);
    *at += n_bytes + tokens_bytes;
    sample->n_bytes = sample->capacity = n_bytes;
    sample->n_tokens = record.n_tokens;
    sample->log_probability = record.log_probability;
    sample->end = (GenerateEnd)record.end;
    return STATUS_OK;
}

/* Those of the other ranks; the root's are where they were made. */
static Status unpack(GenerateSamples *set, const char *all, const int64_t *border, Error *error) {
    for (int64_t share = 1; share < set->n_shares && all; share++) {
        const char *at = all + border[share];
        for (int64_t i = share; i < set->n_samples; i += set->n_shares)
            TRY(take_sample(&set->samples[i], &at, error));
    }
    return STATUS_OK;
}

static Status count_all(GenerateSamples *set, Comm *comm, Error *error) {
    int64_t count[] = {set->n_made, set->n_read, set->was_interrupted};
    TRY(comm_all_reduce(comm, count, 3, COMM_I64, COMM_SUM, error));
    set->n_made = count[0];
    set->n_read = count[1];
    set->was_interrupted = count[2] > 0;
    return STATUS_OK;
}

Status generate_samples_gather(GenerateSamples *set, Comm *comm, Error *error) {
    if (comm->size == 1) return STATUS_OK;
    int64_t n_mine = 0, *border = calloc((size_t)comm->size + 1, sizeof *border);
    char *mine = pack(set, &n_mine), *all = NULL;
    if (!mine || !border) {
        error_failed(error, "no memory for the samples of a rank");
        goto done;
    }
    border[comm->rank + 1] = n_mine;
    TRY_GOTO(count_all(set, comm, error), done);
    TRY_GOTO(comm_all_reduce(comm, border, comm->size + 1, COMM_I64, COMM_SUM, error), done);
    for (int r = 0; r < comm->size; r++) border[r + 1] += border[r];
    if (comm->rank == 0 && !(all = malloc((size_t)border[comm->size] + 1))) {
        error_failed(error, "no memory for the samples of all ranks");
        goto done;
    }
    TRY_GOTO(comm_gather(comm, all, border, mine, n_mine, COMM_U8, 0, error), done);
    if (comm->rank == 0) unpack(set, all, border, error);
done:
    free(mine);
    free(all);
    free(border);
    return error->status;
}
