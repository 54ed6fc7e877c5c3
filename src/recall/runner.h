// Running cases on a session, and the log that lets a stopped run go on.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "engine/session.h"
#include "recall/probe.h"
#include "recall/task.h"

namespace pivot::recall {

// How the prompt gets into the session.
enum class Path : std::uint8_t {
  kOneShot,   // from an empty sequence
  kRestored,  // all but the last token, then other text, then back to the saved point: what a prefix hit does
};

// Fidelity of one layer over a case's measured queries.
struct LayerFidelity {
  std::int32_t layer = 0;
  std::int64_t queries = 0;
  std::int64_t limited = 0;  // of them, queries for which entries were left out
  double overlap = 1;        // means over the queries
  double margin = 0;         // over the limited ones
  double entry_mass = 1;
  double total_mass = 1;
  double worst_overlap = 1;
  // Over the queries that predict the value. The worst of each one's best rank of a fact's entry; -1: none.
  std::int64_t fact_rank = -1;
  std::int64_t fact_exact_rank = -1;
  double fact_selected = 1;  // share of them at which an entry of every fact was selected
};
// The fact's figures count at positions in [value.begin, value.end) alone, those from which the value is
// predicted; over all queries where the range is empty (an answer without the value).
std::vector<LayerFidelity> summarize(const std::vector<QueryFidelity>& queries, TokenRange value);

struct CaseResult {
  std::string id;
  CaseSpec spec;
  std::int64_t prompt_tokens = 0;
  std::vector<TokenRange> facts;
  std::string question;
  std::vector<std::string> expected;
  std::string answer;
  Score score;
  std::int64_t generated_tokens = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
  std::string finish_reason;
  std::vector<LayerFidelity> fidelity;  // empty without a probe
  std::string failure;                  // why there is no answer; empty: there is one, right or wrong
  std::string remarks;                  // what a server said of its answer that cannot be
};

struct CaseRunner {
  Session* session = nullptr;
  const Tokenizer* tokenizer = nullptr;
  std::vector<TokenId> stop_tokens;
  Path path = Path::kOneShot;
  Probe* probe = nullptr;  // the session's back-end, where it is probed
  const CancelFlag* cancel = nullptr;

  // Greedy. Errors: the session's; kCancelled when the flag was set (nothing of the case counts).
  Result<CaseResult> run(const Case& test) const;
};

// One JSON object a line: first the settings, then every case as soon as it is done. A line is written with
// one call and synced, so that a run that is killed leaves whole lines; a torn last line is dropped when the
// log is opened again.
class CaseLog {
 public:
  // `settings` is the JSON text that must be equal for a log to be continued. Errors: kInvalidArgument where
  // the file exists and `resume` is not set, or holds other settings (naming the first that differs);
  // kInvalidData for lines that are not a log's; kCannotCreate, kIo.
  static Result<CaseLog> open(const std::filesystem::path& path, const std::string& settings, bool resume);
  CaseLog(CaseLog&& other) noexcept;
  CaseLog& operator=(CaseLog&&) = delete;
  ~CaseLog();

  // null for a case that is not there or was not answered: that one is asked again.
  const CaseResult* find(const std::string& id) const;
  std::size_t size() const { return done_.size(); }
  Result<> append(const CaseResult& result);

 private:
  CaseLog(int descriptor, std::filesystem::path path) : descriptor_(descriptor), path_(std::move(path)) {}
  int descriptor_;
  std::filesystem::path path_;
  std::map<std::string, CaseResult> done_;
};

std::string to_json(const CaseResult& result);                     // one line
Result<CaseResult> parse_case_result(std::string_view json_line);  // kInvalidData

}  // namespace pivot::recall
