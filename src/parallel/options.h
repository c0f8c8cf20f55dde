/* The options by which a run is spread over ranks. */
#ifndef PGPT_PARALLEL_OPTIONS_H
#define PGPT_PARALLEL_OPTIONS_H

#include "base/options/options.h"
#include "parallel/mesh.h"
#include "parallel/tensor_style.h"

typedef enum { LAYOUT_GIVEN, LAYOUT_AUTO } LayoutChoice;

typedef struct {
    int64_t size[N_AXES];  /* of the mesh; 0 for dp: what is left */
    int layout;            /* LayoutChoice */
    bool by_sequence;      /* sequence parallelism, along tp; not with TENSOR_ROW */
    int tensor_style;      /* TensorStyle, of tp */
    int64_t tensor_chunks; /* of a micro-batch; 0: chosen */
    int context;           /* ContextStyle, of cp */
    int schedule;          /* ScheduleKind, of pp */
    int64_t n_chunks;      /* parts of the model on each stage; 0: the schedule's own number */
    const char *stages;    /* blocks of each part; "": balanced */
    const char *recompute; /* of each stage; "": --recompute */
    int64_t zero;
    const char *compress;        /* see compression_parse */
    const char *compress_warmup; /* a number, or "auto" */
    int compress_across;         /* CompressAcross */
    int all_reduce;              /* see comm_algorithm */
    double bucket_mb;
    bool overlap;
    bool pin;
} ParallelOptions;

extern const OptionSpec parallel_option_specs[];

/* Of commands that use a model and do not train it. */
typedef struct {
    int64_t size[N_AXES]; /* of all but cp: 0 */
    bool pin;
} MeshOptions;

extern const OptionSpec mesh_option_specs[];

/* As mesh_shape. */
Status mesh_options_shape(const MeshOptions *options, int n_ranks, MeshShape *shape, Error *error);

#endif
