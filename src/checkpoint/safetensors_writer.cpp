#include "checkpoint/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
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

Result<> write_all(int fd, const std::byte* data, std::size_t size, const std::filesystem::path& path) {
  while (size > 0) {
    const ssize_t count = ::write(fd, data, std::min<std::size_t>(size, std::size_t{1} << 30));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail(cannot_write("write", path));
    data += count;
    size -= static_cast<std::size_t>(count);
  }
  return {};
}

}  // namespace

struct SafetensorsWriter::State {
  std::filesystem::path path;
  std::filesystem::path temporary;
  int fd = -1;
  std::vector<std::string> names;
  std::vector<std::uint64_t> sizes;
  std::size_t current = 0;    // tensor that the next byte belongs to
  std::uint64_t written = 0;  // of the current tensor

  ~State() {
    if (fd >= 0) {
      ::close(fd);
      ::unlink(temporary.c_str());
    }
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
  state->fd = ::open(state->temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (state->fd < 0) return fail(cannot_write("create", path));
  std::byte length[8];
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<std::byte>(header.size() >> (8 * i) & 0xff);
  PIVOT_TRY_VOID(write_all(state->fd, length, sizeof length, path));
  PIVOT_TRY_VOID(
      write_all(state->fd, reinterpret_cast<const std::byte*>(header.data()), header.size(), path));
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
  PIVOT_TRY_VOID(write_all(s.fd, bytes.data(), bytes.size(), s.path));
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
  if (::fsync(s.fd) != 0) return fail(cannot_write("flush", s.path));
  if (::rename(s.temporary.c_str(), s.path.c_str()) != 0)
    return fail(cannot_write("rename into place", s.path));
  // From here on the destructor must not remove anything: the temporary name no longer exists.
  const int fd = std::exchange(s.fd, -1);
  if (::close(fd) != 0) return fail(cannot_write("close", s.path));
  return {};
}

}  // namespace pivot
