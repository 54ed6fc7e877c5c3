#include "checkpoint/safetensors_writer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/file.h"
#include "base/sequential_file.h"
#include "checkpoint/safetensors.h"

namespace pivot {
namespace {

// Names are written as JSON strings; ASCII escapes keep any byte sequence a valid header.
std::string json_string(std::string_view text) {
  return nlohmann::json(std::string(text)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Error cannot_write(std::string_view action, const std::filesystem::path& path) {
  Error error = errno_error(errno, action, path);
  error.code = ErrorCode::kCannotCreate;
  return error;
}

}  // namespace

struct SafetensorsWriter::State {
  std::filesystem::path path;
  std::filesystem::path temporary;
  std::optional<SequentialFile> file;
  bool in_place = false;  // renamed: nothing temporary is left
  std::vector<std::string> names;
  std::vector<std::uint64_t> sizes;
  std::size_t current = 0;    // tensor that the next byte belongs to
  std::uint64_t written = 0;  // of the current tensor

  ~State() {
    if (!in_place) ::unlink(temporary.c_str());
  }
  // Tensors of no bytes are complete as soon as they are current.
  void skip_complete() {
    while (current < sizes.size() && written == sizes[current]) {
      ++current;
      written = 0;
    }
  }
};

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

Result<SafetensorsWriter> SafetensorsWriter::create(
    const std::filesystem::path& path, std::vector<TensorDeclaration> tensors,
    std::vector<std::pair<std::string, std::string>> metadata) {
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (std::size_t i = 0; i < metadata.size(); ++i) {
      header += (i == 0 ? "" : ",") + json_string(metadata[i].first) + ":" + json_string(metadata[i].second);
    }
    header += "}";
  }
  auto state = std::make_unique<State>();
  std::set<std::string_view> names;
  std::uint64_t offset = 0;
  for (const TensorDeclaration& tensor : tensors) {
    if (tensor.name == "__metadata__" || !names.insert(tensor.name).second) {
      return fail(ErrorCode::kInvalidArgument, "cannot write {}: tensor name {} is taken", path.string(),
                  quote_name(tensor.name));
    }
    std::int64_t bytes = dtype_bytes(tensor.dtype);
    std::string shape;
    for (std::int64_t extent : tensor.shape) {
      if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) {
        return fail(ErrorCode::kInvalidArgument, "cannot write {}: tensor {} has the impossible shape {}",
                    path.string(), quote_name(tensor.name), to_string(tensor.shape));
      }
      shape += (shape.empty() ? "" : ",") + std::to_string(extent);
    }
    const auto size = static_cast<std::uint64_t>(bytes);
    if (header.size() > 1) header += ",";
    header += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                          json_string(tensor.name), dtype_name(tensor.dtype), shape, offset, offset + size);
    offset += size;
    state->names.push_back(tensor.name);
    state->sizes.push_back(size);
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  if (header.size() > kMaxHeaderBytes) {
    return fail(ErrorCode::kInvalidArgument,
                "cannot write {}: its header of {} bytes is above the format's limit of {}", path.string(),
                header.size(), kMaxHeaderBytes);
  }
  state->path = path;
  state->temporary = path;
  state->temporary += fmt::format(".tmp.{}", ::getpid());
  PIVOT_TRY(state->file, SequentialFile::create(state->temporary));
  std::byte length[8];
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<std::byte>(header.size() >> (8 * i) & 0xff);
  PIVOT_TRY_VOID(state->file->append(length));
  PIVOT_TRY_VOID(state->file->append(std::as_bytes(std::span(header))));
  state->skip_complete();
  return SafetensorsWriter(std::move(state));
}

Result<> SafetensorsWriter::append(std::string_view tensor, std::span<const std::byte> bytes) {
  State& s = *state_;
  if (bytes.empty()) return {};
  if (s.current == s.names.size() || s.names[s.current] != tensor) {
    return fail(ErrorCode::kInternal, "writing {}: bytes of tensor {} came while {} was due", s.path.string(),
                quote_name(tensor), s.current == s.names.size() ? "the end" : quote_name(s.names[s.current]));
  }
  if (bytes.size() > s.sizes[s.current] - s.written) {
    return fail(ErrorCode::kInternal, "writing {}: tensor {} has {} bytes, more came", s.path.string(),
                quote_name(tensor), s.sizes[s.current]);
  }
  PIVOT_TRY_VOID(s.file->append(bytes));
  s.written += bytes.size();
  s.skip_complete();
  return {};
}

Result<> SafetensorsWriter::finish() {
  State& s = *state_;
  if (s.current != s.names.size()) {
    return fail(ErrorCode::kInternal, "writing {}: tensor {} got {} of its {} bytes", s.path.string(),
                quote_name(s.names[s.current]), s.written, s.sizes[s.current]);
  }
  PIVOT_TRY_VOID(s.file->finish());
  if (::rename(s.temporary.c_str(), s.path.c_str()) != 0)
    return fail(cannot_write("rename into place", s.path));
  s.in_place = true;
  return {};
}

}  // namespace pivot
