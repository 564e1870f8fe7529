// SPDX-License-Identifier: Apache-2.0
// Reports as JSON. Numbers that are not finite, and values that were not measured, are null.
#include <cmath>
#include <nlohmann/json.hpp>

#include "octavo/accuracy.hpp"
#include "octavo/counters.hpp"
#include "octavo/evidence.hpp"
#include "octavo/ladder.hpp"

namespace octavo {
namespace {

using Json = nlohmann::ordered_json;

Json number(double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); }
Json number(const std::optional<double>& x) { return x ? number(*x) : Json(nullptr); }

Json text_or_null(const std::optional<Granularity>& x) {
  return x ? Json(name(*x)) : Json(nullptr);
}

Json envelope(std::string_view kind) {
  return {{"schema", kSchemaVersion}, {"kind", kind}, {"version", version()}};
}

// Text from a device or a driver may not be UTF-8: invalid bytes are replaced instead of throwing.
std::string dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json attention_json(const Options& o) {
  const Quantization& q = o.quantization;
  return {{"causal", name(o.causal)},
          {"window_left", o.window_left},
          {"window_right", o.window_right},
          {"softcap", o.softcap},
          {"precision", name(o.precision)},
          {"quantization",
           {{"qk", text_or_null(q.qk)},
            {"v", text_or_null(q.v)},
            {"block_rows", q.block_rows},
            {"rule", name(q.rule)},
            {"smooth_k", q.smooth_k},
            {"hadamard", q.hadamard}}},
          {"batch_invariant", o.batch_invariant},
          {"overlap_launch", o.overlap_launch},
          {"sm_margin", o.sm_margin}};
}

Json row_json(const CheckRow& row) {
  return {{"precision", row.precision},
          {"format", row.format},
          {"cases", row.cases},
          {"failed", row.failed},
          {"worst_total_error", number(row.worst_total_error)},
          {"worst_kernel_error", number(row.worst_kernel_error)},
          {"worst_total_rmse", number(row.worst_total_rmse)},
          {"worst_bound_ratio", number(row.worst_bound_ratio)},
          {"bound", row.bound},
          {"worst_case", row.worst_case}};
}

Json host_json(const std::optional<HostCost>& host) {
  if (!host) return nullptr;
  return {{"run_ns", number(host->run_ns)},
          {"call_ns", number(host->call_ns)},
          {"bare_launch_ns", number(host->bare_launch_ns)}};
}

Json row_json(const BenchRow& row) {
  Json samples = Json::array();
  for (const double sample : row.samples_us) samples.push_back(number(sample));
  return {{"name", row.shape.name},
          {"batch", row.shape.batch},
          {"heads", row.shape.heads},
          {"length", row.shape.length},
          {"head_dim", row.shape.head_dim},
          {"heads_kv", row.shape.heads_kv.value_or(row.shape.heads)},
          {"length_kv", row.shape.length_kv.value_or(row.shape.length)},
          {"median_us", number(row.median_us)},
          {"low_us", number(row.low_us)},
          {"high_us", number(row.high_us)},
          {"gflops", number(row.gflops)},
          {"fma_peak_gflops", number(row.fma_peak_gflops)},
          {"fma_peak_fraction", number(row.fma_peak_fraction)},
          {"three_loop_us", number(row.three_loop_us)},
          {"three_loop_ratio", number(row.three_loop_ratio)},
          {"max_error", number(row.max_error)},
          {"host", host_json(row.host)},
          {"kernel", row.kernel.kernel},
          {"config", row.kernel.config},
          {"reason", row.kernel.reason},
          {"empty_us", number(row.empty_us)},
          {"clock_mhz", number(row.clock_mhz)},
          {"power_w", number(row.power_w)},
          {"throttle", row.throttle ? Json(*row.throttle) : Json(nullptr)},
          {"samples_us", std::move(samples)}};
}

Json errors_json(const ErrorStats& e, double bias) {
  return {{"max_abs", number(e.max_abs)},
          {"rmse", number(e.rmse)},
          {"relative_rmse", number(e.relative_rmse)},
          {"cosine", number(e.cosine)},
          {"bias", number(bias)},
          {"not_finite", e.not_finite}};
}

Json row_json(const AccuracyRow& row) {
  const bool measured = row.not_available.empty();
  return {{"data", row.data},
          {"precision", name(row.precision)},
          {"hadamard", row.hadamard},
          {"heads", row.heads},
          {"seqlen_q", row.seqlen_q},
          {"seqlen_kv", row.seqlen_kv},
          {"head_dim", row.head_dim},
          {"not_available", measured ? Json(nullptr) : Json(row.not_available)},
          {"total", measured ? errors_json(row.total, row.total_bias) : Json(nullptr)},
          {"kernel_error", measured ? errors_json(row.kernel, row.kernel_bias) : Json(nullptr)},
          {"us", number(row.us)},
          {"prequantized_us", number(row.prequantized_us)},
          {"kernel", row.kernel_name},
          {"config", row.config},
          {"reason", row.reason}};
}

Json row_json(const CounterRow& row, const std::vector<CounterName>& names) {
  Json metrics = Json::object();
  for (std::size_t i = 0; i < names.size(); ++i) metrics[names[i].key] = number(row.values[i]);
  return {{"name", row.shape.name},
          {"batch", row.shape.batch},
          {"heads", row.shape.heads},
          {"length", row.shape.length},
          {"head_dim", row.shape.head_dim},
          {"kernel", row.main ? row.kernel.kernel : "preparation"},
          {"config", row.main ? row.kernel.config : ""},
          {"launch", row.launch},
          {"launches", row.launches},
          {"gflop", row.main ? number(row.gflop) : Json(0)},
          {"metrics", std::move(metrics)}};
}

Json row_json(const LadderRow& row) {
  Json samples = Json::array();
  for (const double sample : row.samples_us) samples.push_back(number(sample));
  return {{"name", row.shape.name},
          {"batch", row.shape.batch},
          {"heads", row.shape.heads},
          {"length", row.shape.length},
          {"head_dim", row.shape.head_dim},
          {"rung", row.rung},
          {"kernel", row.kernel},
          {"not_run", row.not_run.empty() ? Json(nullptr) : Json(row.not_run)},
          {"max_error", number(row.max_error)},
          {"bound_ratio", number(row.bound_ratio)},
          {"median_us", number(row.median_us)},
          {"low_us", number(row.low_us)},
          {"high_us", number(row.high_us)},
          {"gflops", number(row.gflops)},
          {"vs_previous", number(row.vs_previous)},
          {"vs_octavo", number(row.vs_octavo)},
          {"registers", row.registers ? Json(*row.registers) : Json(nullptr)},
          {"threads", row.threads},
          {"smem_bytes", row.smem_bytes},
          {"samples_us", std::move(samples)}};
}

template <class Row>
Json rows_json(const std::vector<Row>& rows) {
  Json array = Json::array();
  for (const Row& row : rows) array.push_back(row_json(row));
  return array;
}

}  // namespace

std::string to_json(const AccuracyReport& report) {
  Json json = envelope("accuracy");
  json["device"] = report.device;
  json["machine"] = report.machine;
  json["oracle"] = report.oracle;
  json["seeds"] = report.seeds;
  json["most_keys"] = report.most_keys;
  json["rows"] = rows_json(report.rows);
  return dump(json);
}

std::string to_json(const CheckReport& report) {
  Json json = envelope("check");
  json["device"] = report.device;
  json["suite"] = report.suite;
  json["seed"] = report.seed;
  json["repeat"] = report.repeat;
  json["streams"] = report.streams;
  json["overlap_launch"] = report.overlap_launch;
  json["cases"] = report.cases;
  json["distinct"] = report.distinct;
  json["kernels"] = report.kernels;
  json["oracle"] = {{"device", report.oracle},
                    {"compared", report.oracle_compared},
                    {"difference", number(report.oracle_difference)}};
  json["emulated"] = {{"cases", report.emulated},
                      {"difference", number(report.emulated_difference)}};
  json["passed"] = report.passed();
  json["rows"] = rows_json(report.rows);
  json["failures"] = report.failures;
  json["not_run"] = report.not_run;
  json["not_run_reasons"] = report.not_run_reasons;
  return dump(json);
}

std::string to_json(const BenchReport& report) {
  Json json = envelope("bench");
  json["device"] = report.device;
  json["machine"] = report.machine;
  json["dtype"] = report.dtype;
  json["attention"] = attention_json(report.attention);
  json["iters"] = report.iters;
  json["warmup"] = report.warmup;
  json["seed"] = report.seed;
  json["launch"] = report.stream ? "stream" : "graph";
  json["l2"] = report.cold_l2 ? "cold" : "warm";
  json["buffers"] = report.buffers;
  json["prequantized"] = report.prequantized;
  if (report.prequantized) json["v_layout"] = name(report.prequantized_v);
  json["threads"] = report.threads;
  json["fma_peak_gflops"] = number(report.fma_peak_gflops);
  json["passed"] = report.passed();
  json["rows"] = rows_json(report.rows);
  json["failures"] = report.failures;
  return dump(json);
}

std::string to_json(const CountersReport& report) {
  Json json = envelope("counters");
  json["device"] = report.device;
  json["machine"] = report.machine;
  json["chip"] = report.chip;
  json["cupti"] = report.cupti;
  json["dtype"] = report.dtype;
  json["attention"] = attention_json(report.attention);
  json["seed"] = report.seed;
  json["passes"] = report.passes;
  json["measured"] = report.measured();
  json["not_measured"] = report.not_measured;
  json["not_counted"] = report.not_counted;
  json["names"] = Json::array();
  for (const CounterName& name : report.names)
    json["names"].push_back({{"key", name.key},
                             {"unit", name.unit},
                             {"metric", name.metric.empty() ? Json(nullptr) : Json(name.metric)}});
  json["rows"] = Json::array();
  for (const CounterRow& row : report.rows) json["rows"].push_back(row_json(row, report.names));
  return dump(json);
}

std::string to_json(const Explanation& explanation) {
  Json json = envelope("explain");
  json["device"] = explanation.device;
  json["kernel"] = explanation.kernel;
  json["config"] = explanation.config;
  json["reason"] = explanation.reason;
  json["workspace_bytes"] = explanation.workspace_bytes;
  json["measured_us"] = number(explanation.measured_us);
  json["max_error"] = number(explanation.max_error);
  return dump(json);
}

std::string to_json(const RangeStats& stats) {
  Json json = envelope("range_stats");
  json["amax"] = number(stats.amax);
  json["clipped_fraction"] = number(stats.clipped_fraction);
  json["flushed_fraction"] = number(stats.flushed_fraction);
  json["sqnr_db"] = number(stats.sqnr_db);
  json["values"] = stats.values;
  json["nan_values"] = stats.nan_values;
  json["inf_values"] = stats.inf_values;
  return dump(json);
}

std::string to_json(const LadderReport& report) {
  Json json = envelope("ladder");
  json["device"] = report.device;
  json["machine"] = report.machine;
  json["causal"] = report.causal;
  json["seed"] = report.seed;
  json["turns"] = report.turns;
  json["passed"] = report.passed();
  json["rows"] = rows_json(report.rows);
  json["failures"] = report.failures;
  return dump(json);
}

}  // namespace octavo
