#include "needle_story.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace pivot::cli {
namespace {

constexpr std::array<std::string_view, 24> kKeys = {
    "Seba",  "Elah",  "Nazareth", "Eliab",  "Jarmuth", "Husham", "Nebo",   "Goliath",
    "Ophir", "Ehud",  "Amoz",     "Pharez", "Azmon",   "Ariel",  "Nemuel", "Jachin",
    "Amasa", "Shema", "Dedan",    "Zidon",  "Omar",    "Bezer",  "Obed",   "Bashan"};
constexpr std::int64_t kNumDecoys = 2;
// Question, encoding marks and answer; generous, since prompt_tokens is an upper bound.
constexpr std::int64_t kOverheadTokens = 160;
constexpr std::int64_t kFewestVerses = 8;
constexpr std::size_t kValueDigits = 6;

// SplitMix64: the story must be the same on every machine, which <random>'s distributions do not promise.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : state_(seed) {}
  std::uint64_t below(std::uint64_t limit) {
    state_ += 0x9e3779b97f4a7c15ull;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (z ^ (z >> 31)) % limit;
  }

 private:
  std::uint64_t state_;
};

std::string needle_sentence(std::string_view key, std::string_view value) {
  return fmt::format(" It is written that the secret code for {} is {}.", key, value);
}

std::vector<std::string_view> split_verses(std::string_view book) {
  std::vector<std::string_view> verses;
  while (!book.empty()) {
    const std::size_t end = std::min(book.find('\n'), book.size());
    if (end > 0) verses.push_back(book.substr(0, end));
    book.remove_prefix(std::min(end + 1, book.size()));
  }
  return verses;
}

}  // namespace

Result<Story> tell_story(std::string_view book, const StoryOptions& options,
                         const CountTokens& count_tokens) {
  if (options.depth > 1) {
    return fail(ErrorCode::kInvalidArgument, "the depth is {}; it lies between 0 (start) and 1 (end)",
                options.depth);
  }
  std::vector<std::string_view> verses = split_verses(book);
  std::int64_t tokens = kOverheadTokens;
  std::size_t fitting = 0;
  for (; fitting < verses.size(); ++fitting) {
    tokens += count_tokens(fmt::format(" {}", verses[fitting]));
    if (tokens > options.prompt_tokens) break;
  }
  if (static_cast<std::int64_t>(fitting) < kFewestVerses) {
    return fail(ErrorCode::kInvalidArgument,
                "{} verses of the book fit into {} tokens; at least {} are wanted: allow more tokens, or "
                "give another book",
                fitting, options.prompt_tokens, kFewestVerses);
  }
  verses.resize(fitting);

  Draws draws(options.seed);
  std::array<std::string_view, kKeys.size()> keys = kKeys;
  for (std::size_t i = 0; i <= kNumDecoys; ++i) std::swap(keys[i], keys[i + draws.below(keys.size() - i)]);
  const auto draw_value = [&draws] { return fmt::format("{:06d}", draws.below(1'000'000)); };

  Story story;
  story.key = keys[0];
  story.value = draw_value();
  story.needle = needle_sentence(story.key, story.value);
  story.question = fmt::format("What is the secret code for {}?", story.key);
  story.answer_opening = fmt::format("The secret code for {} is ", story.key);
  story.num_verses = static_cast<std::int64_t>(verses.size());
  story.num_decoys = kNumDecoys;
  const double wanted =
      options.depth < 0 ? 0.1 + 0.8 * static_cast<double>(draws.below(1000)) / 999.0 : options.depth;
  const auto place = static_cast<std::size_t>(std::llround(wanted * static_cast<double>(verses.size())));
  story.depth = static_cast<double>(place) / static_cast<double>(verses.size());

  // (verse before which it stands, sentence); the fact comes first where places are equal.
  std::vector<std::pair<std::size_t, std::string>> inserts = {{place, story.needle}};
  for (std::size_t i = 1; i <= kNumDecoys; ++i) {
    const std::string value = draw_value();
    inserts.emplace_back(draws.below(verses.size()), needle_sentence(keys[i], value));
  }
  std::stable_sort(inserts.begin(), inserts.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::size_t next = 0;
  for (std::size_t i = 0; i <= verses.size(); ++i) {
    for (; next < inserts.size() && inserts[next].first == i; ++next) story.prompt += inserts[next].second;
    if (i < verses.size()) story.prompt += fmt::format(" {}", verses[i]);
  }
  story.prompt += " That is the end of the text.\n\n" + story.question;
  story.needle.erase(0, 1);
  return story;
}

std::string value_in_answer(std::string_view answer, std::string_view opening) {
  const std::size_t at = answer.find(opening);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = answer.substr(at + opening.size());
  const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  return digits == kValueDigits ? std::string(rest.substr(0, digits)) : std::string();
}

}  // namespace pivot::cli
