#include "numeric/quantize.h"
