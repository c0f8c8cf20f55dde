/* pgpt bench machine: measures the machine that is here, for pgpt plan. */
#include "cli/bench/bench.h"

#include "base/file/file.h"
#include "base/text/format.h"
#include "bench/machine.h"

#include <libgen.h>
#include <stdio.h>
#include <string.h>

static json_t *machine_json(const Machine *machine) {
    json_t *object = json_object();
    json_object_set_new(object, "command", json_string("bench machine"));
    json_object_set_new(object, "tflops_32", json_make_number(machine->device.tflops_32));
    json_object_set_new(object, "tflops_16", json_make_number(machine->device.tflops_16));
    json_object_set_new(object, "memory_gbs", json_make_number(machine->device.memory_gbs));
    json_object_set_new(object, "cache_gbs", json_make_number(machine->device.cache_gbs));
    json_object_set_new(object, "inside_gbs", json_make_number(machine->host.inside_gbs));
    json_object_set_new(object, "disk_gbs", json_make_number(machine->host.disk_gbs));
    return object;
}

static Status report(const BenchCall *call, const MachineMeasure *measure, Error *error) {
    const Machine *machine = &measure->machine;
    double gemm = machine->device.tflops_16 > 0.0 ? machine->device.tflops_16 : machine->device.tflops_32;
    printf("%s: GEMMs %s%s (by smallest dimension: %s), memory %s, in cache %s, %.1f us an instruction\n",
           machine->device.name, format_rate(gemm * 1e12, "FLOP/s").text,
           machine->host.n_cores ? " a core" : "", measure->classes,
           format_rate(machine->device.memory_gbs * 1e9, "B/s").text,
           format_rate(machine->device.cache_gbs * 1e9, "B/s").text, machine->device.launch_us);
    printf("ranks of a host: %s%s, %.1f us a message; disk %s\n",
           format_rate(machine->host.inside_gbs * 1e9, "B/s").text, measure->links ? "" : " (guessed)",
           machine->host.inside_us, format_rate(machine->host.disk_gbs * 1e9, "B/s").text);
    printf("%d kinds of instructions; steps take %.3f times the sum of theirs%s\n", measure->n_samples,
           measure->beyond, measure->n_left_out ? " (shapes were left out for lack of memory or time)" : "");
    if (measure->is_bound && machine->host.n_cores > 1)
        printf(
            "the launcher has bound this rank to a part of the %lld cores, so a rank with a thread on each was "
            "not measured; start it by 'mpirun --bind-to none'\n",
            (long long)machine->host.n_cores);
    if (machine->device.busy_efficiency < 1.0)
        printf("a core keeps %.0f %% of its rate where ranks keep the others busy\n",
               100.0 * machine->device.busy_efficiency);
    if (*call->out) {
        TRY(bench_machine_write(measure, call->out, error));
        printf("written to %s: pgpt plan --machine %s\n", call->out, call->out);
    }
    return call->json ? json_print(stdout, machine_json(machine), error) : STATUS_OK;
}

Status bench_machine(BenchCall *call, Error *error) {
    MachineMeasure measure;
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", call->out);
    if (*call->out && call->launch->is_root) file_check_place(call->out, error); /* before a minute of work */
    TRY(launch_agree(call->launch, error));
    if (bench_machine_measure(&measure, &call->setup, &call->launch->world,
                              *call->out ? dirname(folder) : ".", error) == STATUS_OK &&
        call->launch->is_root)
        report(call, &measure, error);
    bench_machine_free(&measure);
    return error->status;
}
