// Writes one safetensors file: declare every tensor, then append the data in that order. Complete or absent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tensor/view.h"

namespace pivot {

struct TensorDeclaration {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
};

class SafetensorsWriter {
 public:
  // Creates a temporary file beside `path` and writes the header (padded so that the data start at a multiple
  // of 8). Tensors lie in the order given. Fails with kCannotCreate where the folder is not writable and with
  // kInvalidArgument on duplicate names, negative extents or a header beyond kMaxHeaderBytes.
  static Result<SafetensorsWriter> create(const std::filesystem::path& path,
                                          std::vector<TensorDeclaration> tensors,
                                          std::vector<std::pair<std::string, std::string>> metadata = {});
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;
  ~SafetensorsWriter();  // without finish(): the temporary file is removed

  // Appends bytes of the current tensor; a call may end inside a tensor but not cross into the next one's
  // declaration by mistake: `tensor` names the one the bytes belong to and must be the current one.
  Result<> append(std::string_view tensor, std::span<const std::byte> bytes);
  template <class T>
  Result<> append_values(std::string_view tensor, std::span<const T> values) {
    return append(tensor, std::as_bytes(values));
  }
  // Checks that every declared byte came, flushes and renames into place.
  Result<> finish();

 private:
  struct State;
  explicit SafetensorsWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace pivot
