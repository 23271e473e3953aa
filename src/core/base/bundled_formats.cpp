// fmt and spdlog, which distributions ship as shared libraries, compiled into one object file: for programs that must
// not need those (-Dself_contained). Compiled from their headers with every inline function kept, so that the other
// code finds the symbols that the libraries would provide.
#define FMT_HEADER_ONLY 1
#undef SPDLOG_COMPILED_LIB
#undef SPDLOG_SHARED_LIB
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <ctime>
#include <string>

// Templates that the libraries instantiate: those of the log's sink, and of times, whose formatting uses the locale.
template class spdlog::sinks::stdout_sink_base<spdlog::details::console_mutex>;
template class spdlog::sinks::stderr_sink<spdlog::details::console_mutex>;
[[gnu::used]] static std::string format_time(const std::tm& time) { return fmt::format("{:%c}", time); }
