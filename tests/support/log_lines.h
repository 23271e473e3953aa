// Collects the lines that the library logs while this object exists.
#pragma once

#include <string>

#include "lockstep/core/log.h"

namespace lockstep::testing {

class LogLines {
 public:
  LogLines() {
    log::set_sink([this](log::Level, const std::string& line) { text_ += line + '\n'; });
  }
  ~LogLines() { log::set_sink({}); }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;

  const std::string& text() const { return text_; }  // valid once no other thread logs

 private:
  std::string text_;
};

}  // namespace lockstep::testing
