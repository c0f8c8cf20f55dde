/* What the studies share that start runs of pgpt train: who starts ranks, when one has taken too long, and
 * --quick.
 *
 * --quick is a preset: a study names options and the values that make it short, and what the user has given
 * on the command line stays. */
#include "cli/lab/lab.h"

#include "comm/comm_mpi.h"

const OptionSpec lab_run_specs[] = {
    OPTION_BOOL("quick", LabRunOptions, quick, false, "less of everything: below a minute on two cores"),
    OPTION_STRING("launcher", LabRunOptions, launcher, "", "COMMAND",
                  "what starts ranks, with its options, if not this MPI's mpirun; split at blanks"),
    OPTION_FLOAT("timeout", LabRunOptions, timeout, 3600.0, 1.0, 1e7, "seconds after which a run is ended"),
    OPTION_END,
};

Status lab_apply_defaults(Options *options, const LabDefault *defaults, Error *error) {
    for (; defaults->name; defaults++)
        TRY(options_set(options, defaults->name, defaults->value, OPTION_FROM_PRESET, error));
    return STATUS_OK;
}

Status lab_apply_quick(Options *options, const LabRunOptions *runs, const LabDefault *defaults,
                       Error *error) {
    return runs->quick ? lab_apply_defaults(options, defaults, error) : STATUS_OK;
}

Status lab_open_launcher(const Launch *launch, const Options *options, const LabRunOptions *runs,
                         Launcher *launcher, Error *error) {
    int here = launch->world.size;
    if (here > 1 && options_source(options, "launcher") == OPTION_FROM_COMMAND)
        return error_user(
            error, "--launcher starts ranks, and there are %d already; leave out one of the two", here);
    if (here > 1) return STATUS_OK;
    if (!comm_mpi_is_built())
        return error_user(
            error, "this pgpt was built without MPI, and has one rank only; build it with -DPGPT_MPI=on");
    return launcher_open(launcher, runs->launcher, error);
}
