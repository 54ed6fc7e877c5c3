// Tokenizer speed on one core: loading, encoding (MB/s of UTF-8), decoding, and words that invite quadratic
// time.
//   tokenizer_bench TOKENIZER.JSON [TEXT FILE ...]
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "text/tokenizer/tokenizer.h"

namespace {

constexpr int kRepeats = 7;

// Processor time of this thread: all work here is on one thread, and waiting for a busy machine is not
// counted.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Best of several runs: other work on the machine can only slow a run down.
template <class Work>
double best_seconds(int repeats, Work&& work) {
  double best = 1e300;
  for (int i = 0; i < repeats; ++i) {
    const double start = thread_seconds();
    work();
    best = std::min(best, thread_seconds() - start);
  }
  return best;
}

void report(const pivot::Tokenizer& tokenizer, std::string_view name, std::string_view text, int repeats) {
  std::vector<pivot::TokenId> ids;
  std::string decoded;
  const double encode_s = best_seconds(repeats, [&] { ids = tokenizer.encode(text); });
  const double decode_s = best_seconds(repeats, [&] { decoded = tokenizer.decode(ids); });
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  std::printf("%-34.*s %9zu bytes %9zu tokens  encode %7.1f MB/s  decode %7.1f MB/s%s\n",
              static_cast<int>(name.size()), name.data(), text.size(), ids.size(), megabytes / encode_s,
              megabytes / decode_s, decoded == text ? "" : "  DECODES DIFFERENTLY");
}

std::string repeated(std::string_view piece, std::size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += piece;
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s TOKENIZER.JSON [TEXT FILE ...]\n", argv[0]);
    return 64;
  }
  const auto tokenizer = pivot::Tokenizer::load(argv[1]);
  if (!tokenizer) {
    std::fprintf(stderr, "%s\n", tokenizer.error().to_string().c_str());
    return 66;
  }
  const double load_s = best_seconds(kRepeats, [&] { (void)pivot::Tokenizer::load(argv[1]); });
  std::printf("load %.0f ms\n", load_s * 1e3);
  for (int i = 2; i < argc; ++i) {
    const auto text = pivot::read_file(argv[i]);
    if (!text) {
      std::fprintf(stderr, "%s\n", text.error().to_string().c_str());
      return 66;
    }
    report(*tokenizer, std::filesystem::path(argv[i]).filename().string(), *text, kRepeats);
  }
  constexpr std::size_t kMegabyte = 1'000'000;
  report(*tokenizer, "1 MB of a", repeated("a", kMegabyte), 2);
  report(*tokenizer, "1 MB of Chinese without spaces", repeated("今天天气很好我们去公园散步吧", kMegabyte),
         2);
  report(*tokenizer, "1 MB of spaces", repeated(" ", kMegabyte), 2);
  report(*tokenizer, "1 MB of one emoji", repeated("😀", kMegabyte), 2);
  report(*tokenizer, "1 MB of <｜place", repeated("<｜place▁holder▁no▁", kMegabyte), 2);
  report(*tokenizer, "1 MB of digits", repeated("3141592653", kMegabyte), 2);
  return 0;
}
