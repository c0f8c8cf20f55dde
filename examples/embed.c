/* A text completed by a model of pgpt: cc embed.c $(pkg-config --cflags --libs pgpt) -o embed
 *
 *     embed MODEL PROMPT    MODEL: a run's folder, a checkpoint's, or a GPT-2 of Hugging Face */
#include <pgpt.h>
#include <stdio.h>
#include <string.h>

static int show(void *stream, const pgpt_token *token) {
    fwrite(token->bytes, 1, token->n_bytes, stream);
    return fflush(stream); /* other than 0 ends the text */
}

int main(int argc, char **argv) {
    static const char *const options[] = {"tokens=60", "temperature=0.8", "seed=1", NULL};
    pgpt_error error;
    pgpt_model *model;
    if (argc != 3) {
        fprintf(stderr, "usage: embed MODEL PROMPT\n");
        return PGPT_USER;
    }
    if (pgpt_open(argv[1], NULL, &model, &error) == PGPT_OK) {
        fputs(argv[2], stdout);
        pgpt_generate(model, argv[2], strlen(argv[2]), options, show, stdout, &error);
        putchar('\n');
    }
    if (error.status != PGPT_OK) fprintf(stderr, "embed: %s\n", error.text);
    pgpt_close(model);
    return (int)error.status;
}
