/* A machine, described: what a device does a second, what links carry, how many there are of each. Plans are
 * made for it, and nothing of it need be here.
 *
 *     MachineFile file;
 *     TRY(machine_open(&file, "a100", error));           // one that pgpt knows, or a file that ends in .ini
 *     RankSpeed speed = rank_speed(&file.machine, &(SpeedUse){.n_ranks = 64, .precision = PRECISION_BF16});
 *     NodeTime time = rank_node_time(&speed, node);        // plan/speed.h
 *     machine_close(&file);
 *
 * Files are lines of "key = value" by the tables of machine.c, as all of pgpt's configuration is; those of
 * machines/ are part of the program. Rates are what a datasheet says; efficiencies, beside them, are the part
 * of it that is reached. Where a file was measured (`pgpt bench machine`), rates are what was found and the
 * efficiencies are 1. */
#ifndef PGPT_PLAN_MACHINE_H
#define PGPT_PLAN_MACHINE_H

#include "base/options/options.h"
#include "plan/samples.h"

/* How collectives are carried out. */
typedef enum {
    COLLECTIVES_AUTO, /* whatever is the fastest for the size: what NCCL and MPI libraries do */
    COLLECTIVES_RING,
    COLLECTIVES_TREE,
    COLLECTIVES_HALVING,
    COLLECTIVES_HIERARCHICAL, /* within hosts, between them, within hosts */
    N_COLLECTIVES
} CollectiveStyle;

enum { MACHINE_MOST_CLASSES = 12 };

/* Of a device: a GPU, or one core of a CPU. Seconds, bytes, FLOP/s. */
typedef struct {
    const char *name, *source; /* in words; "datasheet", "measured", ... */
    const char *device;        /* whose kernels programs are planned with: what --device takes */
    const char *dtype;         /* that runs take where nobody says */
    double memory_gib;
    double tflops_16, tflops_tf32, tflops_32; /* of matrix units; of vectors where there are none */
    double vector_tflops;                     /* of everything else, in f32 */
    double gemm_efficiency;
    const char *gemm_classes;                     /* "64:0.4 256:0.7 1024:1": see gemm_class_share */
    double attention_forward, attention_backward; /* of the rate of GEMMs */
    bool repeats_whole; /* activation checkpointing runs whole blocks again, what nobody reads included */
    double score_bytes; /* that attention moves through memory a score; 0: fused attention keeps none */
    double draws_g; /* 10^9 random numbers a second, for dropout; of a CPU: of one core; 0: they are free */
    double memory_gbs, memory_efficiency;
    double cache_mib, cache_gbs; /* what fits there is read and written at this rate; 0: as memory */
    /* Of a CPU: the part of its cores' rates together that all threads of one rank reach; and of a core's
     * rate the part that is left where ranks keep all the others busy. */
    double thread_efficiency, busy_efficiency;
    double crowd_efficiency; /* and the part of all cores' rates that ranks keep that take turns on them */
    double launch_us;        /* before an instruction begins to work */
    double watts;            /* of a device with its share of the host; 0: not known */
    const char *samples;     /* rates as measured (samples.h), in the machine's dtype; "": none */
    const char *all_thread_samples; /* of a CPU, by one rank with a thread on every core */
    const char *busy_samples;       /* of a CPU, by one thread while ranks keep all other cores busy */
} MachineDevice;

/* A host: so many devices, and what connects them. */
typedef struct {
    int64_t n_devices;            /* GPUs, or of a CPU ranks that have a core of their own */
    int64_t n_cores;              /* that ranks of a CPU share; 0: it is GPUs that compute */
    double host_memory_gib;       /* that programs may take for what is offloaded; 0: not known */
    double host_memory_gbs;       /* of all its cores together; 0: as many times one as there are */
    double inside_gbs, inside_us; /* of a device, each way; of a step of a collective */
    bool inside_is_shared;        /* one link for all devices together */
    const char *message_samples;  /* what ranks of a host send each other, as measured (links.h); "": none */
    double bus_gbs;               /* device to host, each way; 0: the same memory */
    double disk_gbs;
} MachineHost;

typedef struct {
    int64_t n_hosts;                /* at most; 0: as many as are asked for */
    double between_gbs, between_us; /* of one link of a host, each way */
    int64_t n_links;                /* a host */
    double link_efficiency;         /* of links inside and between */
    int collectives;                /* CollectiveStyle */
    double step_us;                 /* of the host, once a step, beside the program */
} MachineNetwork;

typedef struct {
    MachineDevice device;
    MachineHost host;
    MachineNetwork network;
    const Samples *samples, *all_thread_samples, *busy_samples, *message_samples; /* read; NULL: none */
} Machine;

typedef struct {
    Machine machine;
    Options options; /* owns the texts */
} MachineFile;

/* The names of those that pgpt knows, NULL-terminated; the text of one, NULL: there is none such. */
extern const char *const machine_names[];
const char *machine_text(const char *name);

/* By such a name, or by a path that ends in .ini. A user's mistake names what cannot be. */
Status machine_open(MachineFile *file, const char *name_or_path, Error *error);
void machine_close(MachineFile *file); /* safe on {0} */

/* The options of a machine file, for whoever writes one. */
extern const OptionCommand machine_file_command;

/* What can be of a machine? Its parts fit together, and it has so many devices. */
Status machine_check(const Machine *machine, Error *error);
Status machine_check_ranks(const Machine *machine, int64_t n_ranks, Error *error);

/* The classes of GEMMs, read; and the part of the rate that one reaches whose smallest dimension is this:
 * between classes by interpolation, beyond them as the nearest, 1 where there are none. */
typedef struct {
    int n;
    double smallest[MACHINE_MOST_CLASSES], share[MACHINE_MOST_CLASSES];
} GemmClasses;

GemmClasses machine_gemm_classes(const Machine *machine);
double gemm_class_share(const GemmClasses *classes, double smallest);

bool machine_is_gpu(const Machine *machine);

/* Ranks of a host where there are n_ranks: as many as it has devices, and all where there is one host. */
int machine_ranks_a_host(const Machine *machine, int64_t n_ranks);

/* A machine as a file that machine_read takes, with a comment above it; a file that is there is replaced when
 * all of the new one is written. */
Status machine_write(const Machine *machine, const char *comment, const char *path, Error *error);

#endif
