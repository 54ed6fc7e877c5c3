#include "version.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "pivot_version.h"

namespace pivot::cli {
namespace {

std::vector<std::string> words(const char* text) {
  std::istringstream in(text);
  std::vector<std::string> list;
  for (std::string word; in >> word;) list.push_back(word);
  return list;
}

}  // namespace

std::string version_text() {
  return fmt::format(
      "pivot {}\ncommit      {}\nbuild type  {}\nback-ends   {}\narchs       {}\ngrammars    {}", kVersion,
      kCommit, kBuildType, fmt::join(words(kBackends), ", "), fmt::join(words(kArchs), ", "),
      *kGrammar != '\0' ? kGrammar : "none");
}

std::string version_json() {
  nlohmann::ordered_json json;
  json["version"] = kVersion;
  json["commit"] = kCommit;
  json["build_type"] = kBuildType;
  json["backends"] = words(kBackends);
  json["archs"] = words(kArchs);
  if (*kGrammar != '\0')
    json["grammar"] = kGrammar;
  else
    json["grammar"] = nullptr;
  return json.dump();
}

}  // namespace pivot::cli
