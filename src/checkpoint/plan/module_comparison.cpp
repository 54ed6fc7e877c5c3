#include "checkpoint/plan/module_comparison.h"

#include <algorithm>
#include <unordered_map>

#include "base/check.h"

namespace pivot {

namespace {

std::size_t slot_of(const TensorPlace& place) {
  return static_cast<std::size_t>(place.module) + (place.draft ? kNumModules : 0);
}

}  // namespace

std::vector<StoredDeclaration> declarations_of(const TensorTable& table) {
  std::vector<StoredDeclaration> list;
  list.reserve(table.size());
  for (const TensorInfo& tensor : table.tensors()) {
    std::string name = tensor.name;
    if (!place_of(name)) name = native_name_of(name).value_or(name);
    list.push_back({std::move(name), tensor.dtype, tensor.shape});
  }
  return list;
}

std::vector<ModuleComparison> compare_modules(std::span<const StoredDeclaration> a,
                                              std::span<const StoredDeclaration> b) {
  std::vector<ModuleComparison> result(std::size_t{2} * kNumModules);
  for (std::size_t slot = 0; slot < result.size(); ++slot) {
    result[slot].module = static_cast<Module>(slot % kNumModules);
    result[slot].draft = slot >= kNumModules;
  }
  std::unordered_map<std::string_view, const StoredDeclaration*> by_name;
  by_name.reserve(b.size());
  for (const StoredDeclaration& tensor : b) {
    by_name.emplace(tensor.name, &tensor);
    const auto place = place_of(tensor.name);
    if (!place) continue;
    ModuleComparison& module = result[slot_of(*place)];
    ++module.tensors_b;
    ++module.only_b;  // until A turns out to have it
    module.bytes_b += tensor.bytes();
  }
  for (const StoredDeclaration& tensor : a) {
    const auto place = place_of(tensor.name);
    if (!place) continue;
    ModuleComparison& module = result[slot_of(*place)];
    ++module.tensors_a;
    module.bytes_a += tensor.bytes();
    const auto found = by_name.find(tensor.name);
    if (found == by_name.end()) {
      ++module.only_a;
      continue;
    }
    --module.only_b;
    ++(found->second->dtype == tensor.dtype && found->second->shape == tensor.shape ? module.same
                                                                                    : module.different);
  }
  return result;
}

const ModuleComparison& find_module(std::span<const ModuleComparison> comparisons, Module module,
                                    bool draft) {
  const auto found = std::find_if(comparisons.begin(), comparisons.end(), [&](const ModuleComparison& one) {
    return one.module == module && one.draft == draft;
  });
  PIVOT_CHECK(found != comparisons.end(), "module {}", module_name(module));
  return *found;
}

}  // namespace pivot
