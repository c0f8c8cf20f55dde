/* What a router does with all experts of a token, in vectors (RouteMath of ops/experts/route_rules.h). */
#ifndef PGPT_BACKEND_CPU_EXPERTS_ROUTE_LANES_H
#define PGPT_BACKEND_CPU_EXPERTS_ROUTE_LANES_H

#include "ops/experts/route_rules.h"

extern const RouteMath cpu_route_math;

#endif
