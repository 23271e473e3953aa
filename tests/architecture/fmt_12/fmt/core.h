// Precedes the real header on the search path of public_headers_test: since fmt 12, it does not declare fmt::format.
#error "include <fmt/format.h>: fmt 12's core.h does not declare fmt::format"
