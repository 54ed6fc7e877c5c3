#include "ops/knobs.h"
