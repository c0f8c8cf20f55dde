/* Every operation as cases that tests can build: a graph with the operation, what fills its inputs, and, where a
 * gradient flows, a loss Σ y·dy with given weights dy and the backward half.
 *
 * A case is described by an OpSpec; the builders say what the sizes mean. */
#ifndef PGPT_TESTS_OP_CASES_H
#define PGPT_TESTS_OP_CASES_H

#include "backend/cpu/kernel_list.h"
#include "harness.h"
#include "ops/depth/depth.h"
#include "ops/ops.h"

enum {
    CASE_BIAS = 1 << 0,
    CASE_RESIDUAL = 1 << 1,
    CASE_TANH = 1 << 2, /* gelu by tanh, as activation of linear */
    CASE_ERF = 1 << 3,
    CASE_POSITIONS = 1 << 4, /* a position table */
    CASE_START = 1 << 5,     /* sequences start at positions of their own */
    CASE_FIXED_X = 1 << 6,   /* x needs no gradient */
    CASE_FIXED_W = 1 << 7,   /* parameters need none */
    CASE_IGNORE = 1 << 8,    /* some targets are negative */
    CASE_FACTOR = 1 << 9,    /* the gradient is scaled by a factor */
    CASE_MOMENTUM = 1 << 10,
    CASE_NESTEROV = 1 << 11,
    CASE_ADD = 1 << 12,       /* squared_norm adds */
    CASE_SAME = 1 << 13,      /* both inputs are the same tensor */
    CASE_SHIFT = 1 << 14,     /* positions are shifted by CASE_FIRST_POSITION */
    CASE_LARGE = 1 << 15,     /* inputs 30 times as large: softmax saturates */
    CASE_RMS = 1 << 16,       /* rmsnorm, not layernorm */
    CASE_SUM_ONLY = 1 << 17,  /* residual_norm: nobody reads what it has normed */
    CASE_SPLIT = 1 << 19,     /* this rank has a part of the vocabulary, or of the rows */
    CASE_DOCUMENTS = 1 << 21, /* tokens end documents; positions are given row by row */
    CASE_ZIGZAG = 1 << 20,    /* rows are the two runs of positions that a rank of a ring has */
    CASE_TAKES = 1 << 28,     /* a box out of a whole */
    CASE_LAYER = 1 << 18,     /* residual_norm's branch, attention's qkv: made by a layer that has a bias */
};
enum { CASE_FIRST_POSITION = 3, CASE_MAX_FILLS = 9, CASE_MAX_RESULTS = 4 };

typedef struct OpCase OpCase;

typedef struct {
    const char *label; /* unique; names the recorded values */
    void (*build)(OpCase *test);
    int64_t size[6];
    unsigned flags;
    float number; /* dropout probability, or greatest norm */
} OpSpec;

/* How an input is filled: literally; integers first + hash % below; or floats offset + scale · value. */
typedef struct {
    Tensor *tensor;
    const void *literal;
    float scale, offset;
    int32_t below;
    bool some_negative; /* every third is -1 */
} CaseFill;

struct OpCase {
    const OpSpec *spec;
    Graph *graph;
    int n_fills, n_results;
    CaseFill fill[CASE_MAX_FILLS];
    struct {
        const char *name;
        Tensor *tensor;
    } result[CASE_MAX_RESULTS];
    Tensor *y,
        *dy; /* the loss is Σ y·dy; dy NULL: scale · Σ y and the op makes its gradient itself; y NULL: none */
    double loss_scale;
};

void case_open(
    OpCase *test,
    const OpSpec *spec); /* builds the graph, runs autograd, moves sums; fails the test on errors */
void case_close(OpCase *test);
void case_fill(const OpCase *test, TestMemory *memory); /* the inputs; everything else is left as it is */
bool case_is_filled(const OpCase *test, const Tensor *tensor);
double case_loss(const OpCase *test, const TestMemory *memory);
/* A result, an input, or "d" + an input: its gradient. NULL if there is none. */
Tensor *case_find(const OpCase *test, const char *name);

extern const Op OP_TEST_LOSS; /* stands for Σ y·dy in the graph: computes nothing, starts the gradient */

void build_embedding(OpCase *test);      /* B T C V P */
void build_layernorm(OpCase *test);      /* N C */
void build_rmsnorm(OpCase *test);        /* N C */
void build_residual_norm(OpCase *test);  /* B T C, dropout; CASE_RESIDUAL: y is normed + gelu(sum) */
void build_linear(OpCase *test);         /* N Ci Co */
void build_mlp(OpCase *test);            /* N C F; CASE_RESIDUAL: what is hidden has two readers */
void build_gelu(OpCase *test);           /* N C */
void build_swiglu(OpCase *test);         /* N F */
void build_attention(OpCase *test);      /* B T NH NKV HS, dropout */
void build_depth(OpCase *test);          /* B T C K; CASE_SAME: all scores are alike */
void build_depth_admit(OpCase *test);    /* B T P; CASE_START: with counts of P positions */
void build_depth_predict(OpCase *test);  /* B T C K; CASE_FACTOR: the gradient is scaled */
void build_attention_part(OpCase *test); /* B T NH NKV HS parts, dropout: one rank's queries over all keys */
void build_attention_cached(OpCase *test); /* B T NH NKV HS capacity */
/* Of case_patterns: the last size is its number; of parts 10 times that is added to them, of a cache it is the
 * spec's number, and the last size is how many positions there are. */
void build_sparse_attention(OpCase *test);
void build_document_starts_cached(OpCase *test); /* B T capacity */
void build_sparse_attention_part(OpCase *test);
void build_sparse_attention_cached(OpCase *test);
void build_rotary(OpCase *test);        /* B T NH NKV HS */
void build_add(OpCase *test);           /* N C */
void build_copy(OpCase *test);          /* N C */
void build_zero(OpCase *test);          /* N C */
void build_dropout(OpCase *test);       /* B T C, dropout */
void build_gather(OpCase *test);        /* N C M */
void build_pack(OpCase *test);          /* outer size inner parts; there and back, by other parts */
void build_pack_pieces(OpCase *test);   /* outer size inner parts, of three pieces each; there alone */
void build_sum(OpCase *test);           /* N C */
void build_cross_entropy(OpCase *test); /* N V */
void build_split_entropy(OpCase *test); /* N V classes */
void build_squared_error(OpCase *test); /* N C */
void build_squared_norm(OpCase *test);  /* N */
void build_clip(OpCase *test);          /* -, greatest norm */
void build_compress(OpCase *test);      /* N, CodecKind, slices, with variance and momentum or not */
void build_local_step(OpCase *test);    /* N likewise: a step, one without weights, and one that joins */
void build_lowrank(OpCase *test);       /* rows columns rank: two matrices, and a run between them */
void build_adamw(OpCase *test);         /* N, of which the first third and the last element decay */
void build_sgd(OpCase *test);           /* N likewise */
void build_lamb(OpCase *test);          /* N likewise; number: the highest ratio */
void build_lamb_coefficient(OpCase *test);
void build_muon_elements(OpCase *test); /* N */
void build_muon(OpCase *test);          /* N = rows · columns, rows, columns; number: scale */
void build_muon_polynomial(OpCase *test);
void build_muon_normalise(OpCase *test);
void build_box(OpCase *test);       /* three dims */
void build_optimizer(OpCase *test); /* N likewise, OptimizerKind: as it is by default */
void build_route(
    OpCase *test); /* groups T E K capacity RouterKind, scale of its losses (op_cases_experts.c) */
void build_route_update(OpCase *test);  /* R E, factor */
void build_grouped(OpCase *test);       /* N C F E S: experts of given choices */
void build_experts(OpCase *test);       /* N C F E K: from the router to what its experts made */
void build_sequence_rows(OpCase *test); /* B n T S */
void build_expert_ranks(OpCase *test);  /* ranks E N S: what comes from ranks, and which choices are here */
void build_block(OpCase *test); /* N C: layernorm, linear with gelu and residual, add: shared gradients */

/* Patterns of sparse attention, by number. */
enum { N_CASE_PATTERNS = 11 };
extern const char *const case_patterns[N_CASE_PATTERNS];

/* Every operation in the shapes that kernels tend to get wrong (op_specs.c). */
extern const OpSpec kernel_specs[];
extern const int n_kernel_specs;

/* The operations that the CPU has kernels for: every backend's tests run them all, and an operation that no case has a
 * node of is a failure. */
#define COUNT(op, kernel) +1
enum { N_KERNEL_OPS = 0 CPU_KERNELS(COUNT, COUNT) };
#undef COUNT
extern const Op *const kernel_ops[N_KERNEL_OPS];

#endif
