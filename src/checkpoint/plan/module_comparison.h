// Two tensor lists side by side, module by module: what a migration report can say from headers alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/modules/modules.h"
#include "checkpoint/safetensors.h"

namespace pivot {

struct ModuleComparison {
  Module module = Module::kNorm;
  bool draft = false;
  std::int64_t tensors_a = 0;
  std::int64_t tensors_b = 0;
  std::int64_t same = 0;       // name, dtype and shape agree
  std::int64_t different = 0;  // the name is on both sides with another dtype or shape
  std::int64_t only_a = 0;
  std::int64_t only_b = 0;
  std::int64_t bytes_a = 0;
  std::int64_t bytes_b = 0;
  bool absent() const { return tensors_a == 0 && tensors_b == 0; }
  bool equal() const { return different == 0 && only_a == 0 && only_b == 0; }
};

// A tensor list with native names: of a header set, or as config and formats call for.
std::vector<StoredDeclaration> declarations_of(const TensorTable& table);

// One entry per module, backbone first, then draft; absent ones included so that lookups never fail.
std::vector<ModuleComparison> compare_modules(std::span<const StoredDeclaration> a,
                                              std::span<const StoredDeclaration> b);
const ModuleComparison& find_module(std::span<const ModuleComparison> comparisons, Module module,
                                    bool draft = false);

}  // namespace pivot
