#pragma once
// Measured operations as rows with a column per format (or per size): Markdown for people, lines for JSON.
#include <cstddef>
#include <string>
#include <vector>

#include "bench/measure.hpp"

namespace accord::bench {

// One cell.
struct Line {
  std::string op;    // the folder of kernels/; "sum" for rows that add others up
  std::string name;  // what the table calls it
  size_t column = 0;
  Work work;
  double seconds = 0.0;
  Bound bound;  // of a sum: the time at the ceilings of its parts
};

class Table {
 public:
  // `only`: operations of other kernels are neither measured nor added up; empty: all are.
  Table(const Ceilings& ceilings, std::string title, std::vector<std::string> columns, std::string only = "");

  bool wants(const std::string& op) const { return only_.empty() || only_ == op; }
  bool complete() const { return only_.empty(); }

  void add(size_t column, const std::string& op, const std::string& name, const Work& work, double seconds);
  // The same beside a time measured for the purpose, where that is longer than the ceilings' own.
  void add_beside_read(size_t column, const std::string& op, const std::string& name, const Work& work,
                       double seconds, double read_seconds);
  // Rows of the tables that are no operation: of others' sum, or beside it. Left out where not all operations
  // are measured.
  void add_total(size_t column, const std::string& name, double seconds, double ideal);
  void add_beside(size_t column, const std::string& name, double seconds, double sum);
  // For people only.
  void add_text(size_t column, const std::string& name, const std::string& text);
  // Nothing runs here in this column.
  void add_none(size_t column, const std::string& name);

  // Seconds of the operations so far: as measured, and at their ceilings.
  double sum(size_t column) const { return sums_[column]; }
  double ideal(size_t column) const { return ideals_[column]; }

  const std::string& title() const { return title_; }
  const std::vector<std::string>& columns() const { return columns_; }
  const std::vector<Line>& lines() const { return lines_; }
  bool empty() const { return lines_.empty(); }
  std::string markdown() const;

 private:
  void add_line(Line line);
  struct Row {
    std::string name;
    std::vector<std::string> cells;
  };
  std::string& cell(const std::string& name, size_t column);

  const Ceilings ceilings_;
  const std::string title_;
  const std::vector<std::string> columns_;
  const std::string only_;
  std::vector<Row> rows_;
  std::vector<Line> lines_;
  std::vector<double> sums_, ideals_;
};

}  // namespace accord::bench
