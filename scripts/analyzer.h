/* Included by scripts/lint in front of every file but base/error.c: what an analyzer that sees one file at a time
 * cannot know, namely that a function which sets an error never returns STATUS_OK. */
#ifndef PGPT_SCRIPTS_ANALYZER_H
#define PGPT_SCRIPTS_ANALYZER_H

#include "base/error.h"

#ifndef error_failed
#    define error_failed(...) (error_failed(__VA_ARGS__), STATUS_FAILED)
#    define error_user(...)   (error_user(__VA_ARGS__), STATUS_USER)
#    define error_prefix(...) (error_prefix(__VA_ARGS__), STATUS_FAILED)
#endif

#endif
