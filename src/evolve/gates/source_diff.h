// SPDX-License-Identifier: Apache-2.0
// What a patch adds to and removes from the code of the sources, by tokens.
//
// Rules compare counts over all changed sources instead of looking at the diff's lines, so that
// moved code is no change, and code that a comment hid before counts as added.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "evolve/gates/patch.h"
#include "evolve/gates/tokens.h"

namespace octavo::evolve {

struct SourceTokens {
  const ChangedSource* source = nullptr;
  std::vector<Token> before, after;
};

class SourceDiff {
 public:
  explicit SourceDiff(const Patched& patched) {
    for (const ChangedSource& source : patched.sources)
      files_.push_back({&source, tokens_of(source.before), tokens_of(source.after)});
  }

  const std::vector<SourceTokens>& files() const { return files_; }

  // Counts the places that `select` names; those of which the patch has more than there were before
  // are added, the others removed. `select(tokens, i)` is the name of what begins at token i, or
  // empty.
  using Select = std::function<std::string(const std::vector<Token>&, std::size_t)>;
  struct Place {
    std::string what, file;
    int line = 0;  // in the file after the patch; 0: removed
    bool added = true;
  };
  std::vector<Place> changes(const Select& select) const {
    std::map<std::string, int> counts;
    for (const SourceTokens& file : files_)
      for (std::size_t i = 0; i < file.before.size(); ++i)
        if (std::string what = select(file.before, i); !what.empty()) --counts[std::move(what)];
    std::map<std::string, Place> last;
    for (const SourceTokens& file : files_)
      for (std::size_t i = 0; i < file.after.size(); ++i)
        if (std::string what = select(file.after, i); !what.empty())
          if (++counts[what] > 0 && last.count(what) == 0)
            last[what] = {what, file.source->name, file.after[i].line, true};
    std::vector<Place> places;
    for (const auto& [what, count] : counts)
      if (count > 0)
        places.push_back(last.at(what));
      else if (count < 0)
        places.push_back({what, files_.front().source->name, 0, false});
    return places;
  }

 private:
  std::vector<SourceTokens> files_;
};

}  // namespace octavo::evolve
