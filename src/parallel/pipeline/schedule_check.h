/* Can these lists be carried out? For the lists of a schedule, and for any others.
 *
 *     TRY(schedule_check(&lists, error));
 *
 * They can if every stage has each forward and each backward once (and each weight gradient, if the backward
 * is split), every forward stands before its backward, what is sent over a border is what the other side
 * waits for, in its order, and all come to their end with unbuffered sends. If not, the error says what is
 * wrong, or who waits for whom:
 *
 *     the stages wait for each other: stage 0 cannot send forward 5 before stage 1 begins forward 3;
 *     stage 1 cannot send backward 2 before stage 0 begins backward 0 */
#ifndef PGPT_PARALLEL_PIPELINE_SCHEDULE_CHECK_H
#define PGPT_PARALLEL_PIPELINE_SCHEDULE_CHECK_H

#include "parallel/pipeline/lists.h"

Status schedule_check(const ScheduleLists *lists, Error *error);

#endif
