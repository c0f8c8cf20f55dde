/* The communicator of one: every operation is done before it begins. */
#ifndef PGPT_COMM_COMM_SELF_H
#define PGPT_COMM_COMM_SELF_H

#include "comm/comm.h"

Comm comm_self(void);

#endif
