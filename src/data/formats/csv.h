// The records of a CSV text, one after the other.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/csv.h"

namespace lockstep::data {

class CsvReader {
 public:
  // Reads the header. `path` is for messages; both must outlive the reader. Throws FileError as CsvFile does.
  CsvReader(std::string_view text, const std::string& path, const CsvOptions& options);

  // Reads the next record; false at the end of the text.
  bool next();
  CsvRecord record() const { return {columns_, fields_}; }
  std::size_t line() const { return line_of_record_; }  // on which the record begins, from 1
  const std::vector<std::string>& columns() const { return columns_; }

 private:
  void read_fields();
  std::string read_quoted();

  std::string_view text_;
  const std::string& path_;
  char separator_;
  std::size_t at_ = 0, line_ = 1, line_of_record_ = 1, count_ = 0;
  std::vector<std::string> columns_, fields_;
};

}  // namespace lockstep::data
