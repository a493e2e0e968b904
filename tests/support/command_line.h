// SPDX-License-Identifier: Apache-2.0
//
// The command line of a program that measures or tests. CLI11 does the work, in one file: what its
// templates take to compile would otherwise be most of the time of each such program.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace hydra::test {

class CommandLine {
 public:
  // What more there is to say of an option; lives as long as its CommandLine.
  class Option {
   public:
    explicit Option(CLI::Option* option) : option_(option) {}

    Option& Required();
    Option& Hidden();      // not in the help
    Option& CommaLists();  // "1,2,3" is three values
    Option& Between(uint64_t least, uint64_t most);
    Option& BetweenReals(double least, double most);
    Option& Positive();
    Option& NonNegative();
    Option& OneOf(const std::set<std::string>& values);
    Option& ExistingDirectory();
    Option& Size();  // "4k", "1GiB"
    Option& Excludes(const Option& other);
    Option& Needs(const Option& other);

    bool given() const;

   private:
    CLI::Option* option_;
  };

  explicit CommandLine(const std::string& description, const std::string& name = "");
  ~CommandLine();

  // `to` keeps what it has unless the option is given. A name without dashes is that of an
  // argument.
  Option Add(const std::string& name, std::string* to, const std::string& help = "");
  Option Add(const std::string& name, std::vector<std::string>* to, const std::string& help = "");
  Option Add(const std::string& name, std::vector<uint64_t>* to, const std::string& help = "");
  Option Add(const std::string& name, uint32_t* to, const std::string& help = "");
  Option Add(const std::string& name, uint64_t* to, const std::string& help = "");
  Option Add(const std::string& name, double* to, const std::string& help = "");
  Option Add(const std::string& name, bool* to, const std::string& help = "");  // without a value

  // The status to exit with, after the help or an error was printed; nothing if there is work to
  // do.
  std::optional<int> Parse(int argc, char** argv);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace hydra::test
