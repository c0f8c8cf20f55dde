/* The words of the embedded stories, as data; private to corpus.c, which says how the notation is read. */
#ifndef PGPT_DATA_CORPUS_GRAMMAR_H
#define PGPT_DATA_CORPUS_GRAMMAR_H

/* A named text that others use as <name>. */
typedef struct {
    const char *name, *body;
} CorpusRule;

/* Somebody. */
typedef struct {
    const char *name, *noun;
    char gender; /* 'f' or 'm' */
    const char *home;
} CorpusCharacter;

typedef struct {
    const char *place, *in_place, *to_place;
    const char *spots; /* where something can hide there: alternatives */
} CorpusPlace;

/* Something to have, and what one does with it, as "to ..." and in the past. */
typedef struct {
    const char *thing, *use, *used;
} CorpusThing;

typedef struct {
    const char *trait, *habit;
} CorpusTrait;

extern const CorpusRule corpus_rules[]; /* ends with a NULL name */
extern const CorpusCharacter corpus_characters[];
extern const CorpusPlace corpus_places[];
extern const CorpusThing corpus_things[];
extern const CorpusTrait corpus_traits[];
extern const char *const corpus_plots[];
extern const int corpus_n_characters, corpus_n_places, corpus_n_things, corpus_n_traits, corpus_n_plots;

#endif
