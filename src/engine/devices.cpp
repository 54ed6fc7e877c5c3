#include "engine/devices.h"

#include <charconv>

#include "engine/cuda_devices.h"
#include "ops/cpu/reference/backend.h"
#include "ops/cpu/simd/backend.h"

namespace pivot {
namespace {

constexpr int kMaxThreads = 1024;

// "cuda" is cuda:0, "cuda:N" is N; -1 for anything else.
int cuda_ordinal(std::string_view device) {
  if (device == "cuda") return 0;
  if (!device.starts_with("cuda:")) return -1;
  const std::string_view digits = device.substr(5);
  int ordinal = -1;
  const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), ordinal);
  return status == std::errc{} && end == digits.data() + digits.size() ? ordinal : -1;
}

}  // namespace

std::vector<std::string> device_words() {
  std::vector<std::string> words = {"auto", "cpu", "cpu-reference"};
  if (has_cuda_backend()) words.insert(words.end(), {"cuda", "cuda:N"});
  return words;
}

Result<std::shared_ptr<Backend>> make_backend(std::string_view device, int num_threads) {
  if (num_threads < 0 || num_threads > kMaxThreads)
    return fail(ErrorCode::kInvalidArgument,
                "{} threads are not possible; choose 1 to {}, or 0 for one per core", num_threads,
                kMaxThreads);
  if (device == "auto") device = cuda_device_count() > 0 ? "cuda" : "cpu";
  if (device == "cpu") return std::shared_ptr<Backend>(make_simd_backend(num_threads));
  if (device == "cpu-reference") return std::shared_ptr<Backend>(make_reference_backend(num_threads));
  if (const int ordinal = cuda_ordinal(device); ordinal >= 0) return make_cuda_device(ordinal);
  return fail(ErrorCode::kInvalidArgument, "device \"{}\" is unknown; this build has {}", device,
              fmt::join(device_words(), ", "));
}

}  // namespace pivot
