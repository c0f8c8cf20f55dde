#include "job/plan_budget.h"

#include "base/text/plain.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static Status refuse_budget(const char *text, Error *error) {
    return error_user(error,
                      "--budget '%s': write devices, a machine and a time, as '8 H200, 3 days'; times are in "
                      "hours, days or weeks",
                      plain_value(text).text);
}

Status plan_budget_parse(const char *text, PlanBudget *budget, Error *error) {
    static const struct {
        const char *word;
        double seconds;
    } units[] = {{"hour", 3600.0}, {"day", 86400.0}, {"week", 604800.0}};
    char name[200], unit[16];
    long long n = 0;
    double time = 0.0;
    *budget = (PlanBudget){0};
    int n_read = sscanf(text, " %lld %*[x ]", &n);
    const char *rest = text;
    while (*rest && !isalpha((unsigned char)*rest) && *rest != '/' && *rest != '.') rest++;
    if (n_read < 1 || sscanf(rest, "%199[^,], %lf %15[a-z]", name, &time, unit) != 3 || n < 1 ||
        n > 1 << 20 || !(time > 0.0))
        return refuse_budget(text, error);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strncmp(unit, units[i].word, strlen(units[i].word)) == 0)
            budget->seconds = time * units[i].seconds;
    if (budget->seconds <= 0.0) return refuse_budget(text, error);
    budget->n_devices = n;
    bool is_file = strchr(name, '.') != NULL;
    for (char *c = name; *c && !is_file; c++) *c = (char)tolower((unsigned char)*c);
    snprintf(budget->machine, sizeof budget->machine, "%s", name);
    return STATUS_OK;
}
