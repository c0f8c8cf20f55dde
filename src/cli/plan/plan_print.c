/* Four tables: what ranks hold, what is computed, what is sent, where the time goes; then the sum of it. */
#include "cli/plan/plan_print.h"

#include "base/text/format.h"
#include "base/text/plain.h"
#include "device/device.h"
#include "graph/passes/recompute.h"
#include "job/plan_ranks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Words */

static FormatText days(double seconds) {
    FormatText text;
    if (seconds < 86400.0) return format_duration(seconds);
    snprintf(text.text, sizeof text.text, "%.*f days", seconds < 864e4 ? 1 : 0, seconds / 86400.0);
    return text;
}

static FormatText milliseconds(double seconds) {
    FormatText text;
    double ms = seconds * 1e3;
    snprintf(text.text, sizeof text.text, "%.*f ms", ms >= 100.0 ? 0 : ms >= 1.0 ? 1 : 3, ms);
    return text;
}

/* Of an operation along some axes: by all ranks together. */
typedef struct {
    double n_operations;
    SentCount sent;
} AllSent;

static AllSent sent_by_all(const PlanFigures *figures, int axes, int kind) {
    AllSent all = {0};
    for (int i = 0; i < figures->n_ranks_built; i++) {
        const RankFigures *rank = &figures->rank[i];
        all.n_operations += rank->n_alike * rank->sent.n_operations[axes][kind];
        all.sent.n_messages += rank->n_alike * rank->sent.axis[axes][kind].n_messages;
        all.sent.n_bytes += rank->n_alike * rank->sent.axis[axes][kind].n_bytes;
    }
    return all;
}

/* ---- What it is */

static void print_offload(const Offload *offload) {
    char text[640];
    if (!offload_is_on(offload)) return;
    printf(", offload %s", offload_text(offload, text, sizeof text));
    if (offload->share > 0.0) printf(", %.0f %% of it stays", 100.0 * offload->share);
}

static void print_run(const PlanRun *plan, const PlanFigures *figures) {
    const TrainCommand *values = &plan->train.values;
    const Machine *machine = &plan->machine.machine;
    const MeshShape *shape = &plan->train.shape;
    int n_ranks = mesh_n_ranks(shape), a_host = figures->links.ranks_a_host;
    printf("model %s: %s parameters, %lld layers, %lld heads, %lld channels, %lld tokens of vocabulary\n",
           values->model.preset, format_count((double)figures->n_parameters).text,
           (long long)values->model.n_layers, (long long)values->model.n_heads,
           (long long)values->model.n_channels, (long long)values->model.vocabulary);
    printf("machine %s (%s): %s, %s of %d", plain(machine->device.name).text,
           plain(machine->device.source).text, format_things(n_ranks, "rank").text,
           format_things((n_ranks + a_host - 1) / a_host, "host").text, a_host);
    for (int axis = 0; axis < N_AXES; axis++)
        if (shape->size[axis] > 1) printf(", %s %d", axis_name((Axis)axis), shape->size[axis]);
    printf("\nstep: %lld sequences of %lld tokens in %s", (long long)values->train.batch,
           (long long)values->train.sequence, precision_names[values->train.precision]);
    int m = figures->schedule.shape.n_micro_batches;
    printf(", %s of up to %lld a rank", format_things(m, "micro-batch").text,
           (long long)values->train.micro_batch);
    if (shape->size[AXIS_PP] > 1)
        printf(", schedule %s in %s a stage", schedule_info(figures->schedule.kind)->name,
               format_things(figures->schedule.shape.n_chunks, "chunk").text);
    if (values->parallel.zero) printf(", ZeRO %lld", (long long)values->parallel.zero);
    print_offload(&figures->rank[figures->most].offload);
    if (values->train.recompute == RECOMPUTE_SELECTIVE) printf(", selective recomputation");
    else if (values->train.recompute == 1) printf(", of each block its input kept");
    else if (values->train.recompute)
        printf(", of each %lld blocks the first one's input kept", (long long)values->train.recompute);
    if (values->train.recompute_blocks)
        printf(", the first %s of a chunk recomputed",
               format_things(values->train.recompute_blocks, "block").text);
    printf("\n");
}

/* ---- Memory */

static PlanSums sums_of(const RankFigures *rank) {
    PlanFigures one = {.rank = (RankFigures[]){*rank}, .n_ranks_built = 1};
    one.rank[0].n_alike = 1;
    return plan_sums(&one);
}

static FormatText bytes_of(double n_bytes) {
    return format_bytes((uint64_t)n_bytes);
}

static void print_memory_line(const char *ranks, const char *stage, const char *frames, const PlanSums *of) {
    double state = of->place[PLACE_STATE] + of->place[PLACE_INPUT];
    double beside = of->evaluation + of->samples + of->checkpoint;
    printf("%-12s %4s %10s %10s %10s %10s %6s %10s %10s %10s %12s %10s %10s\n", ranks, stage,
           bytes_of(of->place[PLACE_PARAMETER]).text, bytes_of(of->place[PLACE_GRADIENT]).text,
           bytes_of(of->place[PLACE_OPTIMIZER]).text, bytes_of(of->place[PLACE_ACTIVATION]).text, frames,
           bytes_of(of->place[PLACE_FRAME]).text, bytes_of(state).text, bytes_of(beside).text,
           bytes_of(of->total).text, bytes_of(of->workspace).text, bytes_of(of->messages).text);
}

static void print_rank_memory(const RankFigures *rank) {
    PlanSums sums = sums_of(rank);
    char ranks[32], stage[16], frames[16] = "";
    snprintf(ranks, sizeof ranks, "%d x%d", rank->rank, rank->n_alike);
    snprintf(stage, sizeof stage, "%d", rank->coordinate[AXIS_PP]);
    if (rank->n_frames) snprintf(frames, sizeof frames, "%d x", rank->n_frames);
    print_memory_line(ranks, stage, frames, &sums);
}

/* What a sample on the way takes beside the step may be all that is too much: under ZeRO-3 the whole
 * model. */
static void print_misfit(const PlanFigures *figures) {
    const RankFigures *most = &figures->rank[figures->most];
    uint64_t without = plan_bytes_without_samples(figures);
    if (figures->host_needed > figures->host_usable)
        printf("IT DOES NOT FIT: %s are missing in the memory of a host, which has %s; offload less "
               "(--offload-share), or into a file (:file=DIR)\n",
               format_bytes(figures->host_needed - figures->host_usable).text,
               format_bytes(figures->host_usable).text);
    if (most->total <= figures->usable) return;
    printf("IT DOES NOT FIT: %s are missing on rank %d; ", format_bytes(most->total - figures->usable).text,
           most->rank);
    if (without <= figures->usable)
        printf("without samples on the way, --sample-tokens 0, it does, in %s\n", format_bytes(without).text);
    else printf("--tune looks for layouts that fit, or says about how many devices would do\n");
}

static void print_memory(const PlanFigures *figures) {
    enum { MOST_LINES = 12 };
    printf("\nmemory %-5s %4s %10s %10s %10s %10s %6s %10s %10s %10s %12s %10s %10s\n", "rank", "pp",
           "weights", "gradients", "optimizer", "activation", "", "frames", "state", "beside", "all",
           "(scratch)", "(messages)");
    for (int i = 0; i < figures->n_ranks_built; i++) {
        const RankFigures *rank = &figures->rank[i];
        bool is_shown = i < MOST_LINES - 2 || i == figures->most || i == figures->n_ranks_built - 1;
        if (is_shown) print_rank_memory(rank);
        else if (i == MOST_LINES - 2) printf("...\n");
    }
    if (figures->n_ranks_built > 1) print_memory_line("together", "", "", &figures->sums);
    const RankFigures *most = &figures->rank[figures->most];
    printf("most: rank %d, %s of %s (%.0f %%); all ranks together %s\n", most->rank,
           format_bytes(most->total).text, format_bytes(figures->usable).text,
           100.0 * (double)most->total / (double)figures->usable,
           format_bytes((uint64_t)figures->sums.total).text);
    if (most->host || most->file)
        printf("beside the device, of a rank: %s in the host's memory, %s in files; of all: %s, %s\n",
               format_bytes(most->host).text, format_bytes(most->file).text,
               bytes_of(figures->sums.host).text, bytes_of(figures->sums.file).text);
    if (!figures->fits) print_misfit(figures);
}

/* ---- Work and traffic */

static void print_work(const PlanRun *plan, const PlanFigures *figures) {
    double n_ranks = mesh_n_ranks(&plan->train.shape);
    printf(
        "\nwork of a step: %s by the standard formula (%s with what is computed twice); counted %s, of it %s "
        "computed again\n",
        format_rate(figures->model_flops, "FLOP").text, format_rate(figures->standard_flops, "FLOP").text,
        format_rate(figures->counted_flops, "FLOP").text,
        format_rate(figures->counted_flops - figures->useful_flops, "FLOP").text);
    printf("a rank computes %s on %s moved, in %d instructions a micro-batch and update",
           format_rate(figures->counted_flops / n_ranks, "FLOP").text,
           bytes_of(figures->sums.moved / n_ranks).text, figures->rank[0].n_instructions);
    if (n_ranks > 1.0) printf("; all move %s", bytes_of(figures->sums.moved).text);
    printf("\n");
}

static void print_traffic(const PlanRun *plan, const PlanFigures *figures) {
    char text[TRAFFIC_TEXT];
    const RankFigures *rank = &figures->rank[figures->times.busiest];
    if (mesh_n_ranks(&plan->train.shape) == 1) return;
    printf("\n%-8s %-14s %10s %12s %12s %14s\n", "sent", "operation", "times", "messages", "of a rank",
           "of all");
    for (int axes = 1; axes < N_TRAFFIC_AXES; axes++) {
        for (int kind = 0; kind < N_TRAFFIC_KINDS; kind++) {
            const SentCount *sent = &rank->sent.axis[axes][kind];
            AllSent all = sent_by_all(figures, axes, kind);
            if (all.n_operations <= 0.0) continue;
            printf("%-8s %-14s %10.0f %12.0f %12s %14s\n", traffic_axes_name(axes, text),
                   traffic_kind_name(kind), rank->sent.n_operations[axes][kind], sent->n_messages,
                   format_bytes((uint64_t)sent->n_bytes).text, bytes_of(all.sent.n_bytes).text);
        }
    }
    for (int link = 0; link < N_LINKS; link++) {
        const SentCount *sent = &rank->sent.link[link];
        if (figures->sums.link[link].n_messages > 0.0)
            printf("%s: %.0f messages and %s of a rank, %.0f and %s of all\n", link_name((LinkKind)link),
                   sent->n_messages, bytes_of(sent->n_bytes).text, figures->sums.link[link].n_messages,
                   bytes_of(figures->sums.link[link].n_bytes).text);
    }
}

/* ---- Time */

/* "GEMMs 61 %, memory 20 %": what takes at least a twentieth. */
static void print_bounds(const PartTime *phase) {
    bool is_first = true;
    for (int round = 0; round < N_BOUNDS + 1; round++) {
        double part = round < N_BOUNDS ? phase->bound[round] : phase->waited;
        if (phase->seconds <= 0.0 || part < 0.05 * phase->seconds) continue;
        printf("%s%s %.0f %%", is_first ? "" : ", ",
               round < N_BOUNDS ? bound_name((NodeBound)round) : "waits for messages",
               100.0 * part / phase->seconds);
        is_first = false;
    }
    printf("\n");
}

static void print_time(const PlanRun *plan, const PlanFigures *figures) {
    static const char *const names[] = {"forward", "backward", "update"};
    const StepTimes *times = &figures->times;
    bool has_stages = plan->train.shape.size[AXIS_PP] > 1;
    printf("\ntime of a step: %s\n", milliseconds(times->seconds).text);
    for (int i = PHASE_FORWARD; i <= PHASE_UPDATE; i++) {
        printf("  %-9s %10s  %3.0f %%  ", names[i], milliseconds(times->phase[i].seconds).text,
               100.0 * times->phase[i].seconds / times->seconds);
        print_bounds(&times->phase[i]);
    }
    if (has_stages) {
        const CriticalPath *path = &times->path;
        printf(
            "  %-9s %10s  %3.0f %%  the mean of all stages; the phases are those of stage %d, which has most to do\n",
            "bubble", milliseconds(times->bubble).text, 100.0 * times->bubble / times->seconds,
            times->busiest);
        printf(
            "  critical path: forward %s, backward %s, update %s, messages between stages %s; %s, %.0f %% of it "
            "on stage %d\n",
            milliseconds(path->forward).text, milliseconds(path->backward).text,
            milliseconds(path->update).text, milliseconds(path->messages).text,
            format_things(path->n_actions, "action").text, 100.0 * path->stage_seconds / times->seconds,
            path->stage);
    }
    double waited = 0.0, sent = 0.0;
    for (int i = 0; i < N_PHASES; i++) waited += times->phase[i].waited, sent += times->phase[i].sent;
    if (sent > 0.0)
        printf("  messages are under way for %s, %s of it waited for (%.0f %% hidden)\n",
               milliseconds(sent).text, milliseconds(waited).text, 100.0 * fmax(0.0, 1.0 - waited / sent));
}

static FormatText energy(double joules) {
    static const char *const units[] = {"Wh", "kWh", "MWh", "GWh"};
    FormatText text;
    double value = joules / 3600.0;
    int unit = 0;
    for (; unit < 3 && value >= 1000.0; unit++) value /= 1000.0;
    snprintf(text.text, sizeof text.text, "%.3g %s", value, units[unit]);
    return text;
}

static void print_end(const PlanRun *plan, const PlanFigures *figures) {
    double n_ranks = mesh_n_ranks(&plan->train.shape);
    printf("\n%s tokens/s; %s a device by the standard formula; MFU %.1f %%, HFU %.1f %% (counted)\n",
           format_count(figures->tokens_per_s).text,
           format_rate(figures->standard_flops / figures->times.seconds / n_ranks, "FLOP/s").text,
           100.0 * figures->mfu, 100.0 * figures->hfu);
    printf("%s tokens take %s", format_count(figures->n_run_tokens).text, days(figures->run_seconds).text);
    if (figures->joules > 0.0)
        printf(" and %s (%.0f W a device)", energy(figures->joules).text, plan->machine.machine.device.watts);
    printf("\n");
}

void plan_print(const PlanRun *plan, const PlanFigures *figures) {
    print_run(plan, figures);
    print_memory(figures);
    print_work(plan, figures);
    print_traffic(plan, figures);
    print_time(plan, figures);
    print_end(plan, figures);
}

/* ---- JSON */

static void set_bytes(json_t *object, const char *name, size_t n_bytes) {
    json_object_set_new(object, name, json_integer((json_int_t)n_bytes));
}

static json_t *rank_json(const RankFigures *rank) {
    json_t *object = json_object();
    json_object_set_new(object, "rank", json_integer(rank->rank));
    json_object_set_new(object, "alike", json_integer(rank->n_alike));
    for (int axis = 0; axis < N_AXES; axis++)
        json_object_set_new(object, axis_name((Axis)axis), json_integer(rank->coordinate[axis]));
    for (int place = 0; place < N_PLACES; place++)
        set_bytes(object, place_name((Place)place), rank->place[place]);
    json_object_set_new(object, "n_frames", json_integer(rank->n_frames));
    set_bytes(object, "workspace", rank->workspace);
    set_bytes(object, "messages", rank->messages);
    set_bytes(object, "host_bytes", rank->host);
    set_bytes(object, "file_bytes", rank->file);
    set_bytes(object, "evaluation", rank->evaluation);
    set_bytes(object, "samples", rank->samples);
    set_bytes(object, "checkpoint", rank->checkpoint);
    set_bytes(object, "peak_bytes", rank->total);
    json_object_set_new(object, "flops", json_make_number(rank->flops));
    json_object_set_new(object, "moved_bytes", json_make_number(rank->moved));
    json_object_set_new(object, "instructions", json_integer(rank->n_instructions));
    return object;
}

static json_t *sums_json(const PlanSums *sums) {
    json_t *object = json_object();
    for (int place = 0; place < N_PLACES; place++)
        json_object_set_new(object, place_name((Place)place), json_integer((json_int_t)sums->place[place]));
    const struct {
        const char *name;
        double value;
    } others[] = {{"workspace", sums->workspace},   {"messages", sums->messages},
                  {"host_bytes", sums->host},       {"file_bytes", sums->file},
                  {"evaluation", sums->evaluation}, {"samples", sums->samples},
                  {"checkpoint", sums->checkpoint}, {"total_bytes", sums->total}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        json_object_set_new(object, others[i].name, json_integer((json_int_t)others[i].value));
    json_object_set_new(object, "flops", json_make_number(sums->flops));
    json_object_set_new(object, "moved_bytes", json_make_number(sums->moved));
    return object;
}

static json_t *traffic_json(const PlanFigures *figures) {
    json_t *lines = json_array();
    const RankFigures *rank = &figures->rank[figures->times.busiest];
    char text[TRAFFIC_TEXT];
    for (int axes = 1; axes < N_TRAFFIC_AXES; axes++) {
        for (int kind = 0; kind < N_TRAFFIC_KINDS; kind++) {
            AllSent all = sent_by_all(figures, axes, kind);
            if (all.n_operations <= 0.0) continue;
            json_t *line = json_object();
            json_object_set_new(line, "axis", json_string(traffic_axes_name(axes, text)));
            json_object_set_new(line, "operation", json_string(traffic_kind_name(kind)));
            json_object_set_new(line, "times", json_make_number(rank->sent.n_operations[axes][kind]));
            json_object_set_new(line, "messages", json_make_number(rank->sent.axis[axes][kind].n_messages));
            json_object_set_new(line, "rank_bytes", json_make_number(rank->sent.axis[axes][kind].n_bytes));
            json_object_set_new(line, "all_messages", json_make_number(all.sent.n_messages));
            json_object_set_new(line, "bytes", json_make_number(all.sent.n_bytes));
            json_array_append_new(lines, line);
        }
    }
    return lines;
}

static json_t *links_json(const PlanFigures *figures) {
    json_t *lines = json_array();
    const RankFigures *rank = &figures->rank[figures->times.busiest];
    for (int link = 0; link < N_LINKS; link++) {
        json_t *line = json_object();
        json_object_set_new(line, "link", json_string(link_name((LinkKind)link)));
        json_object_set_new(line, "messages", json_make_number(rank->sent.link[link].n_messages));
        json_object_set_new(line, "rank_bytes", json_make_number(rank->sent.link[link].n_bytes));
        json_object_set_new(line, "all_messages", json_make_number(figures->sums.link[link].n_messages));
        json_object_set_new(line, "bytes", json_make_number(figures->sums.link[link].n_bytes));
        json_array_append_new(lines, line);
    }
    return lines;
}

/* What holds up `n` phases together. */
static json_t *bounds_json(const PartTime *phases, int n) {
    json_t *bounds = json_object();
    double waited = 0.0;
    for (int bound = 0; bound < N_BOUNDS; bound++) {
        double seconds = 0.0;
        char name[40];
        for (int i = 0; i < n; i++) seconds += phases[i].bound[bound];
        snprintf(name, sizeof name, "%s_ms", bound_name((NodeBound)bound));
        json_object_set_new(bounds, name, json_make_number(seconds * 1e3));
    }
    for (int i = 0; i < n; i++) waited += phases[i].waited;
    json_object_set_new(bounds, "comm_wait_ms", json_make_number(waited * 1e3));
    return bounds;
}

static json_t *path_json(const CriticalPath *path) {
    return json_pack("{s:f, s:f, s:f, s:f, s:i, s:i, s:f}", "forward_ms", path->forward * 1e3, "backward_ms",
                     path->backward * 1e3, "update_ms", path->update * 1e3, "messages_ms",
                     path->messages * 1e3, "actions", path->n_actions, "stage", path->stage, "stage_ms",
                     path->stage_seconds * 1e3);
}

static void add_times(json_t *object, const StepTimes *times) {
    static const char *const names[] = {"forward", "backward", "update"};
    double waited = 0.0, sent = 0.0;
    json_t *phases = json_object();
    for (int i = PHASE_FORWARD; i <= PHASE_UPDATE; i++) {
        char name[40];
        snprintf(name, sizeof name, "%s_ms", names[i]);
        json_object_set_new(object, name, json_make_number(times->phase[i].seconds * 1e3));
        json_object_set_new(phases, names[i], bounds_json(&times->phase[i], 1));
    }
    for (int i = 0; i < N_PHASES; i++) waited += times->phase[i].waited, sent += times->phase[i].sent;
    json_object_set_new(object, "bounds", bounds_json(times->phase, N_PHASES));
    json_object_set_new(object, "phase_bounds", phases);
    json_object_set_new(object, "comm_ms", json_make_number(sent * 1e3));
    json_object_set_new(object, "comm_wait_ms", json_make_number(waited * 1e3));
    json_object_set_new(object, "bubble_ms", json_make_number(times->bubble * 1e3));
    json_object_set_new(object, "busiest_stage", json_integer(times->busiest));
    json_object_set_new(object, "critical_path", path_json(&times->path));
}

static void add_layout(json_t *object, const PlanRun *plan, const PlanFigures *figures) {
    const TrainCommand *values = &plan->train.values;
    char recompute[24];
    int n_ranks = mesh_n_ranks(&plan->train.shape), a_host = figures->links.ranks_a_host;
    json_object_set_new(object, "ranks", json_integer(n_ranks));
    json_object_set_new(object, "hosts", json_integer((n_ranks + a_host - 1) / a_host));
    for (int axis = 0; axis < N_AXES; axis++)
        json_object_set_new(object, axis_name((Axis)axis), json_integer(plan->train.shape.size[axis]));
    bool has_stages = plan->train.shape.size[AXIS_PP] > 1;
    json_object_set_new(object, "schedule",
                        has_stages ? json_string(schedule_info(figures->schedule.kind)->name) : json_null());
    json_object_set_new(object, "chunks",
                        has_stages ? json_integer(figures->schedule.shape.n_chunks) : json_null());
    json_object_set_new(object, "zero", json_integer(values->parallel.zero));
    const Offload *offload = &figures->rank[figures->most].offload;
    char away[640] = "";
    if (offload_is_on(offload)) offload_text(offload, away, sizeof away);
    json_object_set_new(object, "offload", json_string(away));
    json_object_set_new(object, "offload_share", json_real(offload->share));
    json_object_set_new(object, "recompute",
                        json_string(recompute_text(values->train.recompute, recompute, sizeof recompute)));
    json_object_set_new(object, "recompute_blocks", json_integer(values->train.recompute_blocks));
    json_object_set_new(object, "dtype", json_string(precision_names[values->train.precision]));
    json_object_set_new(object, "batch", json_integer(values->train.batch));
    json_object_set_new(object, "sequence", json_integer(values->train.sequence));
    json_object_set_new(object, "micro_batch", json_integer(values->train.micro_batch));
    json_object_set_new(object, "micro_batches", json_integer(figures->schedule.shape.n_micro_batches));
}

json_t *plan_json(const PlanRun *plan, const PlanFigures *figures) {
    const TrainCommand *values = &plan->train.values;
    double n_ranks = mesh_n_ranks(&plan->train.shape);
    json_t *object = json_object(), *ranks = json_array();
    json_object_set_new(object, "command", json_string("plan"));
    json_object_set_new(object, "model", json_make_text(values->model.preset));
    json_object_set_new(object, "machine", json_make_text(plan->machine.machine.device.name));
    json_object_set_new(object, "parameters", json_integer(figures->n_parameters));
    add_layout(object, plan, figures);
    json_object_set_new(object, "fits", json_boolean(figures->fits));
    set_bytes(object, "peak_bytes", figures->rank[figures->most].total);
    set_bytes(object, "usable_bytes", figures->usable);
    set_bytes(object, "host_needed_bytes", figures->host_needed);
    set_bytes(object, "host_usable_bytes", figures->host_usable);
    json_object_set_new(object, "step_ms", json_make_number(figures->times.seconds * 1e3));
    add_times(object, &figures->times);
    json_object_set_new(object, "tokens_per_s", json_make_number(figures->tokens_per_s));
    json_object_set_new(object, "standard_flops", json_make_number(figures->standard_flops));
    json_object_set_new(object, "model_flops", json_make_number(figures->model_flops));
    json_object_set_new(object, "counted_flops", json_make_number(figures->counted_flops));
    json_object_set_new(object, "repeated_flops",
                        json_make_number(figures->counted_flops - figures->useful_flops));
    json_object_set_new(object, "device_flops_per_s",
                        json_make_number(figures->standard_flops / figures->times.seconds / n_ranks));
    json_object_set_new(object, "mfu", json_make_number(figures->mfu));
    json_object_set_new(object, "hfu", json_make_number(figures->hfu));
    json_object_set_new(object, "run_tokens", json_make_number(figures->n_run_tokens));
    json_object_set_new(object, "run_seconds", json_make_number(figures->run_seconds));
    json_object_set_new(object, "watts", json_make_number(plan->machine.machine.device.watts));
    json_object_set_new(object, "joules", json_make_number(figures->joules));
    for (int i = 0; i < figures->n_ranks_built; i++)
        json_array_append_new(ranks, rank_json(&figures->rank[i]));
    json_object_set_new(object, "all", sums_json(&figures->sums));
    json_object_set_new(object, "rank", ranks);
    json_object_set_new(object, "traffic", traffic_json(figures));
    json_object_set_new(object, "links", links_json(figures));
    return object;
}
