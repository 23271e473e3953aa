// In front of the real one on the search path of public_headers_test: from fmt 12 on this header leads to no
// fmt::format.
#error "include <fmt/format.h>: fmt 12's core.h does not declare fmt::format"
