// SPDX-License-Identifier: Apache-2.0
// The text form of configurations: round trip, tolerant parsing, errors, and that no field is
// missing.
#include "gpu/jit/config_text.h"

#include <gtest/gtest.h>

#include <set>

#include "gpu/jit/config_fields.h"

namespace octavo {
namespace {

TEST(ConfigText, ADesignatedInitialiserWithoutSpaces) {
  EXPECT_TRUE(to_text(Sm80ForwardConfig{})
                  .starts_with("Sm80ForwardConfig{.arch=80,.element=Element::f16,.head_dim=64,"))
      << to_text(Sm80ForwardConfig{});
  EXPECT_EQ(to_text(Sm80ForwardConfig{}).find(' '), std::string::npos);
}

// A different value for each kind of field.
void change(int& x) { x += 7; }
void change(KScales& x) { x = KScales::row; }
void change(Schedule& x) { x = Schedule::in_turn; }
void change(ScoreType& x) { x = ScoreType::f16_fast; }
void change(BackwardPass& x) { x = BackwardPass::dq; }
void change(bool& x) { x = !x; }
void change(Element& x) { x = x == Element::sim8 ? Element::f32 : Element::sim8; }
void change(ExpForm& x) { x = x == ExpForm::f16x2 ? ExpForm::f32 : ExpForm::f16x2; }

Result<Sm80ForwardConfig> parsed_as(const Sm80ForwardConfig&, std::string_view text) {
  return parse_sm80_forward(text);
}
Result<Sm90ForwardConfig> parsed_as(const Sm90ForwardConfig&, std::string_view text) {
  return parse_sm90_forward(text);
}
Result<Sm80BackwardConfig> parsed_as(const Sm80BackwardConfig&, std::string_view text) {
  return parse_sm80_backward(text);
}

template <class Config>
void every_field_is_written_and_read() {
  std::set<std::string> texts = {to_text(Config{})};
  Config probe;
  visit_values(probe, [&](const std::string& name, auto&) {
    Config config;
    visit_values(config, [&](const std::string& other, auto& field) {
      if (other == name) change(field);
    });
    EXPECT_TRUE(texts.insert(to_text(config)).second) << name;
    const Result<Config> parsed = parsed_as(config, to_text(config));
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(*parsed, config) << to_text(config);
  });
}

TEST(ConfigText, EveryFieldIsWrittenAndRead) {
  every_field_is_written_and_read<Sm80ForwardConfig>();
  every_field_is_written_and_read<Sm90ForwardConfig>();
  every_field_is_written_and_read<Sm80BackwardConfig>();
}

TEST(ConfigText, TypeSelectsTheKernel) {
  EXPECT_TRUE(names_sm90_forward(to_text(Sm90ForwardConfig{})));
  EXPECT_TRUE(names_sm90_forward("  Sm90ForwardConfig { .stages=3 }"));
  EXPECT_FALSE(names_sm90_forward(to_text(Sm80ForwardConfig{})));
  EXPECT_FALSE(names_sm90_forward("arch=90"));
  EXPECT_FALSE(names_sm90_forward(""));
  EXPECT_FALSE(parse_sm90_forward(to_text(Sm80ForwardConfig{})).ok());
  EXPECT_FALSE(parse_sm80_forward(to_text(Sm90ForwardConfig{})).ok());
  Sm90ForwardConfig config;
  config.stages = 3;
  EXPECT_EQ(brief_text(config), "stages=3");
}

// The count must notice an added field.
TEST(ConfigText, FieldsAreCounted) {
  struct Two {
    int a = 0;
    bool b = false;
  };
  struct Three {
    int a = 0;
    bool b = false;
    Element c = Element::f16;
  };
  EXPECT_EQ(kFieldCount<Two>, 2);
  EXPECT_EQ(kFieldCount<Three>, 3);
}

// Designated initialisers must come in the order of the declaration.
template <class Config>
void fields_are_in_order() {
  const Config config;
  const void* last = nullptr;
  visit_values(config, [&](const std::string& name, const auto& field) {
    EXPECT_TRUE(last < static_cast<const void*>(&field)) << name;
    last = &field;
  });
}
TEST(ConfigText, FieldsAreInOrder) {
  fields_are_in_order<Sm80ForwardConfig>();
  fields_are_in_order<Sm90ForwardConfig>();
  fields_are_in_order<Sm80BackwardConfig>();
  fields_are_in_order<RowStatsConfig>();
}

TEST(ConfigText, RoundTripOfManyConfigs) {
  int count = 0;
  for (const int arch : {80, 89, 90}) {
    for (int element = 0; element < 7; ++element) {
      for (const int head_dim : {64, 96, 256}) {
        for (const int warps : {1, 4}) {
          for (const bool flag : {false, true}) {
            Sm80ForwardConfig config;
            config.arch = arch;
            config.element = static_cast<Element>(element);
            config.output.element = static_cast<Element>(element % 3);
            config.head_dim = head_dim;
            config.warps_n = warps;
            config.q_in_registers = flag;
            config.rescale_log2 = -element;
            const Result<Sm80ForwardConfig> parsed = parse_sm80_forward(to_text(config));
            ASSERT_TRUE(parsed.ok()) << parsed.status().message();
            EXPECT_EQ(*parsed, config);
            const std::string brief = brief_text(config);
            Result<Sm80ForwardConfig> from_brief = parse_sm80_forward(brief);
            ASSERT_TRUE(from_brief.ok()) << brief;
            from_brief->arch = arch;
            EXPECT_EQ(*from_brief, config) << brief;
            ++count;
          }
        }
      }
    }
  }
  EXPECT_EQ(count, 252);
}

TEST(ConfigText, BriefListsDifferences) {
  Sm80ForwardConfig config;
  EXPECT_EQ(brief_text(config), "");
  config.arch = 90;
  config.element = Element::e4m3;
  config.q_in_registers = !config.q_in_registers;
  config.modifiers.mask = true;
  EXPECT_EQ(brief_text(config), "element=e4m3,q_in_registers=false,modifiers.mask=true");
}

TEST(ConfigText, SubsetsAnyOrderAndWhitespace) {
  Sm80ForwardConfig config;
  config.head_dim = 128;
  config.element = Element::bf16;
  config.output = {.element = Element::f32, .amax = true};
  for (const char* text :
       {"Sm80ForwardConfig{.head_dim=128,.element=Element::bf16,.output={.element=Element::f32,"
        ".amax=true}}",
        "output.amax=true,element=bf16,head_dim=128,output.element=f32",
        " { . head_dim = 128 ,\n element = Element::bf16 , output = { amax = 1 , . element = f32 "
        "}, "
        "} ",
        "output={amax=1},element=bf16,output={element=f32},head_dim=128",
        "output={},element=bf16,head_dim=128,output={amax=1,element=f32}"}) {
    const Result<Sm80ForwardConfig> parsed = parse_sm80_forward(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status().message();
    EXPECT_EQ(*parsed, config) << text;
  }
  for (const char* text : {"", "  ", "{}", "Sm80ForwardConfig{}"}) {
    ASSERT_TRUE(parse_sm80_forward(text).ok()) << text;
    EXPECT_EQ(*parse_sm80_forward(text), Sm80ForwardConfig{}) << text;
  }
}

TEST(ConfigText, ErrorsNameSupportedValues) {
  const auto message = [](std::string_view text) {
    const Result<Sm80ForwardConfig> parsed = parse_sm80_forward(text);
    EXPECT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), ErrorCode::invalid_argument);
    return parsed.status().message();
  };
  EXPECT_NE(message("blocks=3").find("block_m"), std::string::npos);
  EXPECT_NE(message("blocks=3").find("'blocks'"), std::string::npos);
  EXPECT_EQ(message("element=f17"),
            "config.element is 'f17'; supported: f32, f16, bf16, e4m3, e5m2, int8, sim8, "
            "boolean, int4.");
  EXPECT_EQ(message("q_in_registers=maybe"),
            "config.q_in_registers is 'maybe'; supported: true, false.");
  EXPECT_NE(message("head_dim=99999999999").find("config.head_dim"), std::string::npos);
  EXPECT_NE(message("head_dim=").find("config.head_dim"), std::string::npos);
  EXPECT_NE(message("head_dim=64x").find("'64x'"), std::string::npos);
  EXPECT_NE(message("head_dim").find("field=value"), std::string::npos);
  EXPECT_NE(message("stages=1,stages=2").find("twice"), std::string::npos);
  EXPECT_NE(message("{stages=1").find("Sm80ForwardConfig{"), std::string::npos);
  EXPECT_NE(message("stages=1}").find("Sm80ForwardConfig{"), std::string::npos);
  EXPECT_NE(message("element={amax=true}").find("'element.amax'"), std::string::npos);
  EXPECT_NE(message("output=f32").find("output.element"), std::string::npos);
  EXPECT_NE(message("output.amax=1,output={amax=1}").find("twice"), std::string::npos);
  EXPECT_NE(message("output={{amax=1}}").find("'output.{amax'"), std::string::npos);
  message("output={amax=1");
  message("output={amax={amax=1}}");
  message("output={amax=1},{");
  message("{");
  message("}");
  message(",");
  message("=");
  EXPECT_EQ(message("a\n\x01" + std::string(500, 'x') + "=1").find('\x01'), std::string::npos);
  EXPECT_LT(message(std::string(5000, 'x')).size(), 300u);
}

}  // namespace
}  // namespace octavo
