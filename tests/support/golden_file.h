/* Recorded values: a text file of entries "CASE TENSOR COUNT" and COUNT numbers each, '#' lines in front. */
#ifndef PGPT_TESTS_GOLDEN_FILE_H
#define PGPT_TESTS_GOLDEN_FILE_H

typedef struct {
    char label[64], tensor[64];
    int count;
    float *value;
} GoldenEntry;

typedef struct {
    int n_entries;
    GoldenEntry *entry;
} GoldenFile;

/* Fails the test when the file is missing or not of this form. */
GoldenFile golden_open(const char *path);
void golden_close(GoldenFile *golden);

#endif
