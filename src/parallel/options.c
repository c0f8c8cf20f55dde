/* One table for commands that train on several ranks, one for those that use a model there. */
#include "parallel/options.h"

#include "comm/algo/algo.h"
#include "parallel/compress/compression.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/ring_attention.h"
#include "parallel/sync/gradient_sync.h"

enum { MANY = 1 << 20, DEFAULT_ALGORITHM = 3 };

const char *const tensor_style_names[] = {"column", "row", NULL};
#define PIN_HELP "give every rank of a host cores of its own, unless the launcher has or there are too few"

static const char *const layout_names[] = {"given", "auto", NULL};

const OptionSpec parallel_option_specs[] = {
    OPTION_CHOICE(
        "layout", ParallelOptions, layout, LAYOUT_GIVEN, layout_names,
        "of the axes, the schedule, ZeRO, micro-batch and recompute: as they are given, or auto: what is "
        "not given is chosen by 'pgpt plan --tune' for these ranks"),
    OPTION_INT("dp", ParallelOptions, size[AXIS_DP], 0, 0, MANY,
               "data parallelism: ranks that divide the batch; 0: all that the other axes leave"),
    OPTION_INT("tp", ParallelOptions, size[AXIS_TP], 1, 1, MANY,
               "tensor parallelism: ranks that divide each layer, by heads, hidden channels and tokens"),
    OPTION_BOOL("sequence-parallel", ParallelOptions, by_sequence, true,
                "sequence parallelism: ranks of tp also divide the rows between their layers; off with "
                "--tp-style row"),
    OPTION_CHOICE(
        "tp-style", ParallelOptions, tensor_style, TENSOR_COLUMN, tensor_style_names,
        "how tp divides linear layers: column, Megatron's pairs with one sum each; or row, the naive "
        "way, to compare: every layer by its inputs, and a sum behind each"),
    OPTION_INT("tp-chunks", ParallelOptions, tensor_chunks, 0, 0, MOST_TENSOR_CHUNKS,
               "parts of a micro-batch, by sequences: messages of tp and ep for one travel while the next is "
               "computed; 0: 2 with --tp on a GPU, else 1"),
    OPTION_INT("pp", ParallelOptions, size[AXIS_PP], 1, 1, MANY,
               "pipeline parallelism: stages that divide the blocks of the model"),
    OPTION_CHOICE(
        "schedule", ParallelOptions, schedule, SCHEDULE_1F1B, schedule_names,
        "pipeline schedule: in which order stages work on their micro-batches (see pgpt lab pipeline)"),
    OPTION_INT(
        "chunks", ParallelOptions, n_chunks, 0, 0, SCHEDULE_MAX_CHUNKS,
        "parts of the model on each stage of the pipeline; 0: as many as the schedule is made for, or, "
        "interleaved, up to two more if they then have the same number of blocks"),
    OPTION_STRING(
        "stages", ParallelOptions, stages, "", "N,N,...",
        "blocks of each part of the pipeline, in the order of the model, as 3,3,4,2; default: balanced by "
        "FLOPs, embedding and head counted"),
    OPTION_STRING("recompute-stages", ParallelOptions, recompute, "", "N,N,...",
                  "--recompute of each stage of the pipeline, as 1,1,0,0: the first ones hold the most "
                  "micro-batches"),
    OPTION_INT("cp", ParallelOptions, size[AXIS_CP], 1, 1, MANY,
               "context parallelism: ranks that divide the positions of each sequence"),
    OPTION_CHOICE("cp-style", ParallelOptions, context, CONTEXT_RING, context_style_names,
                  "how ranks of cp attend to each other's positions: keys and values go round a ring, or an "
                  "all-to-all gives each rank some heads of all positions"),
    OPTION_INT("ep", ParallelOptions, size[AXIS_EP], 1, 1, MANY,
               "expert parallelism: ranks that divide the experts of each block, and the batch; at most as "
               "many as --experts"),
    OPTION_INT(
        "zero", ParallelOptions, zero, 0, 0, ZERO_STAGES,
        "ZeRO stage: 1 shards the optimizer state over the ranks of dp, cp and ep (of experts: dp and cp), 2 also the gradients, 3 also the weights "
        "(as FSDP)"),
    OPTION_STRING(
        "compress", ParallelOptions, compress, "none", "WAY",
        "send less than the gradients: 1bit-adam, 0/1-adam or 1bit-lamb (signs of the momentum), 0/1-adam:N (in "
        "intervals of up to N steps, 2, 4, 8 or 16, that grow as the learning rate falls), topk-adam:X (the "
        "largest share X of the momentum), topk:X (of the gradient), int8, f16, powersgd:R (matrices in rank "
        "R); what is left out is kept and sent later (docs/COMPRESSION.md)",
        .flags = OPTION_FIXED),
    OPTION_STRING("compress-warmup", ParallelOptions, compress_warmup, "-1", "N|auto",
                  "exact steps before the first compressed one; -1: a fifth of the steps, and none for int8 "
                  "and f16; auto: until the variance of Adam or LAMB is steady"),
    OPTION_CHOICE("compress-across", ParallelOptions, compress_across, COMPRESS_ACROSS_ALL,
                  compress_across_names,
                  "between whom --compress sends less: all ranks that share a batch; or hosts, whose ranks "
                  "add up exactly first"),
    OPTION_CHOICE("allreduce", ParallelOptions, all_reduce, DEFAULT_ALGORITHM, comm_algorithm_names,
                  "all-reduce algorithm that sums gradients: one of pgpt's, or the MPI library's own"),
    OPTION_FLOAT(
        "bucket-mb", ParallelOptions, bucket_mb, 4.0, 0.0, 1e6,
        "gradient bucket size in MiB: gradients are summed by the bucket, as soon as the backward has finished it"),
    OPTION_BOOL("overlap", ParallelOptions, overlap, true,
                "communicate beside the computation; without it every message is waited for at once"),
    OPTION_BOOL("pin", ParallelOptions, pin, true, PIN_HELP),
    OPTION_END,
};

const OptionSpec mesh_option_specs[] = {
    OPTION_INT(
        "dp", MeshOptions, size[AXIS_DP], 0, 0, MANY,
        "data parallelism: groups of ranks that share out the texts, each with a model of its own; 0: as many "
        "as the other axes leave ranks for"),
    OPTION_INT("tp", MeshOptions, size[AXIS_TP], 1, 1, MANY,
               "tensor parallelism: ranks that divide each layer, by heads, hidden channels and tokens"),
    OPTION_INT("pp", MeshOptions, size[AXIS_PP], 1, 1, MANY,
               "pipeline parallelism: stages that divide the blocks of the model"),
    OPTION_INT(
        "ep", MeshOptions, size[AXIS_EP], 1, 1, MANY,
        "expert parallelism: ranks that divide the experts of each block; at most as many as there are"),
    OPTION_BOOL("pin", MeshOptions, pin, true, PIN_HELP),
    OPTION_END,
};

Status mesh_options_shape(const MeshOptions *options, int n_ranks, MeshShape *shape, Error *error) {
    int64_t size[N_AXES];
    for (int axis = 0; axis < N_AXES; axis++) {
        bool is_given = axis != AXIS_CP;
        size[axis] = is_given ? options->size[axis] : 1;
    }
    return mesh_shape(size, n_ranks, shape, error);
}
