#include "job/plan_budget.h"

#include "base/text/plain.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define MOST_SECONDS 3.2e9

static Status refuse_budget(const char *text, Error *error) {
    return error_user(error,
                      "--budget '%s': write devices, a machine and a time, as '8 H200, 3 days'; times are in "
                      "hours, days or weeks, of a hundred years at most",
                      plain_value(text).text);
}

/* "8 x H200" and "8x H200" are what "8 H200" is; a machine may begin with an x of its own. */
static const char *behind_times(const char *text) {
    const char *x = text + strspn(text, " ");
    return (*x == 'x' || *x == 'X') && (x[1] == ' ' || x == text) ? x + 1 : text;
}

/* A unit's name, or its plural. */
static bool is_word(const char *text, const char *word) {
    size_t n = strlen(word);
    return strncasecmp(text, word, n) == 0 &&
           (!text[n] || (tolower((unsigned char)text[n]) == 's' && !text[n + 1]));
}

Status plan_budget_parse(const char *text, PlanBudget *budget, Error *error) {
    static const struct {
        const char *word;
        double seconds;
    } units[] = {{"hour", 3600.0}, {"day", 86400.0}, {"week", 604800.0}};
    char name[200], unit[16];
    long long n = 0;
    double time = 0.0;
    int at = 0, end = 0;
    *budget = (PlanBudget){0};
    if (sscanf(text, " %lld%n", &n, &at) < 1 || n < 1 || n > 1 << 20) return refuse_budget(text, error);
    const char *rest = behind_times(text + at);
    if (sscanf(rest, " %199[^,], %lf %15[A-Za-z] %n", name, &time, unit, &end) != 3 || rest[end] ||
        !(time > 0.0))
        return refuse_budget(text, error);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (is_word(unit, units[i].word)) budget->seconds = time * units[i].seconds;
    if (!(budget->seconds > 0.0 && budget->seconds < MOST_SECONDS)) return refuse_budget(text, error);
    budget->n_devices = n;
    bool is_file = strchr(name, '.') != NULL;
    for (char *c = name; *c && !is_file; c++) *c = (char)tolower((unsigned char)*c);
    snprintf(budget->machine, sizeof budget->machine, "%s", name);
    return STATUS_OK;
}
