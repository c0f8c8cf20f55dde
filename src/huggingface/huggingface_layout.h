/* The layouts of Hugging Face: which of its tensors hold which part of a parameter of ours.
 *
 *     gpt2       GPT-2: a tensor a parameter, of the same name; matrices of the blocks are turned
 *     llama      Llama and Mistral: queries, keys and values apart, and so are SwiGLU's two matrices
 *     mixtral    the same with experts, each of which has three matrices of its own
 *
 * Each is a list of pieces: a box of our tensor, and the tensor that it is stored as.
 *
 *     HuggingFacePiece *pieces;
 *     int n = huggingface_pieces(&config, parameter, &arena, &pieces);
 */
#ifndef PGPT_HUGGINGFACE_HUGGINGFACE_LAYOUT_H
#define PGPT_HUGGINGFACE_HUGGINGFACE_LAYOUT_H

#include "base/arena.h"
#include "model/parameters.h"

typedef enum { HUGGINGFACE_GPT2, HUGGINGFACE_LLAMA, HUGGINGFACE_MIXTRAL } HuggingFaceLayout;

/* The one that a model of these options is written in, if any is (huggingface_can_express). */
HuggingFaceLayout huggingface_layout(const ModelConfig *config);

const char *huggingface_layout_name(HuggingFaceLayout layout); /* "Mixtral" */

typedef struct {
    const char *name; /* of the stored tensor; GPT-2's without its prefix */
    Box box;          /* of our tensor */
    Shape stored;     /* the box without dims of 1 in front */
    bool is_turned;   /* a matrix, stored as (columns,rows) */
} HuggingFacePiece;

/* Of the whole parameter, in its order; they cover it. From the arena; returns how many. */
int huggingface_pieces(const ModelConfig *config, const Parameter *parameter, Arena *arena,
                       HuggingFacePiece **pieces);

/* The token table, and the head that may be stored beside it although it is the same. */
const char *huggingface_token_table(const ModelConfig *config);
extern const char HUGGINGFACE_HEAD[];

#endif
