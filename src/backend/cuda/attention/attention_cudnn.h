/* What the two files of cuDNN's attention share: a plan in the making, and the descriptors it is made of. */
#ifndef PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_CUDNN_H
#define PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_CUDNN_H

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/runtime/library_cudnn.h"

/* Tensors that memory is given for, by name; those in between are numbered from FIRST_BETWEEN on. */
enum {
    Q = 1,
    K,
    V,
    Y,
    LSE,
    SCALE,
    LOWEST,
    DY,
    DQ,
    DK,
    DV,
    ONE,
    ROW_SUM,
    DQ_SUM,
    N_OUTER,
    FIRST_BETWEEN = 100
};
enum { MOST_DESCRIPTORS = 160, MOST_OPERATIONS = 32, MOST_CONFIGURATIONS = 8 };

typedef cudnnBackendDescriptor_t Descriptor;

struct AttentionPlan {
    AttentionShape shape;
    bool backward, any_order;
    struct AttentionPlan *next;
    const Cudnn *cudnn;
    cudnnHandle_t handle;
    /* Everything that was made, in order; what went wrong first, if anything. */
    Descriptor made[MOST_DESCRIPTORS], operation[MOST_OPERATIONS];
    int n_made, n_operations;
    int64_t next_between;
    cudnnStatus_t status;
    const char *what;

    Descriptor plan; /* NULL: this shape is not taken */
    int64_t workspace_bytes;
    float scale, lowest, one;
};

/* The first failure stays, and what comes after it does nothing. */
void plan_note(AttentionPlan *p, cudnnStatus_t status, const char *what);
Descriptor plan_create(AttentionPlan *p, cudnnBackendDescriptorType_t type);
void plan_set(AttentionPlan *p, Descriptor d, cudnnBackendAttributeName_t name,
              cudnnBackendAttributeType_t type, int64_t count, const void *value, const char *what);
void plan_set_descriptor(AttentionPlan *p, Descriptor d, cudnnBackendAttributeName_t name, Descriptor value,
                         const char *what);
void plan_finalize(AttentionPlan *p, Descriptor d, const char *what);

/* The operations of attention for p->shape, into p->operation. */
void plan_describe_forward(AttentionPlan *p);
void plan_describe_backward(AttentionPlan *p);

#endif
