/* Folders as `transformers` writes them, made for tests: the golden model's weights under Hugging Face's names. */
#ifndef PGPT_TESTS_HF_FOLDER_H
#define PGPT_TESTS_HF_FOLDER_H

#include "huggingface/huggingface.h"

enum { HF_L = 2, HF_NH = 3, HF_C = 24, HF_V = 61, HF_T = 11 }; /* as in tests/golden/gpt2.py */

/* What to write; {0} is the plain model in F32 with prefix. */
typedef struct {
    SafetensorsType type;                   /* 0 stands for F32 */
    bool is_bare;                           /* no "transformer." before the names */
    bool is_untied;                         /* with a head of its own */
    bool has_masks;                         /* attn.bias and attn.masked_bias, as old versions saved them */
    bool has_tied_head;                     /* the head although it is tied */
    float first;                            /* not 0: the first element of wte.weight */
    int n_files;                            /* more than 1: shards and an index */
    int64_t n_hidden;                       /* 0: 4 x channels */
    const char *config;                     /* text of config.json; NULL: hf_config's */
    const char *leave_out, *turn, *integer; /* a tensor to leave out, store as (out,in), or store as I32 */
    const char *extra;                      /* one more tensor of this name and one element */
} HfFolder;

/* Makes the folder. */
void hf_folder_write(const char *folder, const HfFolder *given);

/* A config.json: the fields of `change` ("\"n_head\": 5, ...") replace the usual ones, or are added. From malloc. */
char *hf_config(const HfFolder *options, const char *change);

/* Element k of the golden model's parameter in our layout. */
float hf_weight(const Parameter *parameter, int64_t k);

/* The configuration that hf_config describes, complete. */
ModelConfig hf_model_config(const HfFolder *options);

#endif
