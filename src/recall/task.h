// Recall tasks: seeded prompts in which facts lie at known token positions, and the scoring of answers.
//
// Every prompt is put together from token ids (head, text, facts, question), so its length, its residues and
// the place of each fact are exact. A case is a pure function of its spec, the haystack, the tokenizer and
// the wording.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/ids.h"

namespace pivot {
class Tokenizer;
}

namespace pivot::recall {

class Haystack;

enum class Task : std::uint8_t {
  kSingle,         // one number to find, two others of the same form
  kSingleWord,     // one word
  kSingleString,   // one string of letters and digits, hyphens included
  kMultiKey,       // one number, one distractor of the same form per 128 tokens
  kMultiValue,     // three numbers of one key, all asked for
  kMultiQuery,     // three keys, all asked for
  kVerbatim,       // one line of eight words, word for word
  kVariables,      // a chain of assignments: which value has the last variable
  kFrequentWords,  // the three words that occur most often
  kRounds,         // notes on topics in order: the second one on a topic
  kTally,          // one key with 24 reports of 6 values: the value given most often (10 times)
};
inline constexpr int kNumTasks = 11;

struct TaskInfo {
  Task task;
  std::string_view name;     // "single", "multikey", ...
  std::string_view summary;  // one line
};
std::span<const TaskInfo> task_table();
std::string_view to_string(Task task);
// kInvalidArgument with the list for another word.
Result<Task> parse_task(std::string_view name);

// `needle`: the sentences that the embedded model was trained on (models/needle). `instruct`: plain
// instructions for a general chat model.
enum class Wording : std::uint8_t { kNeedle, kInstruct };
Result<Wording> parse_wording(std::string_view name);

struct CaseSpec {
  Task task = Task::kSingle;
  std::int64_t length_tokens = 0;  // the prompt has the most tokens <= this with the wanted residue
  double depth = 0.5;              // of the first fact: share of the text before it, 0 to 1
  std::int64_t residue = -1;       // prompt tokens mod `modulus`; -1: any
  std::int64_t modulus = 4;
  std::int64_t sample = 0;
  std::uint64_t seed = 0;

  std::string id() const;  // "single/4096/0.50/r3m4/7": unique within a run
};

// Half-open range of prompt positions.
struct TokenRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

struct Case {
  CaseSpec spec;
  std::vector<TokenId> prompt;
  std::vector<std::string> expected;  // all must be in the answer
  std::vector<std::string> foreign;   // none may be: values of other keys
  std::vector<TokenRange> facts;      // where the expected values stand in the prompt
  std::string question;
  std::int64_t answer_tokens = 64;  // generation budget
};

struct CaseBuilder {
  const Tokenizer* tokenizer = nullptr;
  const Haystack* haystack = nullptr;
  Wording wording = Wording::kNeedle;

  // Errors: kInvalidArgument for a depth outside [0, 1], a residue that the modulus does not have, or a
  // length that leaves no room for the facts (saying how many tokens are needed).
  Result<Case> build(const CaseSpec& spec) const;
};

struct Score {
  bool exact = false;     // every expected value, no foreign one
  double found = 0;       // share of the expected values
  double similarity = 0;  // edit similarity of the answer's value part with the expected values
};
Score score_answer(const Case& test, std::string_view answer);

// Every combination, in the order task, length, depth, residue, sample.
struct Grid {
  std::vector<Task> tasks = {Task::kSingle};
  std::vector<std::int64_t> lengths = {512, 1024, 2048, 4096};
  std::vector<double> depths = {0, 0.25, 0.5, 0.75, 1};
  std::vector<std::int64_t> residues = {0, 1, 2, 3};
  std::int64_t modulus = 4;
  std::int64_t samples = 1;
  std::uint64_t seed = 1;

  std::vector<CaseSpec> specs() const;
};

}  // namespace pivot::recall
