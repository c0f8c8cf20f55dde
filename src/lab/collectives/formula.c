/* Sums of products, from left to right, in which factors stand side by side: "(N-1)n + n/2 log2 N". Written
 * formulas are for readers; to know whether they hold here, somebody has to work them out. */
#include "lab/collectives/formula.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *next;
    double n;
    int n_ranks;
} Reader;

static void skip_blanks(Reader *reader) {
    while (*reader->next == ' ') reader->next++;
}

static double read_sum(Reader *reader);

/* A number, n, N, log2 N, or a sum between brackets. */
static double read_factor(Reader *reader) {
    skip_blanks(reader);
    if (strncmp(reader->next, "log2 N", 6) == 0) {
        int log = 0;
        while ((1L << log) < reader->n_ranks) log++;
        reader->next += 6;
        return log;
    }
    if (*reader->next >= '0' && *reader->next <= '9') {
        char *end;
        double value = strtod(reader->next, &end);
        reader->next = end;
        return value;
    }
    char letter = *reader->next;
    if (letter) reader->next++;
    if (letter == 'n') return reader->n;
    if (letter == 'N') return reader->n_ranks;
    if (letter != '(') return NAN;
    double value = read_sum(reader);
    if (*reader->next != ')') return NAN;
    reader->next++;
    return value;
}

static double read_product(Reader *reader) {
    double value = read_factor(reader);
    for (skip_blanks(reader); *reader->next && !strchr("+-)", *reader->next) && !isnan(value);
         skip_blanks(reader)) {
        bool divides = *reader->next == '/';
        reader->next += divides;
        double factor = read_factor(reader);
        value = divides ? value / factor : value * factor;
    }
    return value;
}

static double read_sum(Reader *reader) {
    double value = read_product(reader);
    for (skip_blanks(reader); (*reader->next == '+' || *reader->next == '-') && !isnan(value);
         skip_blanks(reader)) {
        double sign = *reader->next++ == '-' ? -1 : 1;
        value += sign * read_product(reader);
    }
    return value;
}

double collective_formula(const char *text, double n, int n_ranks) {
    Reader reader = {.next = text, .n = n, .n_ranks = n_ranks};
    double value = read_sum(&reader);
    return *reader.next ? NAN : value;
}
