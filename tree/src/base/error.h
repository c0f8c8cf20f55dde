#ifndef PGPT_BASE_ERROR_H
#define PGPT_BASE_ERROR_H
#endif
