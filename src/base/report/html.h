// A Document as one self-contained HTML page: inline CSS and SVG, no scripts, light and dark by the reader's
// preference.
#pragma once

#include <string>

#include "base/report/document.h"

namespace pivot::report {

std::string render_html(const Document& document);

}  // namespace pivot::report
