/* attention by cuDNN: its graph interface is given the arithmetic of attention as a list of small operations
 * (attention_cudnn_graphs.cu), and finds the one kernel that does them all. Nothing is copied.
 *
 * Backward, dq is a sum over blocks of keys that are worked on at the same time. cuDNN either adds them up in
 * f32 in any order (fast), or stores dscore, B·NH·T·T 16-bit numbers, and multiplies afterwards, always in
 * the same order.
 *
 * Making a plan compiles kernels, which takes a second: there is one for each shape, made when the memory is
 * planned and kept. Running one only enqueues. A plan's descriptors stay as long as it does. */
#include "backend/cuda/attention/attention_cudnn.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

struct AttentionLibrary {
    Cudnn cudnn;
    cudnnHandle_t handle; /* NULL: cuDNN is not there, or does not work here */
    AttentionPlan *plans;
    char reason[sizeof(Error::text)];
};

/* ---- plans ---- */

static void describe_graph(AttentionPlan *p, Descriptor graph) {
    plan_set(p, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, p->n_operations,
             p->operation, "the graph");
    plan_set(p, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &p->handle, "the graph");
    plan_finalize(p, graph, "the graph");
}

/* The engines that cuDNN proposes, best first; returns how many there are. */
static int64_t propose(AttentionPlan *p, Descriptor graph, Descriptor *configuration) {
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t count = 0;
    Descriptor heuristic = plan_create(p, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    plan_set_descriptor(p, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph,
                        "the choice of an engine");
    plan_set(p, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode,
             "the choice of an engine");
    plan_finalize(p, heuristic, "the choice of an engine");
    for (int i = 0; i < MOST_CONFIGURATIONS; i++) {
        configuration[i] = plan_create(p, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    }
    if (p->status != CUDNN_STATUS_SUCCESS) return 0;
    plan_note(p,
              p->cudnn->BackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                            CUDNN_TYPE_BACKEND_DESCRIPTOR, MOST_CONFIGURATIONS, &count,
                                            configuration),
              "the choice of an engine");
    if (p->status != CUDNN_STATUS_SUCCESS) return 0;
    if (count < 1) plan_note(p, CUDNN_STATUS_NOT_SUPPORTED, "no engine for it");
    return count < MOST_CONFIGURATIONS ? count : (int64_t)MOST_CONFIGURATIONS;
}

/* The plan of one engine, NULL if that does not work out. */
static Descriptor make_plan(AttentionPlan *p, Descriptor configuration) {
    AttentionPlan attempt = {};
    attempt.cudnn = p->cudnn;
    attempt.status = CUDNN_STATUS_SUCCESS;
    Descriptor plan = plan_create(&attempt, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan_set_descriptor(&attempt, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration, "a plan");
    plan_set(&attempt, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &p->handle, "a plan");
    plan_finalize(&attempt, plan, "a plan");
    if (attempt.status == CUDNN_STATUS_SUCCESS) {
        attempt.status = p->cudnn->BackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                       CUDNN_TYPE_INT64, 1, NULL, &p->workspace_bytes);
    }
    if (attempt.status == CUDNN_STATUS_SUCCESS) return plan;
    if (plan) p->cudnn->BackendDestroyDescriptor(plan);
    return NULL;
}

static void plan_close(AttentionPlan *p) {
    if (p->plan) p->cudnn->BackendDestroyDescriptor(p->plan);
    while (p->n_made) p->cudnn->BackendDestroyDescriptor(p->made[--p->n_made]);
}

static void plan_open(AttentionPlan *p) {
    p->scale = p->shape.scale;
    p->lowest = -FLT_MAX;
    p->one = 1.0f;
    if (p->backward) plan_describe_backward(p);
    else plan_describe_forward(p);
    Descriptor graph = plan_create(p, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR),
               configuration[MOST_CONFIGURATIONS];
    describe_graph(p, graph);
    int64_t n = propose(p, graph, configuration);
    for (int64_t i = 0; i < n && !p->plan; i++) p->plan = make_plan(p, configuration[i]);
    if (!p->plan) {
        plan_note(p, CUDNN_STATUS_NOT_SUPPORTED, "no engine that it proposed works");
        plan_close(p);
    }
}

/* ---- the library ---- */

static AttentionLibrary *library_new(void) {
    AttentionLibrary *library = (AttentionLibrary *)calloc(1, sizeof *library);
    if (!library) return NULL;
    Error error = {};
    if (cuda_load_cudnn(&library->cudnn, &error) != STATUS_OK) {
        snprintf(library->reason, sizeof library->reason, "%s", error.text);
        return library;
    }
    cudnnStatus_t status = library->cudnn.Create(&library->handle);
    if (status != CUDNN_STATUS_SUCCESS) {
        library->handle = NULL;
        snprintf(library->reason, sizeof library->reason, "cuDNN: %s", library->cudnn.GetErrorString(status));
    }
    return library;
}

/* The plan that there is, or a new one, which may have turned out not to work. */
static AttentionPlan *plan_for(AttentionLibrary *library, const AttentionShape *shape, bool backward,
                               bool any_order) {
    for (AttentionPlan *p = library->plans; p; p = p->next) {
        if (p->backward == backward && p->any_order == any_order &&
            !memcmp(&p->shape, shape, sizeof *shape)) {
            return p;
        }
    }
    AttentionPlan *p = (AttentionPlan *)calloc(1, sizeof *p);
    if (!p) return NULL;
    p->shape = *shape;
    p->backward = backward;
    p->any_order = any_order;
    p->cudnn = &library->cudnn;
    p->handle = library->handle;
    p->next = library->plans;
    library->plans = p;
    plan_open(p);
    if (p->plan) return p;
    char detail[256];
    p->cudnn->GetLastErrorString(detail, sizeof detail);
    snprintf(library->reason, sizeof library->reason, "cuDNN: %s: %s (%s)", p->what,
             p->cudnn->GetErrorString(p->status), detail);
    return p;
}

const AttentionPlan *attention_library_plan(AttentionLibrary **library, const AttentionShape *shape,
                                            bool backward, bool any_order) {
    if (!attention_library_may_take(shape, backward)) return NULL;
    if (!*library) *library = library_new();
    if (!*library || !(*library)->handle) return NULL;
    AttentionShape key =
        *shape; /* where dropout draws from makes no difference without it: layers share a plan */
    key.site = key.first_head = 0;
    const AttentionPlan *p = plan_for(*library, &key, backward, any_order && backward);
    return p && p->plan ? p : NULL;
}

const char *attention_library_reason(const AttentionLibrary *library) {
    return library ? library->reason : "";
}

void attention_library_close(AttentionLibrary *library) {
    if (!library) return;
    while (library->plans) {
        AttentionPlan *p = library->plans;
        library->plans = p->next;
        plan_close(p);
        free(p);
    }
    if (library->handle) library->cudnn.Destroy(library->handle);
    free(library);
}

/* ---- running ---- */

static size_t row_sum_bytes(const AttentionPlan *p) {
    return attention_row_sum_bytes(&p->shape, p->backward);
}

static size_t dq_sum_bytes(const AttentionPlan *p) {
    return attention_dq_sum_bytes(&p->shape, p->backward, p->any_order);
}

size_t attention_plan_scratch(const AttentionPlan *plan) {
    return row_sum_bytes(plan) + dq_sum_bytes(plan) + (size_t)plan->workspace_bytes;
}

typedef struct {
    int64_t id[N_OUTER];
    void *address[N_OUTER];
    int count;
} Addresses;

static void give(Addresses *a, int64_t id, const void *address) {
    a->id[a->count] = id;
    a->address[a->count++] = (void *)address;
}

static Addresses addresses(const AttentionPlan *p, const AttentionMemory *m, char **workspace) {
    const AttentionShape *s = &p->shape;
    const char *qkv = (const char *)m->qkv, *dqkv = (const char *)m->dqkv;
    int64_t keys = (int64_t)s->n_heads * s->head_size * 2, /* bytes: elements have two */
        values = keys + (int64_t)s->n_kv_heads * s->head_size * 2;
    Addresses a = {};
    give(&a, Q, qkv);
    give(&a, K, qkv + keys);
    give(&a, V, qkv + values);
    give(&a, Y, m->y);
    give(&a, LSE, m->lse);
    give(&a, SCALE, &p->scale);
    give(&a, LOWEST, &p->lowest);
    *workspace = (char *)m->scratch;
    if (!p->backward) return a;
    give(&a, DY, m->dy);
    give(&a, DQ, dqkv);
    give(&a, DK, dqkv + keys);
    give(&a, DV, dqkv + values);
    give(&a, ONE, &p->one);
    give(&a, ROW_SUM, *workspace);
    *workspace += row_sum_bytes(p);
    if (!p->any_order) return a;
    give(&a, DQ_SUM, *workspace);
    *workspace += dq_sum_bytes(p);
    return a;
}

Status attention_plan_run(const AttentionPlan *p, const AttentionMemory *memory, cudaStream_t stream,
                          Error *error) {
    char *workspace;
    Addresses a = addresses(p, memory, &workspace);
    Descriptor pack = NULL;
    cudnnStatus_t status = p->cudnn->SetStream(p->handle, stream);
    if (status == CUDNN_STATUS_SUCCESS) {
        status = p->cudnn->BackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    }
    if (status == CUDNN_STATUS_SUCCESS) {
        status = p->cudnn->BackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
                                               a.count, a.id);
    }
    if (status == CUDNN_STATUS_SUCCESS) {
        status = p->cudnn->BackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                               CUDNN_TYPE_VOID_PTR, a.count, a.address);
    }
    if (status == CUDNN_STATUS_SUCCESS) {
        status = p->cudnn->BackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR,
                                               1, &workspace);
    }
    if (status == CUDNN_STATUS_SUCCESS) status = p->cudnn->BackendFinalize(pack);
    if (status == CUDNN_STATUS_SUCCESS) status = p->cudnn->BackendExecute(p->handle, p->plan, pack);
    if (pack) p->cudnn->BackendDestroyDescriptor(pack);
    if (status == CUDNN_STATUS_SUCCESS) return STATUS_OK;
    char detail[256];
    p->cudnn->GetLastErrorString(detail, sizeof detail);
    return error_failed(error, "attention by cuDNN: %s (%s)", p->cudnn->GetErrorString(status), detail);
}
