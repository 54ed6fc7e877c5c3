#include "tensor/view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace pivot {

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace pivot
