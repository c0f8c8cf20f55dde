/* Machine files are read by option tables, so a mistake in one is said as any other of a configuration. The
 * texts of those that pgpt knows are compiled in (cmake/Machines.cmake writes them from machines/), so that a
 * program which was moved knows them, too. */
#include "plan/machine.h"

#include "plan/links.h"

#include "base/file/file.h"
#include "base/options/options_text.h"
#include "base/text/format.h"
#include "base/text/plain.h"
#include "plan/machines_generated.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const collective_names[] = {"auto", "ring", "tree", "halving", "hierarchical", NULL};

#define DEVICE(type, name, field, ...)           OPTION_##type(name, MachineDevice, field, __VA_ARGS__)
#define RATE(name, Struct, field, initial, text) OPTION_FLOAT(name, Struct, field, initial, 0.0, 1e15, text)

static const OptionSpec device_specs[] = {
    DEVICE(STRING, "name", name, "", "TEXT", "what it is called"),
    DEVICE(STRING, "source", source, "", "TEXT", "where the numbers are from: datasheet, measured"),
    DEVICE(STRING, "device", device, "cpu", "DEVICE",
           "whose kernels programs are planned with: cpu, cuda:h200, cuda:h100 or cuda:a100"),
    DEVICE(STRING, "dtype", dtype, "f32", "DTYPE", "what runs compute in where nobody says"),
    RATE("memory-gib", MachineDevice, memory_gib, 0.0, "memory of a device that programs may take"),
    RATE("tflops-16", MachineDevice, tflops_16, 0.0, "TFLOP/s of GEMMs in bf16 and f16; 0: as tflops-32"),
    RATE("tflops-tf32", MachineDevice, tflops_tf32, 0.0, "TFLOP/s of GEMMs in tf32; 0: as tflops-32"),
    RATE("tflops-32", MachineDevice, tflops_32, 0.0, "TFLOP/s of GEMMs in f32; of a CPU: of one core"),
    RATE("vector-tflops", MachineDevice, vector_tflops, 0.0, "TFLOP/s of all else, in f32; 0: as tflops-32"),
    OPTION_FLOAT("gemm-efficiency", MachineDevice, gemm_efficiency, 1.0, 0.0, 1.0,
                 "part of it that large GEMMs reach", .flags = OPTION_ABOVE_MIN),
    DEVICE(STRING, "gemm-classes", gemm_classes, "", "N:SHARE ...",
           "part of that by the smallest dimension of a GEMM, as '64:0.4 256:0.7 1024:1'; empty: all alike"),
    OPTION_FLOAT("attention-forward", MachineDevice, attention_forward, 0.44, 0.0, 10.0,
                 "rate of attention's forward, in parts of that of GEMMs", .flags = OPTION_ABOVE_MIN),
    OPTION_FLOAT("attention-backward", MachineDevice, attention_backward, 0.32, 0.0, 10.0,
                 "and of its backward", .flags = OPTION_ABOVE_MIN),
    OPTION_BOOL(
        "whole-recompute", MachineDevice, repeats_whole, false,
        "activation checkpointing runs whole blocks again, as programs of others do: also the GEMMs and "
        "the communication whose results the backward does not read"),
    RATE(
        "score-bytes", MachineDevice, score_bytes, 0.0,
        "bytes that attention's forward moves through memory for every score of the whole square, the backward "
        "half as many again; 0: none, as fused attention"),
    RATE("draws-g", MachineDevice, draws_g, 0.0,
         "10^9 random numbers a second, for dropout; of a CPU: of one core; 0: they cost nothing"),
    RATE("memory-gbs", MachineDevice, memory_gbs, 0.0, "GB/s of the device's memory; of a CPU: of one core"),
    OPTION_FLOAT("memory-efficiency", MachineDevice, memory_efficiency, 1.0, 0.0, 1.0,
                 "part of it that kernels reach", .flags = OPTION_ABOVE_MIN),
    RATE("cache-mib", MachineDevice, cache_mib, 0.0, "instructions on fewer bytes work in a cache; 0: none"),
    RATE("cache-gbs", MachineDevice, cache_gbs, 0.0, "GB/s of it; of a CPU: of one core"),
    OPTION_FLOAT("thread-efficiency", MachineDevice, thread_efficiency, 1.0, 0.0, 1.0,
                 "of a CPU: part of all cores' rates that one rank with a thread on each reaches",
                 .flags = OPTION_ABOVE_MIN),
    OPTION_FLOAT("busy-efficiency", MachineDevice, busy_efficiency, 1.0, 0.0, 1.0,
                 "of a CPU: part of a core's rate that is left where other ranks keep all other cores busy",
                 .flags = OPTION_ABOVE_MIN),
    OPTION_FLOAT("crowd-efficiency", MachineDevice, crowd_efficiency, 1.0, 0.0, 1.0,
                 "of a CPU: part of the rate of all cores that ranks reach together who take turns on them",
                 .flags = OPTION_ABOVE_MIN),
    RATE("launch-us", MachineDevice, launch_us, 0.0, "microseconds that every instruction takes besides"),
    RATE("watts", MachineDevice, watts, 0.0, "of a device with its share of the host; 0: not known"),
    DEVICE(STRING, "samples", samples, "", "OP:SIZES=RATE ...",
           "rates of instructions as measured, in 'dtype': they go before the rates above"),
    DEVICE(STRING, "all-thread-samples", all_thread_samples, "", "OP:SIZES=RATE ...",
           "of a CPU: the same by one rank with a thread on every core"),
    DEVICE(STRING, "busy-samples", busy_samples, "", "OP:SIZES=RATE ...",
           "of a CPU: the same by one thread, while ranks keep all other cores busy"),
    OPTION_END,
};

static const OptionSpec host_specs[] = {
    OPTION_INT("devices", MachineHost, n_devices, 1, 1, 1 << 20, "devices of a host: a rank each"),
    OPTION_INT("cores", MachineHost, n_cores, 0, 0, 1 << 20,
               "cores of a host, which ranks of a CPU share; 0: GPUs compute"),
    RATE("host-memory-gib", MachineHost, host_memory_gib, 0.0,
         "memory of a host that its devices' offload may take; 0: not known"),
    RATE("host-memory-gbs", MachineHost, host_memory_gbs, 0.0,
         "GB/s of the host's memory, for all cores together; 0: no limit"),
    RATE("inside-gbs", MachineHost, inside_gbs, 0.0,
         "GB/s from a device to others of its host, each way (NVLink)"),
    RATE("inside-us", MachineHost, inside_us, 0.0, "microseconds of a message inside a host"),
    OPTION_BOOL("inside-shared", MachineHost, inside_is_shared, false,
                "all devices of a host share one such link"),
    OPTION_STRING("message-samples", MachineHost, message_samples, "", "KIND:RANKS,GROUP,BYTES=RATE ...",
                  "what ranks of a host send each other, as measured: of how many on the host, how many to a "
                  "group, all at once, in GB/s of the vector"),
    RATE("bus-gbs", MachineHost, bus_gbs, 0.0, "GB/s between a device and its host, each way; 0: none"),
    RATE("disk-gbs", MachineHost, disk_gbs, 0.0, "GB/s of a host's disk; 0: not known"),
    OPTION_END,
};

static const OptionSpec network_specs[] = {
    OPTION_INT("hosts", MachineNetwork, n_hosts, 0, 0, 1 << 20, "hosts that there are; 0: any number"),
    RATE("between-gbs", MachineNetwork, between_gbs, 0.0, "GB/s of a link between hosts, each way"),
    RATE("between-us", MachineNetwork, between_us, 0.0, "microseconds of a message between hosts"),
    OPTION_INT("links", MachineNetwork, n_links, 1, 1, 1 << 16, "such links that a host has"),
    OPTION_FLOAT("link-efficiency", MachineNetwork, link_efficiency, 1.0, 0.0, 1.0,
                 "part of the links' rates that is reached, inside and between", .flags = OPTION_ABOVE_MIN),
    OPTION_CHOICE("collectives", MachineNetwork, collectives, COLLECTIVES_AUTO, collective_names,
                  "how collectives are carried out; auto: the fastest way for the size"),
    RATE("step-us", MachineNetwork, step_us, 0.0, "microseconds of the host a step, beside the program"),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Device", Machine, device, device_specs),
    OPTION_GROUP("Host", Machine, host, host_specs),
    OPTION_GROUP("Network", Machine, network, network_specs),
    OPTION_GROUP_END,
};

const OptionCommand machine_file_command = {
    .name = "machine",
    .summary = "a machine file",
    .listed_in = "docs/PLAN.md",
    .groups = groups,
};

const char *machine_text(const char *name) {
    for (int i = 0; machine_names[i]; i++)
        if (strcmp(machine_names[i], name) == 0) return machine_texts[i];
    return NULL;
}

/* ---- Reading */

/* "key = value" lines of a text that is part of the program. */
static Status read_text(Options *options, const char *name, const char *text, Error *error) {
    for (int line = 1; *text; line++) {
        size_t n = strcspn(text, "\n");
        char key[64] = "", *words = arena_alloc(&options->arena, n + 1);
        memcpy(words, text, n);
        text += n + (text[n] == '\n');
        char *value = strchr(words, '=');
        if (words[0] == '#' || words[0] == '[' || sscanf(words, " %63[a-z0-9-]", key) != 1) continue;
        if (!value) return error_failed(error, "machine %s, line %d: no value", name, line);
        value++;
        while (*value == ' ') value++;
        if (options_set(options, key, value, OPTION_FROM_FILE, error) != STATUS_OK)
            return error_prefix(error, "machine %s, line %d: ", name, line);
    }
    return STATUS_OK;
}

static bool is_path(const char *name) {
    size_t n = strlen(name);
    return n > 4 && strcmp(name + n - 4, ".ini") == 0;
}

static Status refuse_name(const char *name, Error *error) {
    char known[256] = "";
    size_t n = 0;
    for (int i = 0; machine_names[i] && n < sizeof known - 1; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", machine_names[i]);
    return error_user(
        error,
        "there is no machine '%s'; %schoose one of %s, or name a file that ends in .ini, as 'pgpt "
        "bench machine --out FILE' writes",
        plain_value(name).text, format_did_you_mean(name, machine_names).text, known);
}

static Status read_samples(Machine *machine, Arena *arena, Error *error) {
    const struct {
        const char *key, *text;
        const Samples **read;
    } all[] = {{"samples", machine->device.samples, &machine->samples},
               {"all-thread-samples", machine->device.all_thread_samples, &machine->all_thread_samples},
               {"busy-samples", machine->device.busy_samples, &machine->busy_samples},
               {"message-samples", machine->host.message_samples, &machine->message_samples}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!all[i].text || !*all[i].text) continue;
        Samples *samples = ARENA_ARRAY(arena, Samples, 1);
        TRY(samples_read(all[i].text, arena, samples, error));
        bool are_messages = all[i].read == &machine->message_samples;
        TRY(are_messages ? links_check_samples(samples, error)
                         : samples_check_operations(samples, all[i].key, error));
        *all[i].read = samples;
    }
    return STATUS_OK;
}

Status machine_open(MachineFile *file, const char *name, Error *error) {
    *file = (MachineFile){0};
    const char *text = machine_text(name);
    if (!text && !is_path(name)) return refuse_name(name, error);
    TRY(options_init(&file->options, &machine_file_command, &file->machine, error));
    if (text) TRY_GOTO(read_text(&file->options, name, text, error), failed);
    else TRY_GOTO(options_read_config(&file->options, name, error), failed);
    if (machine_check(&file->machine, error) != STATUS_OK ||
        read_samples(&file->machine, &file->options.arena, error) != STATUS_OK) {
        error_prefix(error, "machine %s: ", plain_value(name).text);
        goto failed;
    }
    if (!*file->machine.device.name) file->machine.device.name = arena_strdup(&file->options.arena, name);
    return STATUS_OK;
failed:
    machine_close(file);
    return error->status;
}

void machine_close(MachineFile *file) {
    if (file->options.command) options_free(&file->options);
    *file = (MachineFile){0};
}

/* ---- What can be */

/* Fewer than were written: the rest cannot be read. */
static bool read_classes(const char *text, GemmClasses *classes) {
    *classes = (GemmClasses){0};
    for (;;) {
        char *end;
        while (*text == ' ' || *text == ',') text++;
        if (!*text) return true;
        if (classes->n == MACHINE_MOST_CLASSES) return false;
        double size = strtod(text, &end);
        if (end == text || *end != ':') return false;
        text = end + 1;
        double share = strtod(text, &end);
        bool rises = !classes->n || size > classes->smallest[classes->n - 1];
        if (end == text || !(size > 0.0) || !(share > 0.0 && share <= 1.5) || !rises) return false;
        text = end;
        classes->smallest[classes->n] = size;
        classes->share[classes->n++] = share;
    }
}

GemmClasses machine_gemm_classes(const Machine *machine) {
    GemmClasses classes;
    read_classes(machine->device.gemm_classes, &classes);
    return classes;
}

double gemm_class_share(const GemmClasses *classes, double smallest) {
    if (!classes->n) return 1.0;
    if (smallest <= classes->smallest[0]) return classes->share[0];
    for (int i = 1; i < classes->n; i++) {
        if (smallest > classes->smallest[i]) continue;
        double from = log(classes->smallest[i - 1]), to = log(classes->smallest[i]);
        double part = (log(smallest) - from) / (to - from);
        return classes->share[i - 1] + part * (classes->share[i] - classes->share[i - 1]);
    }
    return classes->share[classes->n - 1];
}

static const double least = 1e-9; /* of rates and shares: what is less is a slip of the pen */

/* What may be left out, and what is a part of something: neither may be next to nothing. */
static Status check_rates(const Machine *machine, Error *error) {
    const MachineDevice *device = &machine->device;
    const struct {
        const char *name;
        double value;
    } rates[] = {{"tflops-16", device->tflops_16},
                 {"tflops-tf32", device->tflops_tf32},
                 {"tflops-32", device->tflops_32},
                 {"vector-tflops", device->vector_tflops},
                 {"draws-g", device->draws_g},
                 {"cache-gbs", device->cache_gbs},
                 {"memory-gib", device->memory_gib},
                 {"gemm-efficiency", device->gemm_efficiency},
                 {"attention-forward", device->attention_forward},
                 {"attention-backward", device->attention_backward},
                 {"memory-efficiency", device->memory_efficiency},
                 {"inside-gbs", machine->host.inside_gbs},
                 {"bus-gbs", machine->host.bus_gbs},
                 {"disk-gbs", machine->host.disk_gbs},
                 {"host-memory-gbs", machine->host.host_memory_gbs},
                 {"between-gbs", machine->network.between_gbs},
                 {"link-efficiency", machine->network.link_efficiency}};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++)
        if (rates[i].value > 0.0 && rates[i].value < least)
            return error_user(error, "%s = %g is next to nothing; give at least %g, or leave it out",
                              rates[i].name, rates[i].value, least);
    return STATUS_OK;
}

Status machine_check(const Machine *machine, Error *error) {
    const MachineDevice *device = &machine->device;
    GemmClasses classes;
    if (!(device->tflops_32 >= least || device->tflops_16 >= least))
        return error_user(error, "a device that computes nothing: give tflops-32 or tflops-16");
    if (!(device->memory_gbs >= least))
        return error_user(error, "a device whose memory carries nothing: give memory-gbs");
    if (!(device->memory_gib > 0.0)) return error_user(error, "a device without memory: give memory-gib");
    if (!read_classes(device->gemm_classes, &classes))
        return error_user(
            error,
            "gemm-classes = %s: give rising sizes with the part of the rate that each reaches, as "
            "'64:0.4 256:0.7 1024:1', at most %d",
            plain_value(device->gemm_classes).text, MACHINE_MOST_CLASSES);
    if (machine->host.n_devices > 1 && !(machine->host.inside_gbs > 0.0))
        return error_user(error, "%lld devices of a host and nothing between them: give inside-gbs",
                          (long long)machine->host.n_devices);
    if (machine->network.n_hosts > 1 && !(machine->network.between_gbs > 0.0))
        return error_user(error, "%lld hosts and nothing between them: give between-gbs",
                          (long long)machine->network.n_hosts);
    if (device->cache_mib > 0.0 && !(device->cache_gbs > 0.0))
        return error_user(error, "a cache that carries nothing: give cache-gbs, or leave out cache-mib");
    return check_rates(machine, error);
}

Status machine_check_ranks(const Machine *machine, int64_t n_ranks, Error *error) {
    int64_t n_hosts = machine->network.n_hosts, a_host = machine->host.n_devices;
    bool has_cores = machine->host.n_cores > 0; /* ranks may outnumber them */
    if (has_cores && n_hosts == 1) return STATUS_OK;
    int64_t needed = (n_ranks + a_host - 1) / a_host;
    if (n_hosts && needed > n_hosts)
        return error_user(error,
                          "%lld ranks are %lld more than the %lld devices of machine %s (%s of %lld); "
                          "lower --gpus to %lld, or raise 'hosts' in a file of your own",
                          (long long)n_ranks, (long long)(n_ranks - n_hosts * a_host),
                          (long long)(n_hosts * a_host), plain_value(machine->device.name).text,
                          format_things(n_hosts, "host").text, (long long)a_host,
                          (long long)(n_hosts * a_host));
    if (needed > 1 && !(machine->network.between_gbs > 0.0))
        return error_user(error,
                          "%lld ranks are %lld hosts of machine %s, which has nothing between them; give "
                          "between-gbs in a file of your own, or lower --gpus to %lld",
                          (long long)n_ranks, (long long)needed, plain_value(machine->device.name).text,
                          (long long)a_host);
    return STATUS_OK;
}

bool machine_is_gpu(const Machine *machine) {
    return machine->host.n_cores == 0;
}

int machine_ranks_a_host(const Machine *machine, int64_t n_ranks) {
    int64_t a_host = machine->host.n_devices;
    if (machine->network.n_hosts == 1 || n_ranks < a_host) return (int)n_ranks;
    return (int)a_host;
}

static Status write_values(const Machine *machine, const char *comment, FILE *stream, Error *error) {
    Options options;
    Machine values;
    TRY(options_init(&options, &machine_file_command, &values, error));
    values = *machine;
    fprintf(stream, "# %s\n", comment);
    options_write_values(stream, &options);
    options_free(&options);
    return STATUS_OK;
}

Status machine_write(const Machine *machine, const char *comment, const char *path, Error *error) {
    char *text = NULL;
    size_t n_bytes = 0;
    FileWriter writer = {0};
    FILE *stream = open_memstream(&text, &n_bytes);
    if (!stream) return error_failed(error, "no memory for a machine's file");
    write_values(machine, comment, stream, error);
    if (fclose(stream) != 0 && error->status == STATUS_OK) error_failed(error, "no memory for %s", path);
    TRY_GOTO(error->status, done);
    TRY_GOTO(file_writer_open(&writer, path, error), done);
    TRY_GOTO(file_writer_write(&writer, text, n_bytes, error), written);
    TRY_GOTO(file_writer_commit(&writer, error), written);
written:
    file_writer_abort(&writer);
done:
    free(text);
    return error->status;
}
