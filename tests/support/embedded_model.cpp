#include "support/embedded_model.h"

namespace pivot::test {

std::filesystem::path embedded_model_dir() { return PIVOT_NEEDLE_DIR; }

std::filesystem::path needle_cases_file() { return PIVOT_NEEDLE_CASES; }

}  // namespace pivot::test
