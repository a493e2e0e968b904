// SPDX-License-Identifier: Apache-2.0
#include "tests/support/command_line.h"

#include <CLI/CLI.hpp>

namespace hydra::test {

using Option = CommandLine::Option;

Option& Option::Required() {
  option_->required();
  return *this;
}

Option& Option::Hidden() {
  option_->group("");
  return *this;
}

Option& Option::CommaLists() {
  option_->delimiter(',');
  return *this;
}

Option& Option::Between(uint64_t least, uint64_t most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

Option& Option::BetweenReals(double least, double most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

Option& Option::Positive() {
  option_->check(CLI::PositiveNumber);
  return *this;
}

Option& Option::NonNegative() {
  option_->check(CLI::NonNegativeNumber);
  return *this;
}

Option& Option::OneOf(const std::set<std::string>& values) {
  option_->check(CLI::IsMember(values));
  return *this;
}

Option& Option::ExistingDirectory() {
  option_->check(CLI::ExistingDirectory);
  return *this;
}

Option& Option::Size() {
  option_->transform(CLI::AsSizeValue(false));
  return *this;
}

Option& Option::Excludes(const Option& other) {
  option_->excludes(other.option_);
  return *this;
}

Option& Option::Needs(const Option& other) {
  option_->needs(other.option_);
  return *this;
}

bool Option::given() const { return option_->count() > 0; }

CommandLine::CommandLine(const std::string& description, const std::string& name)
    : app_(std::make_unique<CLI::App>(description, name)) {}
CommandLine::~CommandLine() = default;

Option CommandLine::Add(const std::string& name, std::string* to, const std::string& help) {
  return Option(app_->add_option(name, *to, help));
}

Option CommandLine::Add(const std::string& name, std::vector<std::string>* to,
                        const std::string& help) {
  return Option(app_->add_option(name, *to, help));
}

Option CommandLine::Add(const std::string& name, std::vector<uint64_t>* to,
                        const std::string& help) {
  return Option(app_->add_option(name, *to, help));
}

Option CommandLine::Add(const std::string& name, uint32_t* to, const std::string& help) {
  return Option(app_->add_option(name, *to, help));
}

Option CommandLine::Add(const std::string& name, uint64_t* to, const std::string& help) {
  return Option(app_->add_option(name, *to, help));
}

Option CommandLine::Add(const std::string& name, double* to, const std::string& help) {
  return Option(app_->add_option(name, *to, help));
}

Option CommandLine::Add(const std::string& name, bool* to, const std::string& help) {
  return Option(app_->add_flag(name, *to, help));
}

std::optional<int> CommandLine::Parse(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app_->exit(error);
  }
  return std::nullopt;
}

}  // namespace hydra::test
