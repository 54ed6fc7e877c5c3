// Putting a prompt together, to the token.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "recall/draws.h"
#include "recall/haystack.h"
#include "recall/task.h"
#include "recall/words.h"
#include "text/chat/encode.h"
#include "text/tokenizer/tokenizer.h"

namespace pivot::recall {
namespace {

// A sentence to hide: `before` and `after` are its text around the value.
struct Fact {
  std::string before;
  std::string value;
  std::string after;
  bool asked = false;
};

// What the task hides and asks. facts[0] is placed exactly; the others anywhere, or after it in their order.
struct Riddle {
  std::vector<Fact> facts;
  bool ordered = false;
  std::string question;
  std::vector<std::string> expected;
  std::vector<std::string> foreign;
  std::int64_t answer_tokens = 64;
};

class Riddler {
 public:
  Riddler(Wording wording, Draws& draws, std::int64_t length)
      : wording_(wording), draws_(draws), length_(length) {}

  Riddle make(Task task) {
    switch (task) {
      case Task::kSingle:
        return keyed("code", 3, 1, 1, draw_number);
      case Task::kSingleWord:
        return keyed("word", 3, 1, 1, [](Draws& d) { return d.one_of(common_words()); });
      case Task::kSingleString:
        return keyed("code", 3, 1, 1, draw_code);
      case Task::kMultiKey: {
        const std::int64_t keys = std::clamp<std::int64_t>(length_ / 128, 3, 256);
        return keyed("code", static_cast<std::size_t>(keys), 1, 1, draw_number);
      }
      case Task::kMultiValue:
        return keyed("code", 3, 1, 3, draw_number);
      case Task::kMultiQuery:
        return keyed("code", 5, 3, 1, draw_number);
      case Task::kVerbatim:
        return verbatim();
      case Task::kVariables:
        return variables();
      case Task::kFrequentWords:
        return frequent();
      case Task::kRounds:
        return rounds();
      case Task::kTally:
        return tally();
    }
    return {};
  }

 private:
  template <class DrawValue>
  std::string fresh(const DrawValue& draw_value) {
    std::string value;
    do value = draw_value(draws_);
    while (std::find(used_.begin(), used_.end(), value) != used_.end());
    used_.push_back(value);
    return value;
  }

  // `keys` facts of one form, the first `asked` of them asked for, `values` values of each asked key.
  template <class DrawValue>
  Riddle keyed(std::string_view kind, std::size_t keys, std::size_t asked, std::size_t values,
               const DrawValue& draw_value) {
    Riddle riddle;
    const std::vector<std::string> names = draw_keys(draws_, keys);
    for (std::size_t i = 0; i < keys; ++i)
      for (std::size_t v = 0; v < (i < asked ? values : 1); ++v) {
        const std::string value = fresh(draw_value);
        riddle.facts.push_back({needle_opening(kind, names[i]), value, ".", i < asked});
        (i < asked ? riddle.expected : riddle.foreign).push_back(value);
      }
    std::string list = names[0];
    for (std::size_t i = 1; i < asked; ++i) list += (i + 1 == asked ? " and " : ", ") + names[i];
    const bool several = asked > 1 || values > 1;
    if (wording_ == Wording::kNeedle) {
      static const std::vector<std::string> kAsks = {
          "What is the secret {0} for {1}?", "Tell me the secret {0} for {1}.",
          "Recall the secret {0} for {1}.", "Say the secret {0} for {1}.",
          "Which {0} is the secret {0} for {1}?"};
      riddle.question = several ? fmt::format("What are all the secret {}s for {}?", kind, list)
                                : fmt::format(fmt::runtime(draws_.one_of(kAsks)), kind, list);
    } else {
      riddle.question = several
                            ? fmt::format(
                                  "What are all the special magic {0}s for {1} mentioned in the text above? "
                                  "Answer with the {0}s alone, separated by commas.",
                                  kind, list)
                            : fmt::format(
                                  "What is the special magic {0} for {1} mentioned in the text above? "
                                  "Answer with the {0} alone.",
                                  kind, list);
    }
    riddle.answer_tokens = 32 + 24 * static_cast<std::int64_t>(riddle.expected.size());
    return riddle;
  }

  std::string needle_opening(std::string_view kind, std::string_view key) {
    static const std::vector<std::string> kOpenings = {
        " The", " Remember that the", " It is written that the", " Know that the", " And the"};
    if (wording_ == Wording::kNeedle)
      return fmt::format("{} secret {} for {} is ", draws_.one_of(kOpenings), kind, key);
    return fmt::format(" One of the special magic {}s for {} is: ", kind, key);
  }

  std::string word_line(int words) {
    std::string line;
    for (int i = 0; i < words; ++i) line += (i == 0 ? "" : " ") + draws_.one_of(common_words());
    return line;
  }

  Riddle verbatim() {
    Riddle riddle;
    const std::vector<std::string> names = draw_keys(draws_, 3);
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::string line = word_line(8);
      riddle.facts.push_back({fmt::format(" The line of {} reads: ", names[i]), line, ".", i == 0});
      (i == 0 ? riddle.expected : riddle.foreign).push_back(line);
    }
    riddle.question = fmt::format("Repeat the line of {} word for word, and nothing else.", names[0]);
    riddle.answer_tokens = 96;
    return riddle;
  }

  Riddle variables() {
    Riddle riddle;
    riddle.ordered = true;
    const std::string value = fresh(draw_number);
    std::vector<std::string> names = draw_keys(draws_, 6);
    riddle.facts.push_back({fmt::format(" VAR {} = ", names[0]), value, ".", true});
    for (std::size_t i = 1; i < 4; ++i)
      riddle.facts.push_back({fmt::format(" VAR {} = VAR ", names[i]), names[i - 1], ".", true});
    for (std::size_t i = 4; i < names.size(); ++i) {
      riddle.foreign.push_back(fresh(draw_number));
      riddle.facts.push_back({fmt::format(" VAR {} = ", names[i]), riddle.foreign.back(), ".", false});
    }
    riddle.question = fmt::format("What is the value of VAR {}? Answer with the number alone.", names[3]);
    riddle.expected = {value};
    return riddle;
  }

  Riddle frequent() {
    Riddle riddle;
    std::vector<std::string> words = common_words();
    draws_.shuffle(words);
    constexpr int kTimes[] = {9, 8, 7, 3, 3, 2, 2};
    for (std::size_t i = 0; i < std::size(kTimes); ++i) {
      for (int n = 0; n < kTimes[i]; ++n) riddle.facts.push_back({" Sign: ", words[i], ".", i < 3});
      (i < 3 ? riddle.expected : riddle.foreign).push_back(words[i]);
    }
    riddle.question =
        "Which three words stand most often after \"Sign:\" in the text above? Answer with the three words "
        "alone.";
    return riddle;
  }

  Riddle rounds() {
    Riddle riddle;
    riddle.ordered = true;
    std::vector<std::string> topics = draw_keys(draws_, 3);
    const std::string_view order[] = {topics[0], topics[1], topics[0], topics[2], topics[0], topics[1]};
    for (std::size_t i = 0; i < std::size(order); ++i) {
      const std::string note = fresh([](Draws& d) { return draw_number(d); });
      const bool asked = i == 2;  // the second one on topics[0]
      riddle.facts.push_back({fmt::format(" Round {}. Note on {}: ", i + 1, order[i]), note, ".", asked});
      (asked ? riddle.expected : riddle.foreign).push_back(note);
    }
    riddle.question = fmt::format("Repeat the second note on {}. Answer with the number alone.", topics[0]);
    return riddle;
  }

  // Reports of one key that disagree: 10, 6, 2, 2, 2 and 2 for six values. Keys like it fill the text up to
  // one report per 32 tokens. Every report counts, so an answer needs as many entries as there are reports.
  Riddle tally() {
    constexpr int kTimes[] = {10, 6, 2, 2, 2, 2};
    constexpr std::size_t kReports = 24;
    const auto all = static_cast<std::size_t>(
        std::clamp<std::int64_t>(length_ / 32, kReports, std::int64_t{20} * kReports));
    const std::vector<std::string> names = draw_keys(draws_, (all + kReports - 1) / kReports);
    Riddle riddle;
    for (std::size_t key = 0; key < names.size(); ++key) {
      std::vector<Fact> reports;
      for (std::size_t v = 0; v < std::size(kTimes); ++v) {
        const std::string value = fresh(draw_group);
        // Values of other keys are no answer to this one, and none of them is the asked key's.
        if (key == 0) (v == 0 ? riddle.expected : riddle.foreign).push_back(value);
        for (int n = 0; n < kTimes[v]; ++n)
          reports.push_back({needle_opening("code", names[key]), value, ".", key == 0 && v == 0});
      }
      draws_.shuffle(reports);
      // The report that is placed exactly has the winning value.
      if (key == 0)
        std::iter_swap(reports.begin(), std::find_if(reports.begin(), reports.end(),
                                                     [](const Fact& report) { return report.asked; }));
      for (Fact& report : reports)
        if (riddle.facts.size() < all) riddle.facts.push_back(std::move(report));
    }
    riddle.question =
        wording_ == Wording::kNeedle
            ? fmt::format("Which secret code for {} is given most often?", names[0])
            : fmt::format(
                  "Several special magic codes for {} are mentioned in the text above. Which of them is "
                  "mentioned most often? Answer with the code alone.",
                  names[0]);
    riddle.answer_tokens = 32;
    return riddle;
  }

  Wording wording_;
  Draws& draws_;
  std::int64_t length_;
  std::vector<std::string> used_;
};

struct Piece {
  std::vector<TokenId> ids;
  TokenRange value;  // within ids
  bool asked = false;
  std::int64_t at = 0;  // tokens of text before it
};

void append(std::vector<TokenId>& ids, const std::vector<TokenId>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

// The start of a unit next to `wanted` within [low, high], counted in tokens of text whose token `anchor`
// starts `unit`.
std::int64_t snap_to_unit(const Haystack& haystack, std::int64_t unit, std::int64_t anchor,
                          std::int64_t wanted, std::int64_t low, std::int64_t high) {
  std::int64_t best = anchor;
  const auto consider = [&](std::int64_t at) {
    if (at >= low && at <= high && std::abs(at - wanted) < std::abs(best - wanted)) best = at;
  };
  const std::int64_t lap = haystack.tokens();
  const std::int64_t base = anchor - haystack.unit_start(unit);
  const std::int64_t laps = (wanted - base) / lap;
  for (std::int64_t k = laps - 1; k <= laps + 1; ++k)
    for (std::int64_t u = 0; u < haystack.units(); ++u) consider(base + k * lap + haystack.unit_start(u));
  return best;
}

}  // namespace

Result<Case> CaseBuilder::build(const CaseSpec& spec) const {
  if (!(spec.depth >= 0 && spec.depth <= 1))
    return fail(ErrorCode::kInvalidArgument, "the depth is {}; it lies between 0 (start) and 1 (end)",
                spec.depth);
  if (spec.modulus < 1 || spec.residue >= spec.modulus)
    return fail(ErrorCode::kInvalidArgument, "a residue of {} modulo {} does not exist", spec.residue,
                spec.modulus);
  // Two draws with one seed: the samples of a cell must differ, those of two runs must not.
  Draws draws(mix_seed(mix_seed(spec.seed, to_string(spec.task)), spec.id()));

  Riddle riddle = Riddler(wording, draws, spec.length_tokens).make(spec.task);
  Case built;
  built.spec = spec;
  built.question = riddle.question;
  built.expected = riddle.expected;
  built.foreign = riddle.foreign;
  built.answer_tokens = riddle.answer_tokens;

  // Head and tail: the chat encoding around a mark that no encoding contains.
  static constexpr std::string_view kMark = "\x01";
  Conversation conversation;
  conversation.messages.push_back(ChatMessage::text(ChatRole::kUser, std::string(kMark)));
  ChatOptions chat;
  chat.thinking = ThinkingMode::kChat;
  PIVOT_TRY(const std::string frame, encode_chat(conversation, chat));
  const std::size_t mark = frame.find(kMark);
  const std::vector<TokenId> head = tokenizer->encode(frame.substr(0, mark));
  const std::string closing = wording == Wording::kNeedle ? " That is the end of the text.\n\n"
                                                          : "\n\nThat is the end of the text.\n\n";
  const std::vector<TokenId> tail =
      tokenizer->encode(closing + riddle.question + frame.substr(mark + kMark.size()));

  std::vector<Piece> pieces;
  std::int64_t piece_tokens = 0;
  for (const Fact& fact : riddle.facts) {
    Piece piece;
    // The parts are encoded apart so that the value's tokens are known; digits and words split there anyway.
    append(piece.ids, tokenizer->encode(fact.before));
    piece.value.begin = static_cast<std::int64_t>(piece.ids.size());
    append(piece.ids, tokenizer->encode(fact.value));
    piece.value.end = static_cast<std::int64_t>(piece.ids.size());
    append(piece.ids, tokenizer->encode(fact.after));
    piece.asked = fact.asked;
    piece_tokens += static_cast<std::int64_t>(piece.ids.size());
    pieces.push_back(std::move(piece));
  }

  std::int64_t length = spec.length_tokens;
  if (spec.residue >= 0) length -= ((length - spec.residue) % spec.modulus + spec.modulus) % spec.modulus;
  const auto frame_tokens = static_cast<std::int64_t>(head.size() + tail.size());
  const std::int64_t text = length - frame_tokens - piece_tokens;
  constexpr std::int64_t kFewestTextTokens = 16;
  if (text < kFewestTextTokens)
    return fail(ErrorCode::kInvalidArgument,
                "a prompt of {} tokens leaves no room for task {}, which needs at least {}",
                spec.length_tokens, to_string(spec.task),
                frame_tokens + piece_tokens + kFewestTextTokens + spec.modulus);

  // Which facts come before the exact one is settled first; its place then follows from its residue.
  std::vector<double> shares(pieces.size(), spec.depth);
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    const double share = static_cast<double>(draws.below(1'000'000)) / 1e6;
    shares[i] = riddle.ordered ? spec.depth + (1 - spec.depth) * share : share;
  }
  if (riddle.ordered) std::sort(shares.begin() + 1, shares.end());
  std::int64_t before_tokens = static_cast<std::int64_t>(head.size()) + pieces[0].value.begin;
  for (std::size_t i = 1; i < pieces.size(); ++i)
    if (shares[i] < spec.depth) before_tokens += static_cast<std::int64_t>(pieces[i].ids.size());
  auto exact = static_cast<std::int64_t>(std::llround(spec.depth * static_cast<double>(text)));
  if (spec.residue >= 0) {
    // The value's own residue goes through all classes as samples do.
    const std::int64_t wanted = (spec.residue + spec.sample) % spec.modulus;
    const std::int64_t up = ((wanted - before_tokens - exact) % spec.modulus + spec.modulus) % spec.modulus;
    exact += exact + up <= text ? up : up - spec.modulus;
    exact = std::max<std::int64_t>(exact, 0);
  }
  const auto unit = static_cast<std::int64_t>(draws.below(static_cast<std::uint64_t>(haystack->units())));
  pieces[0].at = exact;
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    const auto wanted = static_cast<std::int64_t>(std::llround(shares[i] * static_cast<double>(text)));
    const bool before = shares[i] < spec.depth;
    pieces[i].at = snap_to_unit(*haystack, unit, exact, wanted, before ? 0 : exact, before ? exact : text);
  }
  // Ties keep the side that was settled above.
  std::vector<std::size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto side = [&](std::size_t i) { return i == 0 ? 1 : (shares[i] < spec.depth ? 0 : 2); };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return pieces[a].at != pieces[b].at ? pieces[a].at < pieces[b].at : side(a) < side(b);
  });

  std::vector<TokenId> filler = haystack->ending_before(unit, exact);
  append(filler, haystack->starting_at(unit, text - exact));
  built.prompt = head;
  std::int64_t taken = 0;
  for (const std::size_t i : order) {
    const Piece& piece = pieces[i];
    built.prompt.insert(built.prompt.end(), filler.begin() + taken, filler.begin() + piece.at);
    taken = piece.at;
    const auto start = static_cast<std::int64_t>(built.prompt.size());
    if (piece.asked) built.facts.push_back({start + piece.value.begin, start + piece.value.end});
    append(built.prompt, piece.ids);
  }
  built.prompt.insert(built.prompt.end(), filler.begin() + taken, filler.end());
  append(built.prompt, tail);
  return built;
}

}  // namespace pivot::recall
