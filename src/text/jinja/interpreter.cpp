#include "text/jinja/interpreter.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "text/jinja/operations.hpp"

namespace accord::text::jinja {
namespace {

using Kind = Value::Kind;

constexpr int64_t kMaxWork = 20'000'000;  // steps, and sizes of what they make
constexpr size_t kMaxKept = 1'000'000;    // scopes and objects of one rendering

constexpr std::array<std::string_view, 5> kFunctions = {"range", "namespace", "dict", "raise_exception",
                                                        "strftime_now"};

}  // namespace

StatusOr<std::string> Interpreter::render(const Block& block, const Json& variables) {
  scope_ = push_scope(nullptr);
  for (const std::string_view name : kFunctions) {
    scope_->names.emplace_back(name, Value::object(make_object<Function>(name)));
  }
  for (const auto& [name, value] : variables.items()) {
    ACCORD_ASSIGN_OR_RETURN(const Value converted, Value::from_json(value));
    set_name(name, converted);
  }
  std::string out;
  ACCORD_RETURN_IF_ERROR(run(block, out));
  return out;
}

Scope* Interpreter::push_scope(Scope* parent) {
  scopes_.push_back(std::make_unique<Scope>());
  scopes_.back()->parent = parent;
  return scopes_.back().get();
}

template <class T, class... Args>
T* Interpreter::make_object(Args&&... args) {
  auto object = std::make_unique<T>(std::forward<Args>(args)...);
  T* made = object.get();
  objects_.push_back(std::move(object));
  return made;
}

Value Interpreter::look_up(const std::string& name) const {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    for (const auto& [known, value] : scope->names) {
      if (known == name) {
        return value;
      }
    }
  }
  return Value::undefined(name);
}

void Interpreter::set_name(const std::string& name, const Value& value) {
  for (auto& [known, held] : scope_->names) {
    if (known == name) {
      held = value;
      return;
    }
  }
  scope_->names.emplace_back(name, value);
}

Status Interpreter::charge(const Value& value) {
  size_t size = 0;
  if (value.is(Kind::kString)) {
    size = value.as_string().size() / 64;
  } else if (value.is(Kind::kList)) {
    size = value.as_list().items.size() / 4;
  } else if (value.is(Kind::kDict)) {
    size = value.as_dict().members.size() / 4;
  }
  work_ += 1 + static_cast<int64_t>(size);
  if (work_ > kMaxWork || scopes_.size() + objects_.size() > kMaxKept) {
    return data_error("the template runs too long (an endless loop, or a chat of enormous size)");
  }
  return absl::OkStatus();
}

Status Interpreter::append(const Value& value, std::string& out) {
  ACCORD_ASSIGN_OR_RETURN(const std::string text, to_text(value));
  if (out.size() + text.size() > kMaxText) {
    return data_error("the text has more than {} bytes", kMaxText);
  }
  out += text;
  return absl::OkStatus();
}

Status Interpreter::run(const Block& block, std::string& out) {
  for (const Statement& statement : block) {
    ACCORD_RETURN_IF_ERROR(run_statement(statement, out));
    if (flow_ != Flow::kNext) {
      break;
    }
  }
  return absl::OkStatus();
}

Status Interpreter::run_statement(const Statement& statement, std::string& out) {
  place_ = statement.place;
  ACCORD_RETURN_IF_ERROR(charge(Value()));
  switch (statement.kind) {
    case Statement::Kind::kText:
      out += statement.text;
      return out.size() > kMaxText ? data_error("the text has more than {} bytes", kMaxText)
                                   : absl::OkStatus();
    case Statement::Kind::kPrint: {
      ACCORD_ASSIGN_OR_RETURN(const Value value, evaluate(*statement.value));
      return append(value, out);
    }
    case Statement::Kind::kIf:
      return run_if(statement, out);
    case Statement::Kind::kFor:
      return run_for(statement, out);
    case Statement::Kind::kSet: {
      ACCORD_ASSIGN_OR_RETURN(const Value value, evaluate(*statement.value));
      return assign(statement.target, value);
    }
    case Statement::Kind::kSetBlock: {
      ACCORD_ASSIGN_OR_RETURN(const Value value, capture(statement));
      return assign(statement.target, value);
    }
    case Statement::Kind::kMacro:
      set_name(statement.text, Value::object(make_object<Macro>(statement, scope_)));
      return absl::OkStatus();
    case Statement::Kind::kScope: {
      Scope* outer = std::exchange(scope_, push_scope(scope_));
      ACCORD_RETURN_IF_ERROR(run(*statement.body, out));
      scope_ = outer;
      return absl::OkStatus();
    }
    case Statement::Kind::kFilter: {
      ACCORD_ASSIGN_OR_RETURN(const Value value, capture(statement));
      return append(value, out);
    }
    case Statement::Kind::kBreak:
      flow_ = Flow::kBreak;
      return absl::OkStatus();
    case Statement::Kind::kContinue:
      flow_ = Flow::kContinue;
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

Status Interpreter::run_if(const Statement& statement, std::string& out) {
  for (const Branch& branch : statement.branches) {
    if (branch.test != nullptr) {
      ACCORD_ASSIGN_OR_RETURN(const Value test, evaluate(*branch.test));
      if (!truthy(test)) {
        continue;
      }
    }
    return run(*branch.body, out);
  }
  return absl::OkStatus();
}

Status Interpreter::run_for(const Statement& statement, std::string& out) {
  ACCORD_ASSIGN_OR_RETURN(const Value sequence, evaluate(*statement.value));
  ACCORD_ASSIGN_OR_RETURN(std::vector<Value> items, iterate(sequence));
  Scope* outer = scope_;
  if (statement.test != nullptr) {
    std::vector<Value> kept;
    for (Value& item : items) {
      scope_ = push_scope(outer);
      ACCORD_RETURN_IF_ERROR(assign(statement.target, item));
      ACCORD_ASSIGN_OR_RETURN(const Value test, evaluate(*statement.test));
      if (truthy(test)) {
        kept.push_back(std::move(item));
      }
    }
    scope_ = outer;
    items = std::move(kept);
  }
  Loop* loop = make_object<Loop>();
  loop->items = std::move(items);
  loop->depth = ++loop_depth_;
  for (; loop->index < loop->items.size() && flow_ != Flow::kBreak; ++loop->index) {
    flow_ = Flow::kNext;
    scope_ = push_scope(outer);
    scope_->names.emplace_back("loop", Value::object(loop));
    const Value item = loop->items[loop->index];
    ACCORD_RETURN_IF_ERROR(assign(statement.target, item));
    ACCORD_RETURN_IF_ERROR(run(*statement.body, out));
  }
  flow_ = Flow::kNext;
  scope_ = outer;
  --loop_depth_;
  if (loop->items.empty() && statement.other != nullptr) {
    scope_ = push_scope(outer);
    ACCORD_RETURN_IF_ERROR(run(*statement.other, out));
    scope_ = outer;
  }
  return absl::OkStatus();
}

StatusOr<Value> Interpreter::capture(const Statement& statement) {
  Scope* outer = std::exchange(scope_, push_scope(scope_));
  std::string text;
  ACCORD_RETURN_IF_ERROR(run(*statement.body, text));
  scope_ = outer;
  ACCORD_ASSIGN_OR_RETURN(const Value value, Value::string(std::move(text)));
  return statement.value == nullptr ? StatusOr<Value>(value) : filter_with(*statement.value, value);
}

Status Interpreter::assign(const Target& target, const Value& value) {
  if (!target.attribute.empty()) {
    const Value holder = look_up(target.names.front());
    if (!holder.is(Kind::kObject) || holder.as_object()->kind != Object::Kind::kNamespace) {
      return data_error("'{}' is not a namespace; only its attributes can be assigned to",
                        target.names.front());
    }
    auto& members = static_cast<Namespace*>(holder.as_object())->members;
    const auto known = std::find_if(members.begin(), members.end(),
                                    [&](const auto& member) { return member.first == target.attribute; });
    if (known != members.end()) {
      known->second = value;
    } else {
      members.emplace_back(target.attribute, value);
    }
    return absl::OkStatus();
  }
  if (!target.is_tuple) {
    set_name(target.names.front(), value);
    return absl::OkStatus();
  }
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Value> parts, iterate(value));
  if (parts.size() != target.names.size()) {
    return data_error("{} values cannot be assigned to {} names", parts.size(), target.names.size());
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    set_name(target.names[i], parts[i]);
  }
  return absl::OkStatus();
}

StatusOr<Value> Interpreter::call_macro(const Macro& macro, const Arguments& arguments) {
  const Statement& definition = macro.definition;
  const std::vector<Parameter>& parameters = definition.parameters;
  if (arguments.positional.size() > parameters.size()) {
    return data_error("the macro '{}' takes {} arguments, {} are given", definition.text, parameters.size(),
                      arguments.positional.size());
  }
  for (size_t i = 0; i < arguments.named.size(); ++i) {
    const std::string& name = arguments.named[i].first;
    const auto found = std::find_if(parameters.begin(), parameters.end(),
                                    [&](const Parameter& parameter) { return parameter.name == name; });
    if (found == parameters.end() ||
        found - parameters.begin() < static_cast<std::ptrdiff_t>(arguments.positional.size())) {
      return data_error("the macro '{}' has no free parameter '{}'", definition.text, name);
    }
  }
  Scope* outer = std::exchange(scope_, push_scope(macro.scope));
  const int64_t loop_depth = std::exchange(loop_depth_, 0);
  for (size_t i = 0; i < parameters.size(); ++i) {
    Value value = Value::undefined(parameters[i].name);
    if (const Value* given = arguments.find(i, parameters[i].name)) {
      value = *given;
    } else if (parameters[i].missing != nullptr) {
      ACCORD_ASSIGN_OR_RETURN(value, evaluate(*parameters[i].missing));
    }
    scope_->names.emplace_back(parameters[i].name, std::move(value));
  }
  std::string text;
  ACCORD_RETURN_IF_ERROR(run(*definition.body, text));
  scope_ = outer;
  loop_depth_ = loop_depth;
  return Value::string(std::move(text));
}

StatusOr<Value> Interpreter::call(const Value& callee, const Arguments& arguments) {
  if (callee.is(Kind::kUndefined)) {
    return undefined_error(callee);
  }
  if (callee.is(Kind::kObject)) {
    const Object* object = callee.as_object();
    if (object->kind == Object::Kind::kMacro) {
      return call_macro(*static_cast<const Macro*>(object), arguments);
    }
    if (object->kind == Object::Kind::kFunction) {
      return call_function(static_cast<const Function*>(object)->name, arguments);
    }
    if (object->kind == Object::Kind::kMethod) {
      const auto* method = static_cast<const Method*>(object);
      return call_method(method->receiver, method->name, arguments);
    }
  }
  return data_error("a {} cannot be called", type_name(callee));
}

StatusOr<Value> Interpreter::call_function(std::string_view name, const Arguments& arguments) {
  if (name == "range") {
    return call_range(arguments);
  }
  if (name == "strftime_now") {
    return call_strftime(arguments);
  }
  if (name == "raise_exception") {
    ACCORD_RETURN_IF_ERROR(arguments.accept(name, {"message"}));
    const Value* message = arguments.find(0, "message");
    ACCORD_ASSIGN_OR_RETURN(const std::string text, to_text(message == nullptr ? Value() : *message));
    return data_error("the template refuses these messages: {}", printable(text));
  }
  if (name == "namespace") {
    return make_namespace(arguments);
  }
  if (!arguments.positional.empty()) {
    return data_error("dict: only named arguments are supported");
  }
  return Value::dict(arguments.named);
}

StatusOr<Value> Interpreter::make_namespace(const Arguments& arguments) {
  auto* made = make_object<Namespace>();
  if (arguments.positional.size() > 1 ||
      (!arguments.positional.empty() && !arguments.positional[0].is(Kind::kDict))) {
    return data_error("namespace: takes a dict and named arguments");
  }
  if (!arguments.positional.empty()) {
    made->members = arguments.positional[0].as_dict().members;
  }
  for (const auto& [name, value] : arguments.named) {
    if (name.starts_with('_')) {
      return data_error("a namespace's names must not begin with '_'");
    }
    made->members.emplace_back(name, value);
  }
  return Value::object(made);
}

StatusOr<Value> Interpreter::call_range(const Arguments& arguments) {
  ACCORD_RETURN_IF_ERROR(arguments.accept("range", {"start", "stop", "step"}));
  if (arguments.positional.empty() || !arguments.named.empty()) {
    return data_error("range: needs one to three ints");
  }
  const bool only_stop = arguments.positional.size() == 1;
  ACCORD_ASSIGN_OR_RETURN(const int64_t first, arguments.integer(0, "start", 0));
  ACCORD_ASSIGN_OR_RETURN(const int64_t second, arguments.integer(1, "stop", 0));
  ACCORD_ASSIGN_OR_RETURN(const int64_t step, arguments.integer(2, "step", 1));
  constexpr int64_t kLimit = 100'000;  // as Jinja's sandbox
  const int64_t start = only_stop ? 0 : first;
  const int64_t stop = only_stop ? first : second;
  const int64_t bound = int64_t{1} << 40;
  if (step == 0 || std::max({start, stop, step}) > bound || std::min({start, stop, step}) < -bound) {
    return data_error("range: the numbers are too large, or the step is 0");
  }
  std::vector<Value> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
    items.push_back(Value::integer(i));
    if (static_cast<int64_t>(items.size()) > kLimit) {
      return data_error("range: more than {} numbers", kLimit);
    }
  }
  return Value::list(std::move(items), Shape::kList);
}

StatusOr<Value> Interpreter::call_strftime(const Arguments& arguments) {
  ACCORD_RETURN_IF_ERROR(arguments.accept("strftime_now", {"format"}));
  ACCORD_ASSIGN_OR_RETURN(const std::string format, arguments.text(0, "format", ""));
  if (!date_) {
    return data_error(
        "the template asks for today's date, which would make a resumed run differ; say which date it is "
        "given (data.chat_date: YYYY-MM-DD)");
  }
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] == '%') {
      ++i;
      if (i == format.size() ||
          std::string_view("aAbBdjmyYHIMSp%").find(format[i]) == std::string_view::npos) {
        return data_error("strftime_now: the format '{}' is not supported", printable(format));
      }
    }
  }
  if (format.empty() || format.size() > 100) {
    return data_error("strftime_now: the format must have 1 to 100 characters");
  }
  std::array<char, 2048> text{};
  const size_t size = std::strftime(text.data(), text.size(), format.c_str(), &*date_);
  return Value::string(std::string(text.data(), size));
}

}  // namespace accord::text::jinja
