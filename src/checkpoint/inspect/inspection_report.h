// An Inspection as a document (terminal, HTML) and as JSON (docs/schema/inspect.json).
#pragma once

#include <span>
#include <string>

#include "base/report/document.h"
#include "checkpoint/inspect/inspection.h"

namespace pivot {

report::Document inspection_document(const Inspection& inspection);
std::string inspection_json(const Inspection& inspection);

// A folder of many checkpoints: one row each.
report::Document listing_document(const std::string& folder, std::span<const Inspection> inspections);
std::string listing_json(const std::string& folder, std::span<const Inspection> inspections);

}  // namespace pivot
