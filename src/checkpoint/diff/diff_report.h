// A DiffReport as a document and as JSON (docs/schema/diff.json), and back from JSON for the migration
// report.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "base/report/document.h"
#include "checkpoint/diff/diff.h"

namespace pivot {

report::Document diff_document(const DiffReport& report);
// `every_tensor`: list byte-identical tensors too; otherwise only those that differ in bytes.
std::string diff_json(const DiffReport& report, bool every_tensor = false);

}  // namespace pivot
