// SPDX-License-Identifier: Apache-2.0
#include "commands/completion_script.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include "commands/command_tree.h"

namespace octavo::cli {
namespace {

struct Flag {
  std::string name;                 // "--json"
  std::string description;          // one line
  bool takes_value = false;         // or is a switch
  std::vector<std::string> values;  // of which it takes one; empty: a file, a number or a text
};

struct Command {
  std::string path;  // "cache ls"; "" for octavo itself
  std::vector<const CLI::App*> children;
  std::vector<Flag> flags;
};

std::vector<Flag> described_flags(const CLI::App& app, ValuesOfFlag values_of) {
  std::vector<Flag> flags;
  for (const CLI::Option* const option : flags_of(app)) {
    const std::string first_line =
        option->get_description().substr(0, option->get_description().find('\n'));
    for (const std::string& name : option->get_lnames())
      flags.push_back(
          {"--" + name, first_line, option->get_items_expected_max() > 0, values_of("--" + name)});
    for (const std::string& name : option->get_snames())
      flags.push_back({"-" + name, first_line, option->get_items_expected_max() > 0, {}});
  }
  return flags;
}

// The command and everything below it, parents first.
void collect(const CLI::App& app, const std::string& path, ValuesOfFlag values_of,
             std::vector<Command>& all) {
  all.push_back({path, subcommands_of(app), described_flags(app, values_of)});
  const std::vector<const CLI::App*> children = all.back().children;
  for (const CLI::App* const child : children)
    collect(*child, path.empty() ? child->get_name() : path + " " + child->get_name(), values_of,
            all);
}

std::vector<Command> commands_of(const CLI::App& app, ValuesOfFlag values_of) {
  std::vector<Command> all;
  collect(app, "", values_of, all);
  return all;
}

// The commands that may follow one: its subcommands, and after "help" those of octavo.
std::vector<const CLI::App*> next_commands(const Command& command, const CLI::App& app) {
  return command.path == "help" ? subcommands_of(app) : command.children;
}
std::vector<std::string> next_words(const Command& command, const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::App* const child : next_commands(command, app))
    words.push_back(child->get_name());
  return words;
}

std::string escaped(std::string text, std::string_view characters) {
  for (std::size_t at = 0; (at = text.find_first_of(characters, at)) != std::string::npos; at += 2)
    text.insert(at, 1, '\\');
  return text;
}

// In single quotes for bash and zsh.
std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string fish_quoted(const std::string& text) { return "'" + escaped(text, "\\'") + "'"; }

}  // namespace

std::string bash_completion(const CLI::App& app, ValuesOfFlag values_of) {
  std::string paths, values, words;
  for (const Command& command : commands_of(app, values_of)) {
    if (!command.path.empty()) paths += (paths.empty() ? "" : "|") + shell_quoted(command.path);
    std::vector<std::string> names = next_words(command, app);
    for (const Flag& flag : command.flags) {
      names.push_back(flag.name);
      if (!flag.takes_value) continue;
      // Without values the shell completes file names.
      values += fmt::format("    {}) words={} ;;\n", shell_quoted(command.path + " " + flag.name),
                            shell_quoted(fmt::format("{}", fmt::join(flag.values, " "))));
    }
    words += fmt::format("    {}) words={} ;;\n", shell_quoted(command.path),
                         shell_quoted(fmt::format("{}", fmt::join(names, " "))));
  }
  return fmt::format(R"(# Completion of octavo for bash: source <(octavo completion bash)
_octavo() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}}
  local command='' words='' i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "${{command:+$command }}${{COMP_WORDS[i]}}" in
    {}) command="${{command:+$command }}${{COMP_WORDS[i]}}" ;;
    esac
  done
  COMPREPLY=()
  case "$command $previous" in
{}    *)
    case "$command" in
{}    esac ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}}
complete -o default -F _octavo octavo
)",
                     paths, values, words);
}

std::string zsh_completion(const CLI::App& app, ValuesOfFlag values_of) {
  std::string paths, cases;
  for (const Command& command : commands_of(app, values_of)) {
    if (!command.path.empty()) paths += (paths.empty() ? "" : "|") + shell_quoted(command.path);
    std::string arguments;
    for (const Flag& flag : command.flags) {
      const std::string value = !flag.takes_value ? ""
                                : flag.values.empty()
                                    ? ":value:_files"
                                    : fmt::format(":value:({})", fmt::join(flag.values, " "));
      arguments +=
          " \\\n      " + shell_quoted(fmt::format("*{}[{}]{}", flag.name,
                                                   escaped(flag.description, "[]:\\"), value));
    }
    const std::vector<std::string> next = next_words(command, app);
    if (!next.empty())
      arguments +=
          " \\\n      " + shell_quoted(fmt::format("*:subcommand:({})", fmt::join(next, " ")));
    cases += fmt::format("  {})\n    _arguments{} ;;\n", shell_quoted(command.path), arguments);
  }
  return fmt::format(R"(#compdef octavo
# Completion of octavo for zsh: source <(octavo completion zsh)
_octavo() {{
  local command='' i
  for ((i = 2; i < CURRENT; ++i)); do
    case "${{command:+$command }}${{words[i]}}" in
    {}) command="${{command:+$command }}${{words[i]}}" ;;
    esac
  done
  case "$command" in
{}  esac
}}
compdef _octavo octavo
)",
                     paths, cases);
}

std::string fish_completion(const CLI::App& app, ValuesOfFlag values_of) {
  std::string paths, lines;
  for (const Command& command : commands_of(app, values_of)) {
    if (!command.path.empty()) paths += " " + fish_quoted(" " + command.path);
    const std::string begin = fmt::format("complete -c octavo -n '__octavo_after{}{}'",
                                          command.path.empty() ? "" : " ", command.path);
    for (const CLI::App* const child : next_commands(command, app))
      lines += fmt::format("{} -f -a {} -d {}\n", begin, child->get_name(),
                           fish_quoted(child->get_description()));
    for (const Flag& flag : command.flags) {
      const bool is_long = flag.name.starts_with("--");
      lines += fmt::format("{} {} {} -d {}", begin, is_long ? "-l" : "-s",
                           flag.name.substr(is_long ? 2 : 1), fish_quoted(flag.description));
      if (flag.takes_value && flag.values.empty()) lines += " -r";
      if (flag.takes_value && !flag.values.empty())
        lines += " -x -a " + fish_quoted(fmt::format("{}", fmt::join(flag.values, " ")));
      lines += "\n";
    }
  }
  return fmt::format(R"(# Completion of octavo for fish: octavo completion fish | source
function __octavo_after
  set -l command
  for word in (commandline -opc)[2..-1]
    if contains -- "$command $word"{}
      set -a command $word
    end
  end
  test "$command" = "$argv"
end
)",
                     paths) +
         lines;
}

}  // namespace octavo::cli
