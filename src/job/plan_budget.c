#include "job/plan_budget.h"

#include "base/text/plain.h"
#include "plan/machine.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MOST_SECONDS 3.2e9

static Status refuse_budget(const char *text, Error *error) {
    return error_user(error,
                      "--budget '%s': write devices, a machine and a time, as '8 H200, 3 days'; times are in "
                      "minutes, hours, days, weeks, months or years, a hundred at most",
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

/* Seconds of a unit; 0: it is none. */
static double unit_seconds(const char *unit) {
    static const struct {
        const char *word, *letter;
        double seconds;
    } units[] = {{"minute", "min", 60.0}, {"hour", "h", 3600.0},      {"day", "d", 86400.0},
                 {"week", "w", 604800.0}, {"month", "month", 2592e3}, {"year", "y", 31536e3}};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (is_word(unit, units[i].word) || strcasecmp(unit, units[i].letter) == 0) return units[i].seconds;
    return 0.0;
}

/* Takes "3 days" from the end of a text, and the comma or the "for" in front of it; seconds, 0: there are
 * none. */
static double take_time(char *text) {
    char *end = text + strlen(text), *unit;
    while (end > text && isspace((unsigned char)end[-1])) *--end = '\0';
    for (unit = end; unit > text && isalpha((unsigned char)unit[-1]);) unit--;
    char *number = unit;
    while (number > text && isspace((unsigned char)number[-1])) number--;
    while (number > text && !isspace((unsigned char)number[-1]) && number[-1] != ',') number--;
    char *behind;
    double time = strtod(number, &behind);
    behind += strspn(behind, " ");
    if (behind != unit || behind == number || !(time > 0.0)) return 0.0;
    double seconds = time * unit_seconds(unit);
    *number = '\0';
    size_t n = strlen(text);
    while (n && (text[n - 1] == ' ' || text[n - 1] == ',')) text[--n] = '\0';
    if (n > 4 && strcasecmp(text + n - 4, " for") == 0) text[n - 4] = '\0';
    return seconds;
}

/* As machine files are called: in small letters, one of several. */
static void name_machine(char *name) {
    size_t n = strlen(name);
    while (n && name[n - 1] == ' ') name[--n] = '\0';
    if (strchr(name, '.')) return; /* a file */
    for (char *c = name; *c; c++) *c = (char)tolower((unsigned char)*c);
    if (n < 2 || name[n - 1] != 's' || machine_text(name)) return;
    name[n - 1] = '\0';
    if (!machine_text(name)) name[n - 1] = 's';
}

Status plan_budget_parse(const char *text, PlanBudget *budget, Error *error) {
    char words[240];
    long long n = 0;
    int at = 0;
    *budget = (PlanBudget){0};
    if (strlen(text) >= sizeof words) return refuse_budget(text, error);
    snprintf(words, sizeof words, "%s", text);
    budget->seconds = take_time(words);
    if (!(budget->seconds > 0.0 && budget->seconds < MOST_SECONDS)) return refuse_budget(text, error);
    if (sscanf(words, " %lld%n", &n, &at) < 1 || n < 1 || n > 1 << 20) return refuse_budget(text, error);
    const char *name = behind_times(words + at);
    name += strspn(name, " ");
    if (!isalpha((unsigned char)*name) && !strchr(name, '/')) return refuse_budget(text, error);
    budget->n_devices = n;
    snprintf(budget->machine, sizeof budget->machine, "%s", name);
    name_machine(budget->machine);
    return STATUS_OK;
}
