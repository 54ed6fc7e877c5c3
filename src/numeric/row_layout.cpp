#include "numeric/row_layout.h"
