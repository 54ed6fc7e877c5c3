// Encodes texts for tools/tokenizer_parity.py: reads any number of (u32 byte count, bytes) on standard input
// and writes (u32 id count, u32 ids) for each on standard output, little-endian.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s TOKENIZER.JSON <texts >ids\n", argv[0]);
    return 64;
  }
  const auto tokenizer = pivot::Tokenizer::load(argv[1]);
  if (!tokenizer) {
    std::fprintf(stderr, "%s\n", tokenizer.error().to_string().c_str());
    return 66;
  }
  std::uint32_t length_bytes = 0;
  std::string text;
  while (std::fread(&length_bytes, sizeof length_bytes, 1, stdin) == 1) {
    text.resize(length_bytes);
    if (std::fread(text.data(), 1, length_bytes, stdin) != length_bytes) {
      std::fprintf(stderr, "a text of %u bytes ends early\n", length_bytes);
      return 65;
    }
    const std::vector<pivot::TokenId> ids = tokenizer->encode(text);
    const auto count = static_cast<std::uint32_t>(ids.size());
    std::fwrite(&count, sizeof count, 1, stdout);
    std::fwrite(ids.data(), sizeof(pivot::TokenId), ids.size(), stdout);
  }
  return std::fflush(stdout) == 0 ? 0 : 74;
}
