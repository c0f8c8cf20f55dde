/* Names of parts of a tensor, a line each, as a checkpoint's files might have them. The first byte chooses the tensor.
 * What is read lies in the tensor, is written as it was read, and if the parts are said to have every element once,
 * counting them one by one agrees. */
#include "fuzz.h"

#include "checkpoint/checkpoint_cover.h"
#include "checkpoint/part_name.h"

#include <string.h>

enum { MOST_ELEMENTS = 120, MOST_PARTS = 2048 };

static void check_name(const char *ending, Shape whole, const BoxRange *range, Shape shape) {
    Arena arena = {0};
    Shape again;
    FUZZ_CHECK(box_is_within(&range->box, whole) && range->n > 0 && range->first >= 0);
    FUZZ_CHECK(range->first + range->n <= shape_count(range->box.shape));
    FUZZ_CHECK(shape_count(shape) == range->n);
    BoxRange flat = box_range_flat(range, whole), got;
    const char *name = part_name_write("", "", whole, &flat, &again, &arena);
    const Box all = box_whole(whole); /* of which a part has several names */
    bool is_whole = box_equal(&flat.box, &all), is_all = flat.n == shape_count(flat.box.shape);
    if (!is_whole && !is_all) FUZZ_CHECK(strcmp(name, ending) == 0);
    FUZZ_CHECK(part_name_read(name, whole, &got, &again) == PART_NAME_SOUND);
    FUZZ_CHECK(box_equal(&got.box, &flat.box) && got.first == flat.first && got.n == flat.n);
    arena_free(&arena);
}

static void check_cover(const BoxRange *ranges, int n_ranges, Shape whole) {
    static const BoxRange *pointers[MOST_PARTS];
    int64_t n_found[MOST_ELEMENTS] = {0}, n_missing = 0, n_double = 0;
    const Box all = box_whole(whole);
    for (int i = 0; i < n_ranges; i++) {
        pointers[i] = &ranges[i];
        for (int64_t k = 0; k < ranges[i].n; k++)
            n_found[box_element(&ranges[i].box, &all, ranges[i].first + k)]++;
    }
    for (int64_t e = 0; e < shape_count(whole); e++) n_missing += n_found[e] == 0, n_double += n_found[e] > 1;
    Arena arena = {0};
    Cover cover = checkpoint_cover(pointers, n_ranges, whole, &arena);
    arena_free(&arena);
    if (n_double) FUZZ_CHECK(cover.flaw == COVER_OVERLAP && cover.first != cover.second);
    else FUZZ_CHECK(cover.flaw == (n_missing ? COVER_GAP : COVER_EXACT) && cover.n_missing == n_missing);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    static const Shape shapes[] = {{1, {7}}, {2, {4, 6}}, {3, {3, 4, 5}}, {4, {2, 3, 4, 5}}};
    static BoxRange ranges[MOST_PARTS];
    if (n_bytes == 0) return 0;
    Shape whole = shapes[bytes[0] % 4];
    char *text = malloc(n_bytes);
    FUZZ_CHECK(text);
    memcpy(text, bytes + 1, n_bytes - 1);
    text[n_bytes - 1] = 0;
    int n_ranges = 0;
    char *rest = text;
    for (char *line; n_ranges < MOST_PARTS && (line = strsep(&rest, "\n"));) {
        Shape shape;
        if (part_name_read(line, whole, &ranges[n_ranges], &shape) != PART_NAME_SOUND) continue;
        check_name(line, whole, &ranges[n_ranges++], shape);
    }
    check_cover(ranges, n_ranges, whole);
    free(text);
    return 0;
}
