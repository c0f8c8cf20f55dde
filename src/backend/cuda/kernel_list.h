/* The operations that the CUDA backend has kernels for. It is the only list of them: kernels.h and
 * plan/plan.h declare what it names, and the backend and its traits find a node's kernel in it.
 *
 *     PLAIN(OP_GELU, cuda_gelu)              Status cuda_gelu(const KernelCall *call, Error *error);
 *     WITH_SCRATCH(OP_LINEAR, cuda_linear)   the same, and cuda_linear_scratch, the bytes of working
 *                                            memory it wants */
#ifndef PGPT_BACKEND_CUDA_KERNEL_LIST_H
#define PGPT_BACKEND_CUDA_KERNEL_LIST_H

#define CUDA_KERNELS(PLAIN, WITH_SCRATCH)                                                                    \
    PLAIN(OP_EMBEDDING, cuda_embedding)                                                                      \
    WITH_SCRATCH(OP_EMBEDDING_TOKEN_GRADIENT, cuda_embedding_token_gradient)                                 \
    PLAIN(OP_EMBEDDING_POSITION_GRADIENT, cuda_embedding_position_gradient)                                  \
    PLAIN(OP_LAYERNORM, cuda_layernorm)                                                                      \
    WITH_SCRATCH(OP_LAYERNORM_BACKWARD, cuda_layernorm_backward)                                             \
    PLAIN(OP_RMSNORM, cuda_rmsnorm)                                                                          \
    WITH_SCRATCH(OP_RMSNORM_BACKWARD, cuda_rmsnorm_backward)                                                 \
    PLAIN(OP_RESIDUAL_NORM, cuda_residual_norm)                                                              \
    WITH_SCRATCH(OP_RESIDUAL_NORM_BACKWARD, cuda_residual_norm_backward)                                     \
    WITH_SCRATCH(OP_LINEAR, cuda_linear)                                                                     \
    WITH_SCRATCH(OP_LINEAR_INPUT_GRADIENT, cuda_linear_input_gradient)                                       \
    WITH_SCRATCH(OP_LINEAR_WEIGHT_GRADIENT, cuda_linear_weight_gradient)                                     \
    PLAIN(OP_GELU, cuda_gelu)                                                                                \
    PLAIN(OP_GELU_BACKWARD, cuda_gelu_backward)                                                              \
    PLAIN(OP_SWIGLU, cuda_swiglu)                                                                            \
    PLAIN(OP_SWIGLU_BACKWARD, cuda_swiglu_backward)                                                          \
    WITH_SCRATCH(OP_ATTENTION, cuda_attention)                                                               \
    WITH_SCRATCH(OP_ATTENTION_BACKWARD, cuda_attention_backward)                                             \
    PLAIN(OP_ATTENTION_PART, cuda_attention_part)                                                            \
    WITH_SCRATCH(OP_ATTENTION_PART_BACKWARD, cuda_attention_part_backward)                                   \
    WITH_SCRATCH(OP_ATTENTION_CACHED, cuda_attention_cached)                                                 \
    PLAIN(OP_DOCUMENT_STARTS, cuda_document_starts)                                                          \
    PLAIN(OP_DOCUMENT_STARTS_CACHED, cuda_document_starts_cached)                                            \
    PLAIN(OP_ATTENTION_BLOCKS, cuda_attention_blocks)                                                        \
    PLAIN(OP_SPARSE_ATTENTION, cuda_sparse_attention)                                                        \
    WITH_SCRATCH(OP_SPARSE_ATTENTION_BACKWARD, cuda_sparse_attention_backward)                               \
    PLAIN(OP_SPARSE_ATTENTION_PART, cuda_sparse_attention_part)                                              \
    WITH_SCRATCH(OP_SPARSE_ATTENTION_PART_BACKWARD, cuda_sparse_attention_part_backward)                     \
    WITH_SCRATCH(OP_SPARSE_ATTENTION_CACHED, cuda_sparse_attention_cached)                                   \
    PLAIN(OP_DECODE_STEP, cuda_decode_step)                                                                  \
    PLAIN(OP_SAMPLE, cuda_sample)                                                                            \
    PLAIN(OP_ROTARY, cuda_rotary)                                                                            \
    PLAIN(OP_ADD, cuda_add)                                                                                  \
    PLAIN(OP_COPY, cuda_copy)                                                                                \
    PLAIN(OP_ZERO, cuda_zero)                                                                                \
    PLAIN(OP_DROPOUT, cuda_dropout)                                                                          \
    PLAIN(OP_GATHER, cuda_gather)                                                                            \
    PLAIN(OP_EXPERT_ARRIVALS, cuda_expert_arrivals)                                                          \
    PLAIN(OP_EXPERTS_HERE, cuda_experts_here)                                                                \
    PLAIN(OP_COMPRESS, cuda_compress)                                                                        \
    PLAIN(OP_COMBINE, cuda_combine)                                                                          \
    PLAIN(OP_EXPAND, cuda_expand)                                                                            \
    PLAIN(OP_LOCAL_STEP, cuda_local_step)                                                                    \
    PLAIN(OP_LOCAL_JOIN, cuda_local_join)                                                                    \
    PLAIN(OP_LOWRANK_PROJECT, cuda_lowrank_project)                                                          \
    PLAIN(OP_LOWRANK_ORTHONORMAL, cuda_lowrank_orthonormal)                                                  \
    WITH_SCRATCH(OP_LOWRANK_RETURN, cuda_lowrank_return)                                                     \
    PLAIN(OP_LOWRANK_EXPAND, cuda_lowrank_expand)                                                            \
    PLAIN(OP_RESCALE, cuda_rescale)                                                                          \
    PLAIN(OP_PACK, cuda_pack)                                                                                \
    WITH_SCRATCH(OP_SUM, cuda_sum)                                                                           \
    PLAIN(OP_CROSS_ENTROPY, cuda_cross_entropy)                                                              \
    PLAIN(OP_SPLIT_ENTROPY_PART, cuda_split_entropy_part)                                                    \
    PLAIN(OP_SPLIT_ENTROPY, cuda_split_entropy)                                                              \
    PLAIN(OP_SQUARED_ERROR, cuda_squared_error)                                                              \
    WITH_SCRATCH(OP_SQUARED_NORM, cuda_squared_norm)                                                         \
    PLAIN(OP_CLIP, cuda_clip)                                                                                \
    PLAIN(OP_DEPTH_SCORE, cuda_depth_score)                                                                  \
    PLAIN(OP_DEPTH_SELECT, cuda_depth_select)                                                                \
    PLAIN(OP_DEPTH_ADMIT, cuda_depth_admit)                                                                  \
    PLAIN(OP_DEPTH_GATHER, cuda_depth_gather)                                                                \
    PLAIN(OP_DEPTH_GATHER_BACKWARD, cuda_depth_gather_backward)                                              \
    WITH_SCRATCH(OP_DEPTH_ROUTER_GRADIENT, cuda_depth_router_gradient)                                       \
    PLAIN(OP_DEPTH_SCATTER, cuda_depth_scatter)                                                              \
    PLAIN(OP_DEPTH_SCATTER_BACKWARD, cuda_depth_scatter_backward)                                            \
    WITH_SCRATCH(OP_DEPTH_PREDICT, cuda_depth_predict)                                                       \
    PLAIN(OP_ADAMW, cuda_adamw)                                                                              \
    PLAIN(OP_SGD, cuda_sgd)                                                                                  \
    WITH_SCRATCH(OP_LAMB_MEASURE, cuda_lamb_measure)                                                         \
    PLAIN(OP_LAMB, cuda_lamb)                                                                                \
    PLAIN(OP_LAMB_AVERAGE, cuda_lamb_average)                                                                \
    PLAIN(OP_LAMB_FRESHEN, cuda_lamb_freshen)                                                                \
    PLAIN(OP_LAMB_ADAPT, cuda_lamb_adapt)                                                                    \
    PLAIN(OP_MUON_MOMENTUM, cuda_muon_momentum)                                                              \
    PLAIN(OP_MUON_NORMALISE, cuda_muon_normalise)                                                            \
    PLAIN(OP_MUON_POLYNOMIAL, cuda_muon_polynomial)                                                          \
    PLAIN(OP_MUON, cuda_muon)                                                                                \
    PLAIN(OP_BOX, cuda_box)                                                                                  \
    PLAIN(OP_ROUTER_LOGITS, cuda_router_logits)                                                              \
    PLAIN(OP_ROUTER_INPUT_GRADIENT, cuda_router_input_gradient)                                              \
    WITH_SCRATCH(OP_ROUTER_WEIGHT_GRADIENT, cuda_router_weight_gradient)                                     \
    PLAIN(OP_ROUTE, cuda_route)                                                                              \
    WITH_SCRATCH(OP_ROUTE_BACKWARD, cuda_route_backward)                                                     \
    WITH_SCRATCH(OP_ROUTE_REPORT, cuda_route_report)                                                         \
    WITH_SCRATCH(OP_EXPERT_SORT, cuda_expert_sort)                                                           \
    PLAIN(OP_EXPERT_GATHER, cuda_expert_gather)                                                              \
    PLAIN(OP_EXPERT_GATHER_BACKWARD, cuda_expert_gather_backward)                                            \
    PLAIN(OP_EXPERT_SCATTER, cuda_expert_scatter)                                                            \
    PLAIN(OP_EXPERT_SCATTER_BACKWARD, cuda_expert_scatter_backward)                                          \
    PLAIN(OP_GROUPED_LINEAR, cuda_grouped_linear)                                                            \
    PLAIN(OP_GROUPED_INPUT_GRADIENT, cuda_grouped_input_gradient)                                            \
    WITH_SCRATCH(OP_GROUPED_WEIGHT_GRADIENT, cuda_grouped_weight_gradient)                                   \
    PLAIN(OP_SEQUENCE_ROWS, cuda_sequence_rows)                                                              \
    PLAIN(OP_ROUTE_BIAS, cuda_route_bias)                                                                    \
    PLAIN(OP_ROUTE_SUMMARY, cuda_route_summary)

#endif
