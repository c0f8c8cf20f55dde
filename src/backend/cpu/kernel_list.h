/* The operations that the CPU backend has kernels for. It is the only list of them: kernels.h declares what
 * it names, and the backend finds a node's kernel in it.
 *
 *     PLAIN(OP_GELU, cpu_gelu)              Status cpu_gelu(const KernelCall *call, Error *error);
 *     WITH_SCRATCH(OP_LINEAR, cpu_linear)   the same, and cpu_linear_scratch, the bytes of working memory
 *                                           it wants */
#ifndef PGPT_BACKEND_CPU_KERNEL_LIST_H
#define PGPT_BACKEND_CPU_KERNEL_LIST_H

#define CPU_KERNELS(PLAIN, WITH_SCRATCH)                                                                     \
    PLAIN(OP_EMBEDDING, cpu_embedding)                                                                       \
    WITH_SCRATCH(OP_EMBEDDING_TOKEN_GRADIENT, cpu_embedding_token_gradient)                                  \
    WITH_SCRATCH(OP_EMBEDDING_POSITION_GRADIENT, cpu_embedding_position_gradient)                            \
    PLAIN(OP_LAYERNORM, cpu_layernorm)                                                                       \
    WITH_SCRATCH(OP_LAYERNORM_BACKWARD, cpu_layernorm_backward)                                              \
    PLAIN(OP_RMSNORM, cpu_rmsnorm)                                                                           \
    WITH_SCRATCH(OP_RMSNORM_BACKWARD, cpu_rmsnorm_backward)                                                  \
    PLAIN(OP_RESIDUAL_NORM, cpu_residual_norm)                                                               \
    WITH_SCRATCH(OP_RESIDUAL_NORM_BACKWARD, cpu_residual_norm_backward)                                      \
    WITH_SCRATCH(OP_LINEAR, cpu_linear)                                                                      \
    WITH_SCRATCH(OP_LINEAR_INPUT_GRADIENT, cpu_linear_input_gradient)                                        \
    WITH_SCRATCH(OP_LINEAR_WEIGHT_GRADIENT, cpu_linear_weight_gradient)                                      \
    PLAIN(OP_GELU, cpu_gelu)                                                                                 \
    PLAIN(OP_GELU_BACKWARD, cpu_gelu_backward)                                                               \
    PLAIN(OP_SWIGLU, cpu_swiglu)                                                                             \
    PLAIN(OP_SWIGLU_BACKWARD, cpu_swiglu_backward)                                                           \
    WITH_SCRATCH(OP_ATTENTION, cpu_attention)                                                                \
    WITH_SCRATCH(OP_ATTENTION_BACKWARD, cpu_attention_backward)                                              \
    WITH_SCRATCH(OP_ATTENTION_PART, cpu_attention_part)                                                      \
    WITH_SCRATCH(OP_ATTENTION_PART_BACKWARD, cpu_attention_part_backward)                                    \
    WITH_SCRATCH(OP_ATTENTION_CACHED, cpu_attention_cached)                                                  \
    PLAIN(OP_DOCUMENT_STARTS, cpu_document_starts)                                                           \
    PLAIN(OP_DOCUMENT_STARTS_CACHED, cpu_document_starts_cached)                                             \
    PLAIN(OP_ATTENTION_BLOCKS, cpu_attention_blocks)                                                         \
    WITH_SCRATCH(OP_SPARSE_ATTENTION, cpu_sparse_attention)                                                  \
    WITH_SCRATCH(OP_SPARSE_ATTENTION_BACKWARD, cpu_sparse_attention_backward)                                \
    WITH_SCRATCH(OP_SPARSE_ATTENTION_PART, cpu_sparse_attention_part)                                        \
    WITH_SCRATCH(OP_SPARSE_ATTENTION_PART_BACKWARD, cpu_sparse_attention_part_backward)                      \
    WITH_SCRATCH(OP_SPARSE_ATTENTION_CACHED, cpu_sparse_attention_cached)                                    \
    WITH_SCRATCH(OP_ROTARY, cpu_rotary)                                                                      \
    WITH_SCRATCH(OP_ROUTER_LOGITS, cpu_router_logits)                                                        \
    WITH_SCRATCH(OP_ROUTER_INPUT_GRADIENT, cpu_router_input_gradient)                                        \
    WITH_SCRATCH(OP_ROUTER_WEIGHT_GRADIENT, cpu_router_weight_gradient)                                      \
    PLAIN(OP_ROUTE, cpu_route)                                                                               \
    WITH_SCRATCH(OP_ROUTE_BACKWARD, cpu_route_backward)                                                      \
    WITH_SCRATCH(OP_ROUTE_REPORT, cpu_route_report)                                                          \
    PLAIN(OP_ROUTE_BIAS, cpu_route_bias)                                                                     \
    PLAIN(OP_ROUTE_SUMMARY, cpu_route_summary)                                                               \
    PLAIN(OP_EXPERT_SORT, cpu_expert_sort)                                                                   \
    PLAIN(OP_EXPERT_GATHER, cpu_expert_gather)                                                               \
    PLAIN(OP_EXPERT_GATHER_BACKWARD, cpu_expert_gather_backward)                                             \
    PLAIN(OP_EXPERT_SCATTER, cpu_expert_scatter)                                                             \
    PLAIN(OP_EXPERT_SCATTER_BACKWARD, cpu_expert_scatter_backward)                                           \
    WITH_SCRATCH(OP_GROUPED_LINEAR, cpu_grouped_linear)                                                      \
    WITH_SCRATCH(OP_GROUPED_INPUT_GRADIENT, cpu_grouped_input_gradient)                                      \
    WITH_SCRATCH(OP_GROUPED_WEIGHT_GRADIENT, cpu_grouped_weight_gradient)                                    \
    PLAIN(OP_SEQUENCE_ROWS, cpu_sequence_rows)                                                               \
    PLAIN(OP_EXPERT_ARRIVALS, cpu_expert_arrivals)                                                           \
    PLAIN(OP_EXPERTS_HERE, cpu_experts_here)                                                                 \
    PLAIN(OP_ADD, cpu_add)                                                                                   \
    PLAIN(OP_COPY, cpu_copy)                                                                                 \
    PLAIN(OP_ZERO, cpu_zero)                                                                                 \
    PLAIN(OP_DROPOUT, cpu_dropout)                                                                           \
    PLAIN(OP_GATHER, cpu_gather)                                                                             \
    PLAIN(OP_COMPRESS, cpu_compress)                                                                         \
    PLAIN(OP_COMBINE, cpu_combine)                                                                           \
    PLAIN(OP_EXPAND, cpu_expand)                                                                             \
    PLAIN(OP_LOCAL_STEP, cpu_local_step)                                                                     \
    PLAIN(OP_LOCAL_JOIN, cpu_local_join)                                                                     \
    PLAIN(OP_LOWRANK_PROJECT, cpu_lowrank_project)                                                           \
    PLAIN(OP_LOWRANK_ORTHONORMAL, cpu_lowrank_orthonormal)                                                   \
    PLAIN(OP_LOWRANK_RETURN, cpu_lowrank_return)                                                             \
    PLAIN(OP_LOWRANK_EXPAND, cpu_lowrank_expand)                                                             \
    PLAIN(OP_RESCALE, cpu_rescale)                                                                           \
    PLAIN(OP_PACK, cpu_pack)                                                                                 \
    WITH_SCRATCH(OP_SUM, cpu_sum)                                                                            \
    PLAIN(OP_CROSS_ENTROPY, cpu_cross_entropy)                                                               \
    PLAIN(OP_SPLIT_ENTROPY_PART, cpu_split_entropy_part)                                                     \
    PLAIN(OP_SPLIT_ENTROPY, cpu_split_entropy)                                                               \
    PLAIN(OP_SQUARED_ERROR, cpu_squared_error)                                                               \
    WITH_SCRATCH(OP_SQUARED_NORM, cpu_squared_norm)                                                          \
    PLAIN(OP_CLIP, cpu_clip)                                                                                 \
    PLAIN(OP_DEPTH_SCORE, cpu_depth_score)                                                                   \
    PLAIN(OP_DEPTH_SELECT, cpu_depth_select)                                                                 \
    PLAIN(OP_DEPTH_ADMIT, cpu_depth_admit)                                                                   \
    PLAIN(OP_DEPTH_GATHER, cpu_depth_gather)                                                                 \
    PLAIN(OP_DEPTH_GATHER_BACKWARD, cpu_depth_gather_backward)                                               \
    WITH_SCRATCH(OP_DEPTH_ROUTER_GRADIENT, cpu_depth_router_gradient)                                        \
    PLAIN(OP_DEPTH_SCATTER, cpu_depth_scatter)                                                               \
    PLAIN(OP_DEPTH_SCATTER_BACKWARD, cpu_depth_scatter_backward)                                             \
    WITH_SCRATCH(OP_DEPTH_PREDICT, cpu_depth_predict)                                                        \
    PLAIN(OP_ADAMW, cpu_adamw)                                                                               \
    PLAIN(OP_SGD, cpu_sgd)                                                                                   \
    WITH_SCRATCH(OP_LAMB_MEASURE, cpu_lamb_measure)                                                          \
    PLAIN(OP_LAMB, cpu_lamb)                                                                                 \
    PLAIN(OP_LAMB_AVERAGE, cpu_lamb_average)                                                                 \
    PLAIN(OP_LAMB_ADAPT, cpu_lamb_adapt)                                                                     \
    PLAIN(OP_LAMB_FRESHEN, cpu_lamb_freshen)                                                                 \
    PLAIN(OP_MUON_MOMENTUM, cpu_muon_momentum)                                                               \
    PLAIN(OP_MUON_NORMALISE, cpu_muon_normalise)                                                             \
    PLAIN(OP_MUON_POLYNOMIAL, cpu_muon_polynomial)                                                           \
    PLAIN(OP_MUON, cpu_muon)                                                                                 \
    PLAIN(OP_BOX, cpu_box)

#endif
