/* What pgpt train prints on stdout. Collective where there are several ranks; the root prints. */
#ifndef PGPT_CLI_TRAIN_TRAIN_REPORT_H
#define PGPT_CLI_TRAIN_TRAIN_REPORT_H

#include "job/train_run.h"

/* The closing line of --json, if it is wanted. */
Status train_report_json(const TrainRun *run, Error *error);

Status train_report_program(const TrainRun *run, Error *error);
Status train_report_mesh(TrainRun *run, Error *error);

#endif
