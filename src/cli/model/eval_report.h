/* What pgpt eval says: for people, as JSON, and token by token. */
#ifndef PGPT_CLI_MODEL_EVAL_REPORT_H
#define PGPT_CLI_MODEL_EVAL_REPORT_H

#include "base/file/file.h"
#include "infer/score_set.h"

typedef struct {
    const ScoreSet *set; /* scored */
    ScoreSummary summary;
    const char *task, *data, *model; /* as the user called them; the model by the folder that was read */
    int64_t step;                    /* of the checkpoint */
    ScoreOptions options;            /* complete */
    int64_t n_read;                  /* tokens that the model read for it */
    double seconds;
    size_t peak_bytes;
    bool was_interrupted;
} EvalReport;

void eval_report_print(const EvalReport *report, FILE *stream);
Status eval_report_json(const EvalReport *report, FILE *stream, Error *error);

/* One line a scored token, in the order of the data; of running text the first token too, with null for what
 * it was not scored with. */
Status eval_report_tokens(const ScoreSet *set, FileWriter *writer, Error *error);

#endif
