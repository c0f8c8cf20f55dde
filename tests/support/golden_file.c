#include "golden_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

GoldenFile golden_open(const char *path) {
    GoldenFile golden = {0};
    FILE *file = fopen(path, "r");
    if (!file) fail_msg("cannot open %s: run the tests in the root of the project", path);
    int first;
    while ((first = getc(file)) == '#') {
        while (first != '\n' && first != EOF) first = getc(file);
    }
    ungetc(first, file);
    GoldenEntry next = {0};
    while (fscanf(file, "%63s %63s %d", next.label, next.tensor, &next.count) == 3) {
        assert_true(next.count >= 0);
        next.value = malloc(sizeof(float) * (size_t)(next.count + 1));
        assert_non_null(next.value);
        for (int i = 0; i < next.count; i++) {
            if (fscanf(file, "%f", &next.value[i]) != 1) {
                fail_msg("%s: %s %s ends early", path, next.label, next.tensor);
            }
        }
        golden.entry = realloc(golden.entry, sizeof(GoldenEntry) * (size_t)(golden.n_entries + 1));
        assert_non_null(golden.entry);
        golden.entry[golden.n_entries++] = next;
    }
    assert_true(feof(file));
    fclose(file);
    return golden;
}

void golden_close(GoldenFile *golden) {
    for (int i = 0; i < golden->n_entries; i++) free(golden->entry[i].value);
    free(golden->entry);
}
