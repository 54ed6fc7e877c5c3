#include "recall/task.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "recall/draws.h"
#include "recall/statistics.h"

namespace pivot::recall {
namespace {

constexpr std::array kTasks = {
    TaskInfo{Task::kSingle, "single", "one number, two others of the same form"},
    TaskInfo{Task::kSingleWord, "word", "one word"},
    TaskInfo{Task::kSingleString, "string", "one exact string of letters, digits and hyphens"},
    TaskInfo{Task::kMultiKey, "multikey", "one number among one distractor per 128 tokens"},
    TaskInfo{Task::kMultiValue, "multivalue", "three numbers of one key"},
    TaskInfo{Task::kMultiQuery, "multiquery", "the numbers of three keys"},
    TaskInfo{Task::kVerbatim, "verbatim", "one line, word for word"},
    TaskInfo{Task::kVariables, "variables", "the value at the end of a chain of assignments"},
    TaskInfo{Task::kFrequentWords, "frequent", "the three words that occur most often"},
    TaskInfo{Task::kRounds, "rounds", "the second note on a topic, in order"},
    TaskInfo{Task::kTally, "tally", "the value that most of a key's 24 reports give"},
};
static_assert(kTasks.size() == kNumTasks);

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// The value stands in the text with no letter or digit next to it.
bool contains_value(std::string_view text, std::string_view value) {
  for (std::size_t at = text.find(value); at != std::string_view::npos; at = text.find(value, at + 1)) {
    const bool open = at == 0 || !is_word(text[at - 1]);
    const std::size_t end = at + value.size();
    if (open && (end == text.size() || !is_word(text[end]))) return true;
  }
  return false;
}

}  // namespace

std::span<const TaskInfo> task_table() { return kTasks; }
std::string_view to_string(Task task) { return kTasks[static_cast<std::size_t>(task)].name; }

Result<Task> parse_task(std::string_view name) {
  std::string known;
  for (const TaskInfo& info : kTasks) {
    if (info.name == name) return info.task;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", info.name);
  }
  return fail(ErrorCode::kInvalidArgument, "there is no task \"{}\"; choose from {}", name, known);
}

Result<Wording> parse_wording(std::string_view name) {
  if (name == "needle") return Wording::kNeedle;
  if (name == "instruct") return Wording::kInstruct;
  return fail(ErrorCode::kInvalidArgument, "there is no wording \"{}\"; choose needle or instruct", name);
}

std::string CaseSpec::id() const {
  const std::string tail = residue < 0 ? std::string("any") : fmt::format("r{}m{}", residue, modulus);
  return fmt::format("{}/{}/{:.4g}/{}/{}", to_string(task), length_tokens, depth, tail, sample);
}

std::vector<CaseSpec> Grid::specs() const {
  std::vector<CaseSpec> specs;
  for (const Task task : tasks)
    for (const std::int64_t length : lengths)
      for (const double depth : depths)
        for (const std::int64_t residue : residues)
          for (std::int64_t sample = 0; sample < samples; ++sample)
            specs.push_back({task, length, depth, residue, modulus, sample, seed});
  return specs;
}

Score score_answer(const Case& test, std::string_view answer) {
  Score score;
  std::string expected;
  std::int64_t found = 0;
  std::size_t first = answer.size();
  for (const std::string& value : test.expected) {
    found += contains_value(answer, value) ? 1 : 0;
    first = std::min(first, answer.find(value));
    expected += fmt::format("{}{}", expected.empty() ? "" : ", ", value);
  }
  const bool foreign = std::any_of(test.foreign.begin(), test.foreign.end(),
                                   [&](const std::string& value) { return contains_value(answer, value); });
  score.found =
      test.expected.empty() ? 0 : static_cast<double>(found) / static_cast<double>(test.expected.size());
  score.exact = found == static_cast<std::int64_t>(test.expected.size()) && found > 0 && !foreign;
  // Without a value in the answer, its last words are what comes closest to one.
  std::string_view part = answer;
  while (!part.empty() && (part.back() == '.' || part.back() == ' ' || part.back() == '\n'))
    part.remove_suffix(1);
  if (first < part.size())
    part.remove_prefix(first);
  else if (part.size() > expected.size())
    part.remove_prefix(part.size() - expected.size());
  score.similarity = edit_similarity(expected, part);
  return score;
}

}  // namespace pivot::recall
