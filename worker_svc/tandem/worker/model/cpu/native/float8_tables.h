// The numbers of bf16 that those of e4m3 are. Below 8, codes are multiples of 2^-9.

#pragma once

#include "byte_tables.h"

#define OF_FLOAT8(CODE) ((CODE) == 127 ? 0x7fc0 : (CODE) < 8 ? BITS_OF(CODE, -9) : 16 * (CODE) + 0x3c00)
BYTE_TABLES_OF(TABLES, OF_FLOAT8)
#define FLOAT8_TABLES TABLES
