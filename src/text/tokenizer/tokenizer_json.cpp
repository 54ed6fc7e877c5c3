#include "text/tokenizer/tokenizer_json.h"

#include <simdjson.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_set>
#include <utility>

#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/text_index.h"
#include "text/tokenizer/utf8.h"

namespace pivot {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::element_type;
using simdjson::dom::object;

// Ids index tables, so a wild one would ask for gigabytes. The largest public vocabularies have 262,144 rows.
constexpr std::int64_t kMaxId = (std::int64_t{1} << 20) - 1;
constexpr std::int64_t kMaxAddedTokenBytes = 4096;
constexpr int kMaxSequenceDepth = 8;

// How an untrusted name is shown in a message: short, whole characters, no control characters.
std::string shown(std::string_view text) {
  constexpr std::size_t kMaxShownBytes = 80;
  std::string out = utf8::repaired(text.substr(0, kMaxShownBytes));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, '?');
  return text.size() > kMaxShownBytes ? out + "..." : out;
}

std::string_view type_name(const element& value) {
  switch (value.type()) {
    case element_type::ARRAY:
      return "an array";
    case element_type::OBJECT:
      return "an object";
    case element_type::STRING:
      return "a string";
    case element_type::BOOL:
      return "a boolean";
    case element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

// A member that is there and not null.
std::optional<element> member(const object& parent, std::string_view key) {
  element value;
  if (parent.at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return value;
}

template <class T>
constexpr std::string_view kWanted = "";
template <>
constexpr std::string_view kWanted<object> = "an object";
template <>
constexpr std::string_view kWanted<array> = "an array";
template <>
constexpr std::string_view kWanted<bool> = "a boolean";
template <>
constexpr std::string_view kWanted<std::int64_t> = "an integer";
template <>
constexpr std::string_view kWanted<std::string_view> = "a string";

template <class T>
Result<T> as(const element& value, std::string_view name) {
  T out;
  if (value.get(out) != simdjson::SUCCESS) {
    return fail(ErrorCode::kInvalidData, "\"{}\" must be {} and is {}", name, kWanted<T>, type_name(value));
  }
  return out;
}

template <class T>
Result<T> required(const object& parent, std::string_view key, std::string_view owner) {
  const std::optional<element> value = member(parent, key);
  if (!value)
    return fail(ErrorCode::kInvalidData, "{} has no \"{}\", which must be {}", owner, key, kWanted<T>);
  return as<T>(*value, key);
}

Result<bool> optional_bool(const object& parent, std::string_view key) {
  const std::optional<element> value = member(parent, key);
  if (!value) return false;
  return as<bool>(*value, key);
}

template <class... Args>
tl::unexpected<Error> unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return fail(ErrorCode::kUnsupported,
              "{}; this program reads byte-level BPE as DeepSeek's tokenizers use it",
              fmt::format(format, std::forward<Args>(args)...));
}

Result<std::string_view> type_of(const object& component, std::string_view role) {
  return required<std::string_view>(component, "type", role);
}

Result<> check_normalizer(const object& root) {
  const std::optional<element> value = member(root, "normalizer");
  if (!value) return {};
  PIVOT_TRY(const object normalizer, as<object>(*value, "normalizer"));
  PIVOT_TRY(const std::string_view type, type_of(normalizer, "the normalizer"));
  if (type != "Sequence")
    return unsupported("the normalizer is of type \"{}\" and only an empty one is implemented", shown(type));
  PIVOT_TRY(const array parts, required<array>(normalizer, "normalizers", "the normalizer"));
  if (parts.size() == 0) return {};
  std::string_view first = "?";
  if (const element part = *parts.begin(); part.is_object()) {
    if (part.at_key("type").get(first) != simdjson::SUCCESS) first = "?";
  }
  return unsupported("the normalizer contains \"{}\" and only an empty one is implemented", shown(first));
}

Result<SplitPattern> parse_split(const object& component) {
  PIVOT_TRY(const std::string_view behavior, required<std::string_view>(component, "behavior", "a Split"));
  if (behavior != "Isolated")
    return unsupported("a Split has the behavior \"{}\" and only \"Isolated\" is implemented",
                       shown(behavior));
  PIVOT_TRY(const bool invert, optional_bool(component, "invert"));
  if (invert) return unsupported("a Split has \"invert\": true, which is not implemented");
  PIVOT_TRY(const object pattern, required<object>(component, "pattern", "a Split"));
  SplitPattern split;
  std::optional<element> text = member(pattern, "Regex");
  if (!text) {
    text = member(pattern, "String");
    split.literal = true;
  }
  if (!text) return fail(ErrorCode::kInvalidData, "a Split's pattern has neither \"Regex\" nor \"String\"");
  PIVOT_TRY(const std::string_view spelling, as<std::string_view>(*text, "pattern"));
  if (spelling.empty() || !utf8::is_valid(spelling)) {
    return fail(ErrorCode::kInvalidData, "a Split's pattern is empty or not valid UTF-8");
  }
  split.pattern = spelling;
  return split;
}

// Flattens nested sequences into splits. `complete` becomes true at the ByteLevel component, after which none
// may come.
Result<> collect_splits(const object& component, int depth, std::vector<SplitPattern>& splits,
                        bool& complete) {
  PIVOT_TRY(const std::string_view type, type_of(component, "a pre_tokenizer"));
  if (type == "Sequence") {
    if (depth == kMaxSequenceDepth)
      return unsupported("the pre_tokenizer nests sequences more than {} deep", kMaxSequenceDepth);
    PIVOT_TRY(const array parts, required<array>(component, "pretokenizers", "the pre_tokenizer sequence"));
    for (const element part : parts) {
      PIVOT_TRY(const object inner, as<object>(part, "pretokenizers[]"));
      PIVOT_TRY_VOID(collect_splits(inner, depth + 1, splits, complete));
    }
    return {};
  }
  if (complete) return unsupported("the pre_tokenizer has \"{}\" after its ByteLevel", shown(type));
  if (type == "Split") {
    PIVOT_TRY(SplitPattern split, parse_split(component));
    splits.push_back(std::move(split));
    return {};
  }
  if (type != "ByteLevel")
    return unsupported("the pre_tokenizer contains \"{}\", which is not implemented", shown(type));
  for (const std::string_view flag : {"add_prefix_space", "use_regex"}) {
    // Both default to true where the file leaves them out.
    const std::optional<element> value = member(component, flag);
    bool on = true;
    if (value) {
      PIVOT_TRY(on, as<bool>(*value, flag));
    }
    if (on)
      return unsupported("the pre_tokenizer's ByteLevel has \"{}\": true, which is not implemented", flag);
  }
  complete = true;
  return {};
}

Result<> parse_pre_tokenizer(const object& root, TokenizerSpec& spec) {
  const std::optional<element> value = member(root, "pre_tokenizer");
  if (!value) return unsupported("there is no pre_tokenizer");
  PIVOT_TRY(const object component, as<object>(*value, "pre_tokenizer"));
  bool complete = false;
  PIVOT_TRY_VOID(collect_splits(component, 0, spec.splits, complete));
  if (!complete) return unsupported("the pre_tokenizer has no ByteLevel component");
  return {};
}

// The post-processor may only adjust offsets, which are not kept; one that adds tokens would change the ids.
Result<> check_post_processor_and_decoder(const object& root) {
  if (const std::optional<element> value = member(root, "post_processor")) {
    PIVOT_TRY(const object component, as<object>(*value, "post_processor"));
    PIVOT_TRY(const std::string_view type, type_of(component, "the post_processor"));
    if (type != "ByteLevel")
      return unsupported("the post_processor is of type \"{}\" and only ByteLevel is implemented",
                         shown(type));
  }
  const std::optional<element> value = member(root, "decoder");
  if (!value) return unsupported("there is no decoder");
  PIVOT_TRY(const object component, as<object>(*value, "decoder"));
  PIVOT_TRY(const std::string_view type, type_of(component, "the decoder"));
  if (type != "ByteLevel")
    return unsupported("the decoder is of type \"{}\" and only ByteLevel is implemented", shown(type));
  return {};
}

Result<> check_model_options(const object& model, TokenizerSpec& spec) {
  PIVOT_TRY(const std::string_view type, type_of(model, "the model"));
  if (type != "BPE") return unsupported("the model is of type \"{}\"", shown(type));
  if (const auto dropout = member(model, "dropout")) {
    double rate = 1;
    if (dropout->get(rate) != simdjson::SUCCESS || rate != 0)
      return unsupported("the model asks for dropout");
  }
  for (const std::string_view affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto value = member(model, affix);
    std::string_view text;
    if (value && (value->get(text) != simdjson::SUCCESS || !text.empty())) {
      return unsupported("the model has a {}, which is not implemented", affix);
    }
  }
  PIVOT_TRY(const bool byte_fallback, optional_bool(model, "byte_fallback"));
  if (byte_fallback) return unsupported("the model has \"byte_fallback\": true, which is not implemented");
  // unk_token and fuse_unk need no code: all 256 bytes must be in the vocabulary, so nothing is ever unknown.
  PIVOT_TRY(spec.ignore_merges, optional_bool(model, "ignore_merges"));
  return {};
}

// The vocabulary as the file spells it; views into the parsed document.
struct Vocabulary {
  std::vector<std::string_view> spellings;  // by id
  TextIndex index;
};

Result<Vocabulary> parse_vocabulary(const object& model) {
  PIVOT_TRY(const object vocab, required<object>(model, "vocab", "the model"));
  std::vector<std::pair<std::string_view, std::int64_t>> entries;
  std::int64_t highest = -1;
  for (const auto field : vocab) {
    std::int64_t id = -1;
    if (field.value.get(id) != simdjson::SUCCESS || id < 0 || id > kMaxId) {
      return fail(ErrorCode::kInvalidData, "the vocabulary entry \"{}\" has no id between 0 and {}",
                  shown(field.key), kMaxId);
    }
    if (!utf8::is_valid(field.key))
      return fail(ErrorCode::kInvalidData, "the vocabulary entry of id {} is not valid UTF-8", id);
    entries.emplace_back(field.key, id);
    highest = std::max(highest, id);
  }
  Vocabulary result{std::vector<std::string_view>(static_cast<std::size_t>(highest + 1)),
                    TextIndex(entries.size())};
  std::vector<bool> taken(result.spellings.size());
  for (const auto& [spelling, id] : entries) {
    const auto row = static_cast<std::size_t>(id);
    if (taken[row]) {
      return fail(ErrorCode::kInvalidData, "the vocabulary gives id {} twice, to \"{}\" and \"{}\"", id,
                  shown(result.spellings[row]), shown(spelling));
    }
    taken[row] = true;
    result.spellings[row] = spelling;
    if (!result.index.insert(result.spellings, TokenId{static_cast<std::int32_t>(id)})) {
      return fail(ErrorCode::kInvalidData, "the vocabulary has the entry \"{}\" twice", shown(spelling));
    }
  }
  return result;
}

Result<> collect_byte_tokens(const Vocabulary& vocabulary, TokenizerSpec& spec) {
  const ByteLevelAlphabet& alphabet = ByteLevelAlphabet::instance();
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelling;
    utf8::append(spelling, alphabet.spelling_of(static_cast<unsigned char>(byte)));
    const std::optional<TokenId> id = vocabulary.index.find(vocabulary.spellings, spelling);
    if (!id) {
      return unsupported(
          "the vocabulary has no entry \"{}\" for the byte 0x{:02x}, and a byte-level vocabulary has all 256",
          spelling, byte);
    }
    spec.byte_tokens[static_cast<std::size_t>(byte)] = *id;
  }
  return {};
}

// One merge is a string "left right" or, in newer files, an array of two strings.
Result<std::pair<std::string_view, std::string_view>> sides_of(const element& merge, std::size_t rank) {
  std::string_view text;
  if (merge.get(text) == simdjson::SUCCESS) {
    const std::size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      return std::pair{text.substr(0, space), text.substr(space + 1)};
    }
  }
  array pair;
  std::string_view left;
  std::string_view right;
  if (merge.get(pair) == simdjson::SUCCESS && pair.size() == 2 && pair.at(0).get(left) == simdjson::SUCCESS &&
      pair.at(1).get(right) == simdjson::SUCCESS) {
    return std::pair{left, right};
  }
  return fail(ErrorCode::kInvalidData, "merge {} is neither \"left right\" nor a pair of strings", rank);
}

Result<> parse_merges(const object& model, const Vocabulary& vocabulary, TokenizerSpec& spec) {
  PIVOT_TRY(const array merges, required<array>(model, "merges", "the model"));
  std::string joined;
  const auto look_up = [&](std::string_view spelling, std::size_t rank) -> Result<TokenId> {
    const auto id = vocabulary.index.find(vocabulary.spellings, spelling);
    if (!id)
      return fail(ErrorCode::kInvalidData, "merge {} needs \"{}\", which the vocabulary does not have", rank,
                  shown(spelling));
    return *id;
  };
  for (const element merge : merges) {
    const std::size_t rank = spec.merges.size();
    PIVOT_TRY(const auto sides, sides_of(merge, rank));
    PIVOT_TRY(const TokenId left, look_up(sides.first, rank));
    PIVOT_TRY(const TokenId right, look_up(sides.second, rank));
    joined.assign(sides.first).append(sides.second);
    PIVOT_TRY(const TokenId result, look_up(joined, rank));
    spec.merges.push_back({left, right, result});
  }
  return {};
}

Result<AddedToken> parse_added_token(const object& entry) {
  AddedToken token;
  PIVOT_TRY(const std::string_view content, required<std::string_view>(entry, "content", "an added token"));
  PIVOT_TRY(const std::int64_t id, required<std::int64_t>(entry, "id", "an added token"));
  if (id < 0 || id > kMaxId) {
    return fail(ErrorCode::kInvalidData,
                "the added token \"{}\" has the id {}, which is not between 0 and {}", shown(content), id,
                kMaxId);
  }
  if (content.empty() || content.size() > kMaxAddedTokenBytes || !utf8::is_valid(content)) {
    return fail(ErrorCode::kInvalidData, "the added token of id {} must be 1 to {} bytes of valid UTF-8", id,
                kMaxAddedTokenBytes);
  }
  for (const std::string_view flag : {"single_word", "lstrip", "rstrip"}) {
    PIVOT_TRY(const bool on, optional_bool(entry, flag));
    if (on)
      return unsupported("the added token \"{}\" has \"{}\": true, which is not implemented", shown(content),
                         flag);
  }
  token.content = content;
  token.id = TokenId{static_cast<std::int32_t>(id)};
  PIVOT_TRY(token.special, optional_bool(entry, "special"));
  PIVOT_TRY(token.normalized, optional_bool(entry, "normalized"));
  return token;
}

// An added token may repeat a vocabulary entry, under the same id; ids and contents are otherwise unique.
Result<> parse_added_tokens(const object& root, const Vocabulary& vocabulary, TokenizerSpec& spec) {
  const std::optional<element> value = member(root, "added_tokens");
  if (!value) return {};
  PIVOT_TRY(const array entries, as<array>(*value, "added_tokens"));
  std::unordered_set<std::string_view> contents;
  std::unordered_set<std::int32_t> ids;
  std::string bytes;
  std::vector<AddedToken>& added = spec.added;
  added.reserve(entries.size());  // contents holds views into it
  for (const element element_of : entries) {
    PIVOT_TRY(const object entry, as<object>(element_of, "added_tokens[]"));
    PIVOT_TRY(AddedToken token, parse_added_token(entry));
    added.push_back(std::move(token));
    const AddedToken& last = added.back();
    const std::int32_t id = raw(last.id);
    if (!contents.insert(last.content).second || !ids.insert(id).second) {
      return fail(ErrorCode::kInvalidData, "the added token \"{}\" or its id {} is listed twice",
                  shown(last.content), id);
    }
    const auto row = static_cast<std::size_t>(id);
    const bool in_vocabulary = row < vocabulary.spellings.size() && !vocabulary.spellings[row].empty();
    const auto same_text = vocabulary.index.find(vocabulary.spellings, last.content);
    if (in_vocabulary ? vocabulary.spellings[row] != last.content : same_text.has_value()) {
      return fail(ErrorCode::kInvalidData, "the added token \"{}\" of id {} contradicts the vocabulary",
                  shown(last.content), id);
    }
    bytes.clear();
    if (in_vocabulary) ByteLevelAlphabet::instance().append_bytes(last.content, bytes);
    if (in_vocabulary && bytes != last.content) {
      return fail(ErrorCode::kInvalidData,
                  "the added token \"{}\" of id {} is also the vocabulary's spelling of other bytes",
                  shown(last.content), id);
    }
  }
  return {};
}

void fill_tokens(const Vocabulary& vocabulary, TokenizerSpec& spec) {
  std::size_t count = vocabulary.spellings.size();
  for (const AddedToken& token : spec.added)
    count = std::max(count, static_cast<std::size_t>(raw(token.id)) + 1);
  spec.tokens.resize(count);
  const ByteLevelAlphabet& alphabet = ByteLevelAlphabet::instance();
  for (std::size_t id = 0; id < vocabulary.spellings.size(); ++id) {
    alphabet.append_bytes(vocabulary.spellings[id], spec.tokens[id]);
  }
  for (const AddedToken& token : spec.added)
    spec.tokens[static_cast<std::size_t>(raw(token.id))] = token.content;
}

Result<TokenizerSpec> parse_root(const object& root) {
  TokenizerSpec spec;
  // "truncation" and "padding" are about batches that a caller of that package builds; they are not applied
  // here, as transformers does not apply them either unless asked.
  PIVOT_TRY_VOID(check_normalizer(root));
  PIVOT_TRY_VOID(parse_pre_tokenizer(root, spec));
  PIVOT_TRY_VOID(check_post_processor_and_decoder(root));
  PIVOT_TRY(const object model, required<object>(root, "model", "the file"));
  PIVOT_TRY_VOID(check_model_options(model, spec));
  PIVOT_TRY(const Vocabulary vocabulary, parse_vocabulary(model));
  PIVOT_TRY_VOID(collect_byte_tokens(vocabulary, spec));
  PIVOT_TRY_VOID(parse_merges(model, vocabulary, spec));
  PIVOT_TRY_VOID(parse_added_tokens(root, vocabulary, spec));
  fill_tokens(vocabulary, spec);
  return spec;
}

}  // namespace

Result<TokenizerSpec> parse_tokenizer_json(std::string_view json, std::string_view where) {
  if (json.empty()) {
    return fail(ErrorCode::kInvalidData,
                "{} is empty (0 bytes) where a tokenizer.json was wanted; fetch it again", where);
  }
  if (json.starts_with("version https://git-lfs.")) {
    return fail(
        ErrorCode::kInvalidData,
        "{} is a Git LFS pointer ({} bytes), not the tokenizer.json it stands for; run `git lfs pull` in its "
        "folder, or fetch the file itself",
        where, json.size());
  }
  simdjson::dom::parser parser;
  element document;
  if (const auto error = parser.parse(json.data(), json.size()).get(document); error != simdjson::SUCCESS) {
    return fail(ErrorCode::kInvalidData, "{} ({} bytes) is not valid JSON: {}; fetch it again", where,
                json.size(), simdjson::error_message(error));
  }
  object root;
  if (document.get(root) != simdjson::SUCCESS) {
    return fail(ErrorCode::kInvalidData, "{} is valid JSON but {}, where a tokenizer.json is an object",
                where, type_name(document));
  }
  Result<TokenizerSpec> spec = parse_root(root);
  if (!spec) return fail(std::move(spec.error()).with(fmt::format("cannot use {}", where)));
  return spec;
}

}  // namespace pivot
