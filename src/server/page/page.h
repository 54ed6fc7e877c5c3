// The page at `/`: its files, in the program.
#pragma once

#include <span>
#include <string_view>

namespace pivot::server {

struct PageFile {
  std::string_view path;  // "/", "/page/app.js"
  std::string_view content_type;
  std::string_view body;
  std::string_view etag;  // quoted hash of the body
};

// nullptr where the page has no such path.
const PageFile* find_page_file(std::string_view path);
std::span<const PageFile> page_files();

// Scripts and styles of this server alone, none inline; no frames, no forms to elsewhere.
inline constexpr std::string_view kPageSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

}  // namespace pivot::server
