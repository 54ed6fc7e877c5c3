// One expert as the kernels find it in a layer's table.
#pragma once

#include "tensor/matrix.h"

namespace pivot::cuda {

struct DeviceExpert {  // placed matrices (placement/tile_format.h)
  Matrix w1, w3, w2;
};

}  // namespace pivot::cuda
