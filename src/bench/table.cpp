#include "bench/table.hpp"

#include <fmt/format.h>

#include <utility>

namespace accord::bench {

Table::Table(const Ceilings& ceilings, std::string title, std::vector<std::string> columns, std::string only)
    : ceilings_(ceilings),
      title_(std::move(title)),
      columns_(std::move(columns)),
      only_(std::move(only)),
      sums_(columns_.size()),
      ideals_(columns_.size()) {}

std::string& Table::cell(const std::string& name, size_t column) {
  for (Row& row : rows_) {
    if (row.name == name) return row.cells[column];
  }
  rows_.push_back({name, std::vector<std::string>(columns_.size())});
  return rows_.back().cells[column];
}

void Table::add(size_t column, const std::string& op, const std::string& name, const Work& work,
                double seconds) {
  add_line({op, name, column, work, seconds, bound_of(ceilings_, work)});
}

void Table::add_beside_read(size_t column, const std::string& op, const std::string& name, const Work& work,
                            double seconds, double read_seconds) {
  Bound bound = bound_of(ceilings_, work);
  if (bound.seconds < read_seconds) bound = {read_seconds, Limit::kSameRead};
  add_line({op, name, column, work, seconds, bound});
}

void Table::add_line(Line line) {
  sums_[line.column] += line.seconds;
  ideals_[line.column] += line.bound.seconds;
  const std::string amount = line.bound.limit == Limit::kProduct
                                 ? operations_text(line.work.operations)
                                 : bytes_text(line.work.read + line.work.written);
  cell(line.name, line.column) =
      fmt::format("{}, {}, {:.0f} % of {}", amount, microseconds_text(line.seconds),
                  100.0 * line.bound.seconds / line.seconds, limit_name(line.bound.limit));
  lines_.push_back(std::move(line));
}

void Table::add_total(size_t column, const std::string& name, double seconds, double ideal) {
  if (!complete()) return;
  lines_.push_back({"sum", name, column, {}, seconds, {ideal, Limit::kCopy}});
  cell(name, column) = fmt::format("**{:.0f} µs**, {:.0f} %", seconds * 1e6, 100.0 * ideal / seconds);
}

void Table::add_beside(size_t column, const std::string& name, double seconds, double sum) {
  if (!complete()) return;
  lines_.push_back({"sum", name, column, {}, seconds, {}});
  cell(name, column) =
      fmt::format("**{:.0f} µs**, {:.0f} % of the sum", seconds * 1e6, 100.0 * seconds / sum);
}

void Table::add_text(size_t column, const std::string& name, const std::string& text) {
  if (complete()) cell(name, column) = text;
}

void Table::add_none(size_t column, const std::string& name) {
  if (complete()) cell(name, column).clear();
}

std::string Table::markdown() const {
  std::string out = fmt::format("| {} |", title_);
  for (const std::string& column : columns_) out += fmt::format(" {} |", column);
  out += "\n|---|";
  for (size_t i = 0; i < columns_.size(); ++i) out += "---|";
  out += '\n';
  for (const Row& row : rows_) {
    out += fmt::format("| {} |", row.name);
    for (const std::string& text : row.cells) out += fmt::format(" {} |", text);
    out += '\n';
  }
  return out;
}

}  // namespace accord::bench
