/* UTF-8 is base's, since messages need it too. */
#ifndef PGPT_DATA_UTF8_H
#define PGPT_DATA_UTF8_H

#include "base/utf8.h"

#endif
