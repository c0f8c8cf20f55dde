/* A save is two parts: taking the state and writing it. Only the first must keep training waiting, so the
 * state is copied into buffers of the host that were planned and allocated with everything else, and a thread
 * writes from there. The copies double the memory of weights and moments; who cannot spare it saves in the
 * foreground, where the state is read in small pieces as it is written. Either way bytes are taken as they
 * are: what has 16 bits keeps them.
 *
 * The thread lives for one save. It shares nothing with the trainer but the Saver, and that in turns: the
 * trainer fills it in before the thread begins and looks at it after the thread has been joined. The one
 * thing looked at in between is `is_done`, so that a poll after each step costs a load and a failure does not
 * wait for the next save.
 *
 * All signals are blocked in the thread: they are the trainer's to answer.
 *
 * Of several ranks each has its thread, and the threads agree among each other over a communicator of their
 * own (checkpoint_save), so that a save succeeds or fails everywhere. A rank that cannot take its copy must
 * not stay away, since the others' threads would wait for it for ever: it comes, and says so. */
#include "checkpoint/saver.h"

#include "base/block8.h"
#include "base/system/memory.h"
#include "checkpoint/checkpoint_together.h"

#include <signal.h>
#include <string.h>

static void plan(Saver *saver, const DType *types, int n_moments, bool in_background) {
    memset(saver, 0, sizeof *saver);
    saver->in_background = in_background;
    saver->n_arrays = 1 + n_moments;
    for (int i = 0; i < saver->n_arrays; i++) saver->type[i] = types[i];
    saver->saved_step = -1;
}

static size_t element_bytes(const Saver *saver, int array) {
    return dtype_info(saver->type[array])->n_bytes;
}

void saver_plan(Saver *saver, const ParameterTable *table, const DType *types, int n_moments,
                bool in_background) {
    plan(saver, types, n_moments, in_background);
    for (int i = 0; i < saver->n_arrays; i++)
        saver->copy_bytes[i] = (size_t)table->n_flat_elements * element_bytes(saver, i);
}

static size_t map_bytes(const Saver *saver, int array, const ShardMap *map) {
    size_t n_elements = 0;
    for (int i = 0; i < map->n_runs; i++) n_elements += (size_t)map->run[i].n;
    return n_elements * element_bytes(saver, array);
}

void saver_plan_parts(Saver *saver, const ShardMap *parameters, const ShardMap *moments, const DType *types,
                      int n_moments, bool in_background) {
    plan(saver, types, n_moments, in_background);
    saver->packs = true;
    for (int i = 0; i < saver->n_arrays; i++) {
        const ShardMap *map = i == 0 ? parameters : moments;
        saver->copy_bytes[i] = map_bytes(saver, i, map);
        saver->most_runs[i] = map->n_runs;
    }
}

void saver_plan_errors(Saver *saver, const ShardMap *owner_error, const ShardMap *error) {
    const ShardMap nothing = {0};
    for (int i = 0; i < 2; i++) {
        const ShardMap *map = i ? error : owner_error ? owner_error : &nothing;
        int array = saver->n_arrays++;
        saver->type[array] = DTYPE_F32;
        saver->copy_bytes[array] = map_bytes(saver, array, map);
        saver->most_runs[array] = map->n_runs;
    }
    saver->n_errors = 2;
}

void saver_plan_basis(Saver *saver, int64_t n_basis) {
    int array = saver->n_arrays++;
    saver->type[array] = DTYPE_F32;
    saver->copy_bytes[array] = (size_t)n_basis * sizeof(float);
    saver->n_errors++;
}

size_t saver_planned_bytes(const Saver *saver) {
    size_t n_bytes = 0;
    for (int i = 0; saver->in_background && i < saver->n_arrays; i++) n_bytes += saver->copy_bytes[i];
    return n_bytes;
}

size_t saver_allocated_bytes(const Saver *saver) {
    size_t n_bytes = 0;
    for (int i = 0; i < saver->n_arrays; i++) n_bytes += saver->copy[i] ? saver->copy_bytes[i] : 0;
    return n_bytes;
}

Status saver_open(Saver *saver, Error *error) {
    for (int i = 0; saver->in_background && i < saver->n_arrays; i++) {
        saver->runs[i] = ARENA_ARRAY(&saver->arena, ShardRun, saver->most_runs[i] + 1);
        TRY(memory_alloc(&saver->copy[i], saver->copy_bytes[i],
                         "the copies that checkpoints are written from", error));
    }
    return STATUS_OK;
}

void saver_close(Saver *saver) {
    Error ignored = {0};
    saver_finish(saver, &ignored);
    for (int i = 0; i < saver->n_arrays; i++) {
        memory_free(saver->copy[i], saver->copy_bytes[i]);
        saver->copy[i] = NULL;
    }
    arena_free(&saver->arena);
}

/* ---- writing */

static CheckpointSource source_of(const Saver *saver) {
    const SaveRequest *request = &saver->request;
    CheckpointSource source = {.config = request->config,
                               .table = request->table,
                               .state = &request->state,
                               .comm = request->comm,
                               .folder = request->folder,
                               .parameters_saved = request->parameters_saved,
                               .moments_saved = request->moments_saved,
                               .owner_error_saved = request->owner_error_saved,
                               .error_saved = request->error_saved,
                               .error_rank = request->error_rank,
                               .n_basis = request->n_basis,
                               .basis_identity = request->basis_identity};
    memcpy(source.type, saver->type, sizeof source.type);
    return source;
}

static void write_and_prune(Saver *saver, const CheckpointSource *source) {
    const SaveRequest *request = &saver->request;
    if (checkpoint_agree(request->comm, &saver->result) != STATUS_OK) return; /* somebody has no copy */
    saver->is_written = checkpoint_save(request->run, source, &saver->result) == STATUS_OK;
    /* The next save begins with rank 0's word, so nobody has to wait for it here. */
    if (!saver->is_written || checkpoint_rank(request->comm) != 0) return;
    checkpoint_prune(request->run, request->state.step, request->keep_last, request->keep_best,
                     &saver->not_removed);
}

static void write_checkpoint(Saver *saver, const CheckpointSource *source) {
    const SaveRequest *request = &saver->request;
    ActivityEntry entry = {.kind = ACTIVITY_FILE, .name = "write checkpoint", .number = request->state.step};
    activity_begin(request->activity, request->track, &entry);
    write_and_prune(saver, source);
    activity_end(request->activity, request->track);
}

/* Moments in 8 bits are saved as what they stand for, in f32: any run can go on from that, and one in 8 bits
 * stores the same again. */
static Status read_packed(const Saver *saver, int array, int64_t first, int64_t n, float *values,
                          Error *error) {
    enum { RECORDS = 256 };
    uint32_t words[RECORDS * BLOCK8_WORDS];
    const SaveRequest *request = &saver->request;
    Block8Kind kind = array == 1 ? BLOCK8_SIGNED : BLOCK8_POSITIVE;
    while (n > 0) {
        int64_t begin = first / BLOCK8_RECORD * BLOCK8_RECORD, end = begin + RECORDS * BLOCK8_RECORD;
        if (end > first + n) end = first + n;
        TRY(executor_download_part(request->executor, request->array[array],
                                   (size_t)block8_words(begin) * sizeof *words,
                                   (size_t)block8_words(end - begin) * sizeof *words, words, error));
        block8_read(words, kind, first - begin, end - first, values);
        values += end - first, n -= end - first, first = end;
    }
    return STATUS_OK;
}

/* Elements of an array of this rank, straight from the device, as they are there. */
static Status read_device(void *context, int array, int64_t first, int64_t n, void *values, Error *error) {
    const Saver *saver = context;
    const SaveRequest *request = &saver->request;
    const Tensor *tensor = request->array[array];
    size_t size = element_bytes(saver, array);
    if (tensor->dtype == DTYPE_I32 && saver->type[array] == DTYPE_F32)
        return read_packed(saver, array, first, n, values, error);
    if (tensor->dtype != saver->type[array])
        return error_failed(error, "the save was planned for numbers of another type");
    return executor_download_part(request->executor, tensor, (size_t)first * size, (size_t)n * size, values,
                                  error);
}

static void write_device(Saver *saver) {
    CheckpointSource source = source_of(saver);
    source.read = read_device;
    source.context = saver;
    write_checkpoint(saver, &source);
}

static void *write_copies(void *context) {
    Saver *saver = context;
    CheckpointSource source = source_of(saver);
    source.parameters = saver->copy[0];
    int n_errors = saver->n_errors, n_others = saver->n_arrays - n_errors;
    for (int i = 1; i < n_others; i++) source.moment[i - 1] = saver->copy[i];
    if (n_errors) source.owner_error = saver->copy[n_others];
    if (n_errors) source.error = saver->copy[n_others + 1];
    if (n_errors > 2) source.basis = saver->copy[n_others + 2];
    if (saver->packs) {
        source.parameters_saved = &saver->packed[0];
        source.moments_saved = &saver->packed[n_others > 1];
        if (n_errors) source.owner_error_saved = &saver->packed[n_others];
        if (n_errors) source.error_saved = &saver->packed[n_others + 1];
    }
    write_checkpoint(saver, &source);
    atomic_store(&saver->is_done, true);
    return NULL;
}

/* Old checkpoints that could not be removed are worth a word, once, and no more. */
static void warn(Saver *saver) {
    const char *text = saver->not_removed.text;
    if (saver->not_removed.status == STATUS_OK || strcmp(text, saver->warning) == 0) return;
    snprintf(saver->warning, sizeof saver->warning, "%s", text);
    if (saver->request.log)
        log_warning(saver->request.log, "an old checkpoint stays: %s; the run goes on", text);
}

/* The outcome of the save, as the error of the call that learns of it. */
static Status conclude(Saver *saver, Error *error) {
    int64_t step = saver->request.state.step, before = saver->saved_step;
    if (saver->is_written) saver->saved_step = step;
    warn(saver);
    if (saver->result.status == STATUS_OK || error->status != STATUS_OK) return error->status;
    *error = saver->result;
    if (before < 0)
        return error_prefix(error, "the checkpoint of step %lld was not saved: ", (long long)step);
    return error_prefix(error, "the checkpoint of step %lld was not saved (that of step %lld is there): ",
                        (long long)step, (long long)before);
}

/* ---- the thread */

static bool start_thread(Saver *saver) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    saver->is_under_way = pthread_create(&saver->thread, NULL, write_copies, saver) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return saver->is_under_way;
}

Status saver_finish(Saver *saver, Error *error) {
    if (!saver->is_under_way) return error->status;
    pthread_join(saver->thread, NULL);
    saver->is_under_way = false;
    return conclude(saver, error);
}

Status saver_poll(Saver *saver, Error *error) {
    if (!saver->is_under_way || !atomic_load(&saver->is_done)) return error->status;
    if (checkpoint_n_ranks(saver->request.comm) > 1) return error->status;
    return saver_finish(saver, error);
}

/* Wait for the save before this one and take the request; false if there is nothing to do or no way to do
 * it. */
static bool begin(Saver *saver, const SaveRequest *request, Error *error) {
    if (saver_finish(saver, error) != STATUS_OK || saver->saved_step == request->state.step) return false;
    saver->request = *request;
    saver->result = saver->not_removed = (Error){0};
    saver->is_written = false;
    atomic_store(&saver->is_done, false);
    return true;
}

Status saver_save_now(Saver *saver, const SaveRequest *request, Error *error) {
    if (!begin(saver, request, error)) return error->status;
    write_device(saver);
    return conclude(saver, error);
}

/* Does what carries the ranks' words allow it to a second thread? */
static bool may_use_thread(const Comm *comm) {
    return checkpoint_n_ranks(comm) == 1 || comm->table->is_threaded(comm->context);
}

/* Copy what the map has, one run behind the other, and note where each lies. */
static Status take_packed(Saver *saver, int array, const ShardMap *map, Error *error) {
    ShardRun *runs = saver->runs[array];
    if (!map || map->n_runs > saver->most_runs[array] ||
        map_bytes(saver, array, map) > saver->copy_bytes[array])
        return error_failed(error, "more is to be saved than was planned");
    saver->packed[array] = (ShardMap){.n_runs = map->n_runs, .run = runs};
    for (int i = 0; i < map->n_runs; i++) {
        int64_t at = saver->packed[array].n_local, n = map->run[i].n;
        runs[i] = (ShardRun){.flat_first = map->run[i].flat_first, .n = n, .local_first = at};
        saver->packed[array].n_local += n;
        char *to = (char *)saver->copy[array] + (size_t)at * element_bytes(saver, array);
        TRY(read_device(saver, array, map->run[i].local_first, n, to, error));
    }
    return STATUS_OK;
}

/* What is saved of an array. */
static const ShardMap *map_of(const Saver *saver, int array) {
    const SaveRequest *request = &saver->request;
    static const ShardMap nothing = {0};
    if (array == 0) return request->parameters_saved;
    int behind = array - (saver->n_arrays - saver->n_errors);
    if (behind < 0) return request->moments_saved;
    if (behind == 1) return request->error_saved;
    return request->owner_error_saved ? request->owner_error_saved : &nothing;
}

static Status take_copy(Saver *saver, int array, Error *error) {
    const SaveRequest *request = &saver->request;
    if (saver->n_errors > 2 && array == saver->n_arrays - 1)
        return read_device(saver, array, 0, request->n_basis, saver->copy[array], error);
    if (!saver->packs)
        return read_device(saver, array, 0, tensor_count(request->array[array]), saver->copy[array], error);
    return take_packed(saver, array, map_of(saver, array), error);
}

Status saver_save(Saver *saver, const SaveRequest *request, Error *error) {
    if (!saver->in_background || !may_use_thread(request->comm)) return saver_save_now(saver, request, error);
    if (!begin(saver, request, error)) return error->status;
    for (int i = 0; i < saver->n_arrays && saver->result.status == STATUS_OK; i++)
        take_copy(saver, i, &saver->result);
    if (saver->result.status != STATUS_OK && checkpoint_n_ranks(request->comm) == 1) {
        *error = saver->result;
        return error->status;
    }
    if (start_thread(saver)) return STATUS_OK;
    write_copies(saver); /* the system has no thread to spare */
    return conclude(saver, error);
}
