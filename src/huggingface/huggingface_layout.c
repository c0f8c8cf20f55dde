/* Ours puts side by side what is computed side by side: the rows of queries, keys and values are one matrix,
 * SwiGLU's gate and its other half are one, and all experts of a block are one tensor. Hugging Face's Llama
 * has a tensor for each. So a parameter of ours is cut along its rows, or its experts, and the names follow
 * from its role. */
#include "huggingface/huggingface_layout.h"

const char HUGGINGFACE_HEAD[] = "lm_head.weight";

/* A model between the two is nearer to one of them, which then says what is in its way. */
HuggingFaceLayout huggingface_layout(const ModelConfig *config) {
    int n_llama = (config->position == POSITION_ROTARY) + (config->norm == NORM_RMSNORM) +
                  (config->mlp == MLP_SWIGLU) + !config->bias;
    if (config->n_experts) return HUGGINGFACE_MIXTRAL;
    return n_llama > 2 ? HUGGINGFACE_LLAMA : HUGGINGFACE_GPT2;
}

const char *huggingface_layout_name(HuggingFaceLayout layout) {
    static const char *const names[] = {"GPT-2", "Llama", "Mixtral"};
    return names[layout];
}

const char *huggingface_token_table(const ModelConfig *config) {
    return huggingface_layout(config) == HUGGINGFACE_GPT2 ? "wte.weight" : "model.embed_tokens.weight";
}

typedef struct {
    const Parameter *parameter;
    Arena *arena;
    HuggingFacePiece *piece;
    int n;
} Pieces;

/* The box as it is stored: what has one place in front has none there. */
static Shape stored_shape(Shape shape, int n_dims) {
    Shape stored = {.n_dims = n_dims};
    for (int i = 0; i < n_dims; i++) stored.dim[i] = shape.dim[shape.n_dims - n_dims + i];
    return stored;
}

static void add_box(Pieces *pieces, const char *name, const Box *box, int n_dims) {
    pieces->piece[pieces->n++] =
        (HuggingFacePiece){.name = name, .box = *box, .stored = stored_shape(box->shape, n_dims)};
}

/* "model.layers.3.self_attn.q_proj.weight", and outside of the blocks "model.norm.weight". */
static const char *name_of(const Pieces *pieces, const char *name) {
    int block = pieces->parameter->block;
    return block == NO_BLOCK ? arena_printf(pieces->arena, "model.%s.weight", name)
                             : arena_printf(pieces->arena, "model.layers.%d.%s.weight", block, name);
}

static void add_whole(Pieces *pieces, const char *name) {
    Shape whole = pieces->parameter->whole;
    Box box = box_whole(whole);
    add_box(pieces, name, &box, whole.n_dims);
}

/* The next `rows` rows of a matrix. */
static void add_rows(Pieces *pieces, const char *name, int64_t first, int64_t rows) {
    Box box = box_whole(pieces->parameter->whole);
    box.offset[0] = first;
    box.shape.dim[0] = rows;
    add_box(pieces, name_of(pieces, name), &box, box.shape.n_dims);
}

/* Of every expert a matrix: (E,C,F), or of (E,2,F,C) those at `half`. */
static void add_expert(Pieces *pieces, const char *name, int expert, int half) {
    Box box = box_whole(pieces->parameter->whole);
    box.offset[0] = expert;
    box.shape.dim[0] = 1;
    if (half >= 0) {
        box.offset[1] = half;
        box.shape.dim[1] = 1;
    }
    const char *whole = arena_printf(pieces->arena, "block_sparse_moe.experts.%d.%s", expert, name);
    add_box(pieces, name_of(pieces, whole), &box, 2);
}

static void add_attention(Pieces *pieces, const ModelConfig *config) {
    int64_t queries = config->n_heads * config_head_size(config),
            keys = config->n_kv_heads * config_head_size(config);
    add_rows(pieces, "self_attn.q_proj", 0, queries);
    add_rows(pieces, "self_attn.k_proj", queries, keys);
    add_rows(pieces, "self_attn.v_proj", queries + keys, keys);
}

static void add_llama(Pieces *pieces, const ModelConfig *config) {
    const Parameter *parameter = pieces->parameter;
    int n_experts = (int)config->n_experts;
    switch (parameter->role) {
    case ROLE_TOKEN_TABLE: add_whole(pieces, name_of(pieces, "embed_tokens")); return;
    case ROLE_FINAL_NORM_WEIGHT: add_whole(pieces, name_of(pieces, "norm")); return;
    case ROLE_HEAD_WEIGHT: add_whole(pieces, HUGGINGFACE_HEAD); return;
    case ROLE_NORM1_WEIGHT: add_whole(pieces, name_of(pieces, "input_layernorm")); return;
    case ROLE_NORM2_WEIGHT: add_whole(pieces, name_of(pieces, "post_attention_layernorm")); return;
    case ROLE_QKV_WEIGHT: add_attention(pieces, config); return;
    case ROLE_ATTENTION_OUT_WEIGHT: add_whole(pieces, name_of(pieces, "self_attn.o_proj")); return;
    case ROLE_FC_WEIGHT:
        add_rows(pieces, "mlp.gate_proj", 0, config->n_hidden);
        add_rows(pieces, "mlp.up_proj", config->n_hidden, config->n_hidden);
        return;
    case ROLE_PROJ_WEIGHT: add_whole(pieces, name_of(pieces, "mlp.down_proj")); return;
    case ROLE_ROUTER_WEIGHT: add_whole(pieces, name_of(pieces, "block_sparse_moe.gate")); return;
    case ROLE_EXPERT_FC_WEIGHT:
        for (int i = 0; i < 2 * n_experts; i++) add_expert(pieces, i % 2 ? "w3" : "w1", i / 2, i % 2);
        return;
    case ROLE_EXPERT_PROJ_WEIGHT:
        for (int i = 0; i < n_experts; i++) add_expert(pieces, "w2", i, -1);
        return;
    default: add_whole(pieces, parameter->name); return; /* huggingface_can_express has refused it */
    }
}

int huggingface_pieces(const ModelConfig *config, const Parameter *parameter, Arena *arena,
                       HuggingFacePiece **pieces) {
    int64_t most = config->n_experts > 1 ? 2 * config->n_experts : 3;
    Pieces list = {.parameter = parameter,
                   .arena = arena,
                   .piece = ARENA_ARRAY(arena, HuggingFacePiece, most > 3 ? most : 3)};
    if (huggingface_layout(config) == HUGGINGFACE_GPT2) {
        add_whole(&list, parameter->name);
        if (parameter->is_transposed) {
            list.piece->stored = SHAPE(parameter->whole.dim[1], parameter->whole.dim[0]);
            list.piece->is_turned = true;
        }
    } else {
        add_llama(&list, config);
    }
    *pieces = list.piece;
    return list.n;
}
