/* pgpt train --resume: what the run was, and what this call makes of it.
 *
 * The run's config.ini says how it was trained; its newest manifest says what it is: architecture, seed,
 * optimizer. The two are put together in a table of options of their own, the record, in which a config.ini
 * that was edited into another model is found. What this call gives (command line, FILE.ini) is then compared
 * with the record, option by option. One that is OPTION_FIXED cannot change, any other may: it is said when
 * the run goes on, and config.ini is written again with it, so that the next resume keeps it. Everything that
 * is not given is the record's.
 *
 * Data is what it says, not where it lies: another path to the same text is no change. */
#include "job/train_run.h"

#include "base/options/options_text.h"
#include "run/resume.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 0 in one of the model's sizes asks for nothing: it is to be filled in. */
static bool asks_for_nothing(const Options *options, int index) {
    const OptionGroup *group = NULL;
    const OptionSpec *spec = options_spec(options->command, index, &group);
    return group && group->specs == model_option_specs && spec->type == OPTION_TYPE_INT &&
           strcmp(options->asked[index], "0") == 0;
}

/* ---- the record */

/* What the manifest says of an option goes before what config.ini says, which must not contradict it. */
static Status set_recorded(Options *record, const char *run, const char *name, const char *text,
                           Error *error) {
    int index = options_find(record->command, name);
    const char *asked = record->asked[index];
    if (record->sources[index] == OPTION_FROM_RUN && !asks_for_nothing(record, index)) {
        if (strcmp(asked, text) == 0) return STATUS_OK;
        return error_user(
            error,
            "%s/config.ini says %s = %.80s, but the run's checkpoint has %.80s; set it back to go on, or "
            "begin a new run",
            run, name, asked, text);
    }
    options_reset(record, name);
    return options_set(record, name, text, OPTION_FROM_RUN_DEFAULT, error);
}

static Status take_manifest(Options *record, const char *run, const Manifest *manifest, Error *error) {
    Arena *arena = &record->arena;
    for (const OptionSpec *spec = model_option_specs; spec->name; spec++) {
        const void *field = (const char *)&manifest->config + spec->offset;
        if (spec->flags & OPTION_FIXED)
            TRY(set_recorded(record, run, spec->name, option_value_text(spec, field, arena), error));
    }
    TRY(set_recorded(record, run, "seed", arena_printf(arena, "%lld", (long long)manifest->state.seed),
                     error));
    return set_recorded(record, run, "optimizer", manifest->state.optimizer, error);
}

/* The run as it was. A model that was converted has no run to go on with, which is said when its checkpoint
 * is opened. */
static Status read_record(TrainRun *run, Options *record, Error *error) {
    const char *folder = run->values.train.resume;
    Manifest manifest;
    bool found;
    TRY(options_read_record(record, arena_printf(&record->arena, "%s/config.ini", folder), error));
    options_reset(record, "dp"); /* how many ranks there are is this launch's matter, not the run's */
    TRY(resume_manifest(folder, &record->arena, &manifest, &found, error));
    if (found && strcmp(manifest.state.optimizer, "none") != 0) {
        TRY(take_manifest(record, folder, &manifest, error));
        run->resumed.n_done = manifest.state.step;
        run->resumed.n_tokens = manifest.state.n_tokens;
    }
    /* For what an older record does not have; its model may have a name of its own. */
    Error unknown = {0};
    config_apply_preset(record, ((const TrainCommand *)record->values)->model.preset, &unknown);
    return STATUS_OK;
}

/* ---- what this call changes */

/* A path may have been written in another way. */
static bool is_same_path(const char *a, const char *b) {
    char *real_a = realpath(a, NULL), *real_b = realpath(b, NULL);
    bool is_same = real_a && real_b && strcmp(real_a, real_b) == 0;
    free(real_a);
    free(real_b);
    return is_same;
}

/* "--lr 0.0001", "--no-bias". */
static const char *option_words(const OptionSpec *spec, const char *text, Arena *arena) {
    if (spec->type == OPTION_TYPE_BOOL)
        return arena_printf(arena, "--%s%s", strcmp(text, "true") == 0 ? "" : "no-", spec->name);
    return arena_printf(arena, "--%s %.200s", spec->name, *text ? text : "\"\"");
}

static Status check_fixed(Options *options, int index, const char *was, Error *error) {
    const OptionSpec *spec = options_spec(options->command, index, NULL);
    const char *asked = options->asked[index], *given = option_words(spec, asked, &options->arena);
    if (strcmp(spec->name, "init") == 0 && is_same_path(asked, was)) return STATUS_OK;
    if (asks_for_nothing(options, index)) return STATUS_OK; /* it is compared when it is filled in */
    if (options->sources[index] == OPTION_FROM_FILE)
        given = arena_printf(&options->arena, "%s = %.200s", spec->name, asked);
    return error_user(
        error,
        "%s cannot be: the run has %s, and keeps it for its life; leave it out to go on, or begin a "
        "new run",
        given, option_words(spec, was, &options->arena));
}

static const char *recorded(const Options *record, const char *name) {
    return record->asked[options_find(record->command, name)];
}

/* "--lr 0.0001 instead of 0.0003": of --steps and --epochs, one takes the place of the other. */
static const char *describe_change(TrainRun *run, int index, const Options *record) {
    const OptionSpec *spec = options_spec(run->options.command, index, NULL);
    const TrainOptions *was = &((const TrainCommand *)record->values)->train;
    const char *before = record->asked[index], *of = "";
    if (strcmp(spec->name, "steps") == 0 && was->n_epochs > 0.0) {
        of = "--epochs ";
        before = recorded(record, "epochs");
    } else if (strcmp(spec->name, "epochs") == 0 && was->n_epochs <= 0.0) {
        of = "--steps ";
        before = recorded(record, "steps");
    }
    Arena *arena = &run->options.arena;
    const char *given = option_words(spec, run->options.asked[index], arena);
    if (spec->type == OPTION_TYPE_BOOL) return arena_printf(arena, "%s", given);
    return arena_printf(arena, "%s instead of %s%.200s", given, of, *before ? before : "none");
}

static void add_change(TrainRun *run, const char *text) {
    const char *before = run->resumed.changes ? run->resumed.changes : "";
    run->resumed.changes = arena_printf(&run->options.arena, "%s%s%s", before, *before ? ", " : "", text);
}

/* --steps count where the run had --epochs, were they as many as the default. */
static bool is_instead_of_epochs(const Options *options, const OptionSpec *spec, const Options *record) {
    return strcmp(spec->name, "steps") == 0 && ((const TrainCommand *)record->values)->train.n_epochs > 0.0 &&
           options_source(options, "steps") > options_source(options, "epochs");
}

static int64_t n_virtual_stages(const ParallelOptions *parallel) {
    int64_t n_chunks = parallel->n_chunks;
    return parallel->size[AXIS_PP] *
           (n_chunks ? n_chunks : schedule_info((ScheduleKind)parallel->schedule)->default_chunks);
}

/* Does this call give it, so that it is settled? */
static bool gives(const TrainRun *run, const char *name) {
    return options_source(&run->options, name) >= OPTION_FROM_FILE;
}

/* Was it said of a pipeline that this call makes another? Chunks go with their schedule, and the blocks of
 * each stage with the number of stages. --pp, --schedule and --chunks are settled before --stages. */
static bool is_of_other_pipeline(const TrainRun *run, const char *name, const Options *record) {
    const ParallelOptions *was = &((const TrainCommand *)record->values)->parallel,
                          *now = &run->values.parallel;
    bool says_of_all =
        gives(run, "recompute") || (gives(run, "recompute-blocks") && run->values.train.recompute_blocks);
    if (strcmp(name, "recompute-stages") == 0 && *was->recompute && says_of_all) return true;
    if (now->size[AXIS_PP] == 1) return false; /* there is none, and it waits for the next */
    if (strcmp(name, "chunks") == 0) {
        int n_chunks = schedule_info((ScheduleKind)now->schedule)->default_chunks;
        return was->n_chunks > 0 && now->schedule != was->schedule && was->n_chunks != n_chunks;
    }
    if (strcmp(name, "recompute-stages") == 0)
        return *was->recompute && now->size[AXIS_PP] != was->size[AXIS_PP];
    return strcmp(name, "stages") == 0 && *was->stages && n_virtual_stages(now) != n_virtual_stages(was);
}

/* Does it exclude something that this call gives? Nobody can leave out what was given to another call. */
static bool is_excluded(const TrainRun *run, const char *name, const Options *record) {
    const TrainCommand *was = record->values, *now = &run->values;
    if (strcmp(name, "recompute") == 0)
        return (was->train.recompute != 0 && gives(run, "recompute-stages")) ||
               (was->train.recompute > 0 && gives(run, "recompute-blocks") && now->train.recompute_blocks);
    if (strcmp(name, "recompute-blocks") == 0)
        return was->train.recompute_blocks &&
               (gives(run, "recompute-stages") || (gives(run, "recompute") && now->train.recompute > 0));
    if (strcmp(name, "tp-chunks") == 0)
        return was->parallel.tensor_chunks > 1 &&
               ((gives(run, "pp") && now->parallel.size[AXIS_PP] > 1) ||
                (gives(run, "tp-style") && now->parallel.tensor_style == TENSOR_ROW));
    if (strcmp(name, "clip-style") != 0 || was->optimizer.clip_style != CLIP_CHECK) return false;
    return (gives(run, "clip") && now->optimizer.clip <= 0.0) ||
           (gives(run, "schedule") && schedule_info((ScheduleKind)now->parallel.schedule)->is_asynchronous);
}

/* One option that is not transient: taken from the record, or compared with it. */
static Status settle_option(TrainRun *run, int index, const Options *record, Error *error) {
    Options *options = &run->options;
    const OptionSpec *spec = options_spec(options->command, index, NULL);
    const char *was = record->asked[index];
    bool is_given = options->sources[index] >= OPTION_FROM_FILE;
    if (!is_given &&
        (is_of_other_pipeline(run, spec->name, record) || is_excluded(run, spec->name, record))) {
        run->resumed.is_changed = true;
        add_change(
            run, arena_printf(&options->arena, "--%s as is the default instead of %.200s", spec->name, was));
        return STATUS_OK;
    }
    if (!is_given) return options_set(options, spec->name, was, record->sources[index], error);
    if (strcmp(options->asked[index], was) == 0 && !is_instead_of_epochs(options, spec, record))
        return STATUS_OK;
    if (spec->flags & OPTION_FIXED) return check_fixed(options, index, was, error);
    if (strcmp(spec->name, "dp") == 0) return STATUS_OK; /* of this launch */
    run->resumed.is_changed = true;
    if (strcmp(spec->name, "tokenizer") == 0) return STATUS_OK; /* it is compared when it is opened */
    bool is_data = strcmp(spec->name, "data") == 0;
    if (is_data) run->resumed.data_change = describe_change(run, index, record);
    else add_change(run, describe_change(run, index, record));
    run->resumed.cuts_otherwise |=
        strcmp(spec->name, "validation") == 0 || strcmp(spec->name, "sequence") == 0;
    return STATUS_OK;
}

Status train_resume_options(TrainRun *run, Error *error) {
    TrainCommand values;
    Options record;
    if (options_source(&run->options, "dp") != OPTION_FROM_COMMAND) options_reset(&run->options, "dp");
    TRY(options_init(&record, &train_command, &values, error));
    read_record(run, &record, error);
    for (int i = 0; i < record.n_options && error->status == STATUS_OK; i++) {
        if (!(options_spec(&train_command, i, NULL)->flags & OPTION_TRANSIENT))
            settle_option(run, i, &record, error);
    }
    options_free(&record);
    return error->status;
}

/* ---- when it goes on */

Status train_resume_record(TrainRun *run, Error *error) {
    long long n_done = (long long)run->trainer.n_done;
    const char *data = run->resumed.data_change;
    if (run->launch->world.rank != 0) return STATUS_OK;
    if (run->trainer.has_other_data && data) add_change(run, data);
    else if (run->trainer.has_other_data && !run->resumed.cuts_otherwise)
        log_warning(&run->log,
                    "the text is not the one that this run was trained on; going on with the new one");
    const char *changes = run->resumed.changes;
    if (changes) log_note(&run->log, "%s from step %lld on", changes, n_done);
    if (!run->resumed.is_changed || !run->values.train.saves) return STATUS_OK; /* then nothing comes of it */
    Arena *arena = &run->options.arena;
    return options_save_change(&run->options, arena_printf(arena, "%s/config.ini", run->run),
                               changes ? arena_printf(arena, "from step %lld on: %s", n_done, changes) : "",
                               error);
}
