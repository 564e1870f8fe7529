// SPDX-License-Identifier: Apache-2.0
// What the command is for a person at a shell: help, completion, colour, width.
#include <stdlib.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "cli/process.h"
#include "octavo/kernels.hpp"

namespace octavo::cli {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The subcommands below "Subcommands:" of a help text.
std::vector<std::string> subcommands(const std::string& help) {
  std::vector<std::string> names;
  bool below = false;
  for (const std::string& line : lines_of(help)) {
    if (below && line.starts_with("  ") && line[2] != ' ')
      names.push_back(line.substr(2, line.find(' ', 2) - 2));
    below = below || line == "Subcommands:";
  }
  return names;
}

// The long flags of a help text.
std::set<std::string> flags(const std::string& help) {
  std::set<std::string> found;
  for (std::size_t at = 0; (at = help.find("--", at)) != std::string::npos; at += 2) {
    const bool begins = at == 0 || help[at - 1] == ' ' || help[at - 1] == ',';
    const std::size_t end = help.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-", at);
    const std::size_t line = help.rfind('\n', at) + 1;
    // Flags begin their line; those within a description do not.
    const std::string before = help.substr(line, at - line);
    if (begins && before.find_first_not_of(" -,hV") == std::string::npos)
      found.insert(help.substr(at, end - at));
  }
  return found;
}

TEST(Shell, HelpIsThatOfTheSubcommand) {
  const Finished all = octavo_command({"help"});
  ASSERT_EQ(all.code, 0) << all.err;
  EXPECT_EQ(all.out, octavo_command({"--help"}).out);
  const std::vector<std::string> names = subcommands(all.out);
  EXPECT_GE(names.size(), 15u);
  for (const std::string& name : names) {
    const Finished told = octavo_command({"help", name});
    EXPECT_EQ(told.code, 0) << told.err;
    EXPECT_EQ(told.out, octavo_command({name, "--help"}).out) << name;
  }
  EXPECT_EQ(octavo_command({"help", "cache", "ls"}).out,
            octavo_command({"cache", "ls", "--help"}).out);
  const Finished unknown = octavo_command({"help", "frobnicate"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_EQ(unknown.out, "");
  EXPECT_NE(unknown.err.find("'frobnicate'; supported: run, check"), std::string::npos)
      << unknown.err;
}

TEST(Shell, VersionHasAShortFlag) {
  EXPECT_EQ(octavo_command({"-V"}).out, "octavo " + std::string(version()) + "\n");
}

// Completes the last word in bash, as pressing the tab key does.
std::vector<std::string> completed(const std::string& script, std::vector<std::string> words) {
  std::string line = "source '" + script + "'; COMP_WORDS=(octavo";
  for (const std::string& word : words) line += " '" + word + "'";
  line += "); COMP_CWORD=" + std::to_string(words.size()) +
          "; _octavo; printf '%s\\n' \"${COMPREPLY[@]}\"";
  const Finished bash = run_program("bash", {"-c", line});
  EXPECT_EQ(bash.err, "");
  return lines_of(bash.out);
}

TEST(Shell, BashCompletes) {
  const Directory directory;
  const std::string script = directory / "octavo.bash";
  write_file(script, octavo_command({"completion", "bash"}).out);
  using Words = std::vector<std::string>;
  EXPECT_EQ(completed(script, {"exp"}), (Words{"explain"}));
  EXPECT_EQ(completed(script, {"run", "--pre"}), (Words{"--preset", "--precision"}));
  EXPECT_EQ(completed(script, {"run", "--preset", "m"}), (Words{"mission"}));
  EXPECT_EQ(completed(script, {"explain", "--preset", "long", "--gpu", "h100"}),
            (Words{"h100", "h100_pcie"}));
  EXPECT_EQ(completed(script, {"cache", "l"}), (Words{"ls"}));
  EXPECT_EQ(completed(script, {"cache", "rm", "--al"}), (Words{"--all"}));
  EXPECT_EQ(completed(script, {"help", "quant"}), (Words{"quantize"}));
  // Where a file follows, bash completes file names by itself.
  EXPECT_EQ(completed(script, {"run", "--q", ""}), (Words{""}));
}

TEST(Shell, EveryShellHasEveryFlag) {
  const std::vector<std::string> names = subcommands(octavo_command({"--help"}).out);
  const std::pair<const char*, const char*> shells[] = {
      {"bash", "--"}, {"zsh", "*--"}, {"fish", " -l "}};
  for (const auto& [shell, before] : shells) {
    const Finished finished = octavo_command({"completion", shell});
    ASSERT_EQ(finished.code, 0) << finished.err;
    for (const std::string& name : names) {
      const std::set<std::string> of_name = flags(octavo_command({name, "--help"}).out);
      EXPECT_FALSE(of_name.empty()) << name;
      for (const std::string& flag : of_name)
        EXPECT_NE(finished.out.find(before + flag.substr(2)), std::string::npos) << shell << flag;
    }
    // The shell itself reads it without an error, where it is installed.
    const Directory directory;
    write_file(directory / "script", finished.out);
    const Finished parsed = run_program(shell, {"-n", directory / "script"});
    EXPECT_TRUE(parsed.code == 0 || parsed.code == 127) << shell << ": " << parsed.err;
  }
  const Finished unknown = octavo_command({"completion", "tcsh"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.err.find("'tcsh'; supported: bash, zsh, fish."), std::string::npos);
}

TEST(Shell, ColourIsForTerminals) {
  ::setenv("TERM", "xterm", 1);
  ::unsetenv("NO_COLOR");
  const std::vector<std::string> devices = {"devices"};
  const Finished plain = octavo_command(devices);
  EXPECT_EQ(plain.out.find('\x1b'), std::string::npos);
  const std::string coloured = octavo_on_terminal(devices);
  EXPECT_NE(coloured.find("\x1b[1mdevice"), std::string::npos) << coloured;
  EXPECT_NE(octavo_on_terminal({"frobnicate"}).find("\x1b[1;31moctavo:\x1b[0m"), std::string::npos);
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_EQ(octavo_on_terminal(devices), plain.out);
  ::setenv("NO_COLOR", "", 1);  // empty means nothing
  EXPECT_EQ(octavo_on_terminal(devices), coloured);
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "dumb", 1);
  EXPECT_EQ(octavo_on_terminal(devices), plain.out);
}

TEST(Shell, NothingIsWiderThanAHundredColumns) {
  const std::vector<std::vector<std::string>> commands = {
      {"devices"},
      {"kernels"},
      {"explain", "--gpu", "h200", "--preset", "long", "--precision", "fp8", "--causal"},
      {"explain", "--gpu", "a100", "--preset", "wide"},
      {"bench", "--device", "cpu", "--shape", "1,1,32,8", "--iters", "1", "--warmup", "0"},
      {"accuracy", "--device", "cpu", "--data", "v_mean", "--precision", "fp8", "--keys", "512",
       "--seeds", "1"}};
  for (const auto& command : commands) {
    const Finished finished = octavo_command(command);
    EXPECT_EQ(finished.code, 0) << finished.err;
    for (const std::string& line : lines_of(finished.out)) {
      // One word, such as a path, is never broken.
      const bool one_word = line.find(' ', line.find_first_not_of(' ')) == std::string::npos;
      EXPECT_TRUE(line.size() <= 100 || one_word) << line;
    }
  }
}

TEST(Shell, ExplainKnowsGpusThatAreAbsent) {
  using nlohmann::json;
  const auto explained = [](const std::string& gpu, std::vector<std::string> more) {
    std::vector<std::string> all = {"explain", "--gpu", gpu, "--json", "-"};
    all.insert(all.end(), more.begin(), more.end());
    const Finished finished = octavo_command(all);
    EXPECT_EQ(finished.code, 0) << finished.err;
    return json::parse(finished.out);
  };
  for (const KnownGpu& gpu : known_gpus()) {
    const json told = explained(gpu.name, {"--preset", "long"});
    EXPECT_EQ(told.at("kernel"), gpu.arch == 90 ? "sm90_forward" : "sm80_forward") << gpu.name;
    EXPECT_NE(told.at("device").get<std::string>().find(gpu.product), std::string::npos);
    EXPECT_NE(told.at("device").get<std::string>().find(std::to_string(gpu.sms) + " SMs"),
              std::string::npos);
  }
  EXPECT_EQ(explained("H100", {"--shape", "1,8,1,128", "--kv-length", "65536"}).at("kernel"),
            "decode");
  const auto refused = [](const std::vector<std::string>& arguments, std::string_view word) {
    const Finished finished = octavo_command(arguments);
    EXPECT_EQ(finished.code, 2);
    EXPECT_NE(finished.err.find(word), std::string::npos) << finished.err;
  };
  refused({"explain", "--gpu", "v100", "--preset", "long"}, "gpu is 'v100'; supported: a100, ");
  refused({"explain", "--gpu", "a100", "--preset", "long", "--dtype", "e4m3"}, "FP8 from sm_89");
  refused({"explain", "--gpu", "l4", "--device", "cpu", "--preset", "long"}, "--device");
}

}  // namespace
}  // namespace octavo::cli
