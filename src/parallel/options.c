/* One table for every command that runs on several ranks. */
#include "parallel/options.h"

#include "comm/algo/algo.h"
#include "parallel/sync/gradient_sync.h"

enum { MANY = 1 << 20, DEFAULT_ALGORITHM = 3 };

const OptionSpec parallel_option_specs[] = {
    OPTION_INT("dp", ParallelOptions, size[AXIS_DP], 0, 0, MANY,
               "ranks that share the batch (data parallelism); 0: all that the other axes leave"),
    OPTION_INT("tp", ParallelOptions, size[AXIS_TP], 1, 1, MANY,
               "ranks that share each layer (not yet available)"),
    OPTION_INT("pp", ParallelOptions, size[AXIS_PP], 1, 1, MANY,
               "ranks that share the layers (not yet available)"),
    OPTION_INT("cp", ParallelOptions, size[AXIS_CP], 1, 1, MANY,
               "ranks that share each sequence (not yet available)"),
    OPTION_INT("ep", ParallelOptions, size[AXIS_EP], 1, 1, MANY,
               "ranks that share the experts (not yet available)"),
    OPTION_INT(
        "zero", ParallelOptions, zero, 0, 0, ZERO_STAGES,
        "what the ranks of dp share instead of each keeping it: 1 moments, 2 and gradients, 3 and weights"),
    OPTION_CHOICE("allreduce", ParallelOptions, all_reduce, DEFAULT_ALGORITHM, comm_algorithm_names,
                  "how gradients are summed: by one of pgpt's algorithms, or by the MPI library's own"),
    OPTION_FLOAT(
        "bucket-mb", ParallelOptions, bucket_mb, 4.0, 0.0, 1e6,
        "MiB of gradients that travel together; they leave as soon as the backward has finished them"),
    OPTION_BOOL("overlap", ParallelOptions, overlap, true,
                "communicate beside the computation; without it every message is waited for at once"),
    OPTION_BOOL("pin", ParallelOptions, pin, true,
                "give every rank of a host cores of its own, unless the launcher has or there are too few"),
    OPTION_END,
};
