#include "base/error.h"
#include <stdio.h>
