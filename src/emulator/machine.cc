// SPDX-License-Identifier: Apache-2.0
#include "emulator/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace octavo::emulator {
namespace {

// A launch runs entirely on one CPU thread.
thread_local Thread* current = nullptr;

}  // namespace

Thread& self() { return *current; }

std::string describe(const Thread& t) {
  std::string text = fmt::format("thread {} (warp {}, lane {}) of CTA {}", t.index, t.warp->index,
                                 t.lane, t.cta->block);
  if (t.role[0] != '\0') text += fmt::format(", role {}", t.role);
  return text;
}

Machine::Machine(const Launch& launch, const GlobalMemory& global, const Settings& settings)
    : launch_(launch),
      global_(global),
      settings_(settings),
      schedule_(settings.seed),
      accesses_(*this) {
  measures_.on = settings.measure;
  // Registers are allocated to groups of four warps, eight at a time.
  constexpr int kRegisterFile = 65536;
  const int warps = (launch_.threads / kWarpSize + 3) / 4 * 4;
  if (launch_.registers == 0)
    launch_.registers = std::min(kRegisterFile / (warps * kWarpSize) / 8 * 8, 255);
}

Machine::~Machine() = default;

Actor Cluster::new_actor(Acts acts, const Thread* thread, std::uint32_t address) {
  actors.push_back({acts, thread, address});
  return static_cast<Actor>(actors.size() - 1);
}

namespace {

bool covered(const Fences& fences, const Access& access, const Knowledge& known) {
  if (fences.actor == kNobody) return false;
  if (known.self() == access.actor) return fences.until >= access.number;
  return known.covers(fences.actor, access.number);
}

}  // namespace

bool Cluster::fenced(const Access& written, const Knowledge& known) const {
  const ActorInfo& writer = actors[written.actor];
  return writer.acts != Acts::thread || covered(writer.thread->proxy_fences, written, known);
}

bool Cluster::init_fenced(const Access& init, const Knowledge& known) const {
  const Thread& thread = *actors[init.actor].thread;
  return covered(thread.init_fences, init, known) || covered(thread.proxy_fences, init, known);
}

bool Cluster::ended() const {
  return std::all_of(ctas.begin(), ctas.end(), [](const auto& c) { return c->running == 0; });
}

bool Machine::mutated(Place place, bool useful) {
  std::size_t& at = last_calls_[static_cast<std::size_t>(place.site.line) % last_calls_.size()];
  if (at >= calls_.size() || !(calls_[at].place == place)) {
    const auto known = std::find_if(calls_.begin(), calls_.end(),
                                    [&](const CallUse& use) { return use.place == place; });
    at = static_cast<std::size_t>(known - calls_.begin());
    if (known == calls_.end()) calls_.push_back({place});
  }
  CallUse& call = calls_[at];
  ++call.times;
  if (current->spare != nullptr) call.spare = std::exchange(current->spare, nullptr);
  call.useful += useful ? 1 : 0;
  return settings_.mutant && *settings_.mutant == place;
}

void Machine::find(Hazard hazard, Place place, std::string text, std::string address, Place other,
                   const Thread* who) {
  if (who == nullptr) who = current;
  report_.add({.hazard = hazard,
               .kernel = launch_.kernel,
               .place = place,
               .other = other,
               .who = who != nullptr ? describe(*who) : "",
               .address = std::move(address),
               .text = std::move(text)});
  if (!report_.full() && !settings_.mutant) return;
  stopped_ = true;
  // A thread that has read a wrong value may loop forever, so it stops here.
  if (current != nullptr && current->fiber.running()) leave_for_good(place);
}

void Machine::stop(Hazard hazard, Place place, std::string text, std::string address) {
  find(hazard, place, std::move(text), std::move(address));
  stopped_ = true;
  leave_for_good(place);
}

void Machine::leave_for_good(Place place) {
  for (;;) block({Wait::For::nothing, place, 0});  // until the machine abandons the fiber
}

void Machine::block(const Wait& wait) {
  Thread& t = *current;
  t.wait = wait;
  t.warp->runnable &= ~(1u << t.lane);
  t.fiber.leave();
}

void Machine::wake(Thread& thread) {
  thread.wait = {};
  thread.warp->runnable |= 1u << thread.lane;
}

void Machine::note_change(const void* data, std::size_t bytes) {
  for (Thread* thread : flags_.take_waiting(data, bytes)) {
    idle_rounds_ = 0;
    wake(*thread);
  }
}

void Machine::build_cta(Cluster& cluster, std::int64_t block, int rank) {
  auto cta = std::make_unique<Cta>(*this, launch_.smem_bytes);
  cta->cluster = &cluster;
  cta->block = static_cast<int>(block);
  cta->rank = rank;
  cta->running = launch_.threads;
  cta->warps.resize(static_cast<std::size_t>(launch_.threads / kWarpSize));
  cta->warpgroups.resize(cta->warps.size() / 4 + 1);
  cta->started = cluster.new_actor(Acts::cta, nullptr);
  for (int i = 0; i < launch_.threads; ++i) {
    auto thread = std::make_unique<Thread>();
    Thread& t = *thread;
    t.machine = this;
    t.cta = cta.get();
    t.index = i;
    t.lane = i % kWarpSize;
    t.warp = &cta->warps[static_cast<std::size_t>(i / kWarpSize)];
    t.warp->cta = cta.get();
    t.warp->index = i / kWarpSize;
    t.warp->measured_as =
        (cluster.slot * launch_.cluster + rank) * (launch_.threads / kWarpSize) + t.warp->index;
    t.warp->registers = launch_.registers;
    t.warp->lanes[static_cast<std::size_t>(t.lane)] = &t;
    t.warp->runnable |= 1u << t.lane;
    t.known = Knowledge(cluster.new_actor(Acts::thread, &t));
    t.fiber.start([this] { launch_.entry(); });
    cta->threads.push_back(std::move(thread));
  }
  cluster.ctas.push_back(std::move(cta));
}

namespace {

// Each thread's stack is a mapping with a guard page, and Linux allows some 65,000 of them.
constexpr int kMostThreads = 16384;
// The clusters that run at the same time under a seed.
constexpr std::size_t kSeededClusters = 3;
// How often threads that wait for flags poll again while nothing else can run. A kernel may do
// something between two polls, but not for ever.
constexpr int kMostIdleRounds = 1000;

}  // namespace

bool Machine::start_cluster() {
  const auto threads = static_cast<std::size_t>(launch_.threads * launch_.cluster);
  if (next_block_ >= launch_.blocks) return false;
  if (!clusters_.empty() && (clusters_.size() + 1) * threads > kMostThreads) return false;
  auto cluster = std::make_unique<Cluster>();
  cluster->number = static_cast<std::uint32_t>(next_block_ / launch_.cluster);
  const auto taken = [&] {
    return std::any_of(clusters_.begin(), clusters_.end(),
                       [&](const auto& other) { return other->slot == cluster->slot; });
  };
  while (taken()) ++cluster->slot;
  cluster->earlier_grids = cluster->new_actor(Acts::grid, nullptr);
  for (int rank = 0; rank < launch_.cluster; ++rank) build_cta(*cluster, next_block_ + rank, rank);
  next_block_ += launch_.cluster;
  clusters_.push_back(std::move(cluster));
  idle_rounds_ = 0;
  return true;
}

void Machine::end_clusters() {
  for (auto at = clusters_.begin(); at != clusters_.end();) {
    if (!(*at)->ended()) {
      ++at;
      continue;
    }
    late_stores_.splice(late_stores_.end(), (*at)->async.take_stores());
    at = clusters_.erase(at);
  }
  const std::size_t most = schedule_.seeded() ? kSeededClusters : 1;
  while (clusters_.size() < most && start_cluster()) {
  }
}

void Machine::abandon_fibers() {
  for (const auto& cluster : clusters_)
    for (const auto& cta : cluster->ctas)
      for (const auto& thread : cta->threads)
        if (!thread->done) {
          current = thread.get();
          thread->fiber.abandon();
        }
  current = nullptr;
  clusters_.clear();
}

void Machine::run() {
  for (end_clusters(); !stopped_ && !clusters_.empty(); end_clusters()) {
    const bool ran = schedule_.seeded() ? run_by_seed() : run_in_turn();
    if (ran || stopped_ || resolve_stall()) continue;
    report_deadlock();
    stopped_ = true;
  }
  abandon_fibers();
  for (const auto& store : late_stores_) store.perform();
  late_stores_.clear();
}

// Called when no thread can run. Completes a copy in flight, starts the next cluster, lets a store
// reach global memory, or lets threads poll their flags again. Returns false if none of these is
// left.
bool Machine::resolve_stall() {
  for (const auto& cluster : clusters_)
    if (cluster->async.complete_oldest_copy()) return true;
  if (start_cluster()) return true;
  for (const auto& cluster : clusters_)
    if (cluster->async.complete_oldest()) return true;
  const std::vector<Thread*> waiting = flags_.take_all_waiting();
  if (waiting.empty() || ++idle_rounds_ > kMostIdleRounds) return false;
  for (Thread* thread : waiting) wake(*thread);
  return true;
}

std::vector<const Cta*> Machine::running_ctas() const {
  std::vector<const Cta*> ctas;
  for (const auto& cluster : clusters_)
    for (const auto& cta : cluster->ctas) ctas.push_back(cta.get());
  return ctas;
}

void Machine::run_lane(Warp& warp, int lane) {
  Thread& t = *warp.lanes[static_cast<std::size_t>(lane)];
  current = &t;
  t.fiber.resume();
  current = nullptr;
  if (!t.fiber.ended()) return;
  current = &t;
  end_thread(t);
  current = nullptr;
}

void Machine::end_thread(Thread& t) {
  Warp& warp = *t.warp;
  t.done = true;
  warp.runnable &= ~(1u << t.lane);
  warp.done |= 1u << t.lane;
  --t.cta->running;
  if (t.bulk.used > t.bulk.read)
    find(Hazard::unfinished_store, t.bulk.last,
         "the thread ends before cp.async.bulk.wait_group(.read) says that its stores have read "
         "shared memory");
  if (warp.done == ~0u) {
    measures_.flush(warp.measured_as);
    end_wgmma(warp);
  }
  if (launch_.cluster > 1) open_cluster_barrier(t.cluster());
  if (t.cta->running > 0) return;
  end_warpgroups(*t.cta);
  // For every access to this CTA from another, a thread that ran until the end must know that it is
  // complete.
  for (const auto& [accessor, access] : t.cta->remote) {
    const bool known = std::any_of(
        t.cta->threads.begin(), t.cta->threads.end(),
        [&](const auto& thread) { return thread->known.covers(access.actor, access.number); });
    if (!known)
      find(Hazard::peer_gone, access.place,
           fmt::format(
               "CTA {} may end before this access to its shared memory: nothing it waits for "
               "comes after it",
               t.cta->block));
  }
}

bool Machine::run_in_turn() {
  bool ran = false;
  for (const auto& cluster : clusters_)
    for (const auto& cta : cluster->ctas)
      for (Warp& warp : cta->warps) {
        if (warp.runnable == 0) continue;
        ran = true;
        while (warp.runnable != 0 && !stopped_) run_lane(warp, std::countr_zero(warp.runnable));
        if (!stopped_) check_convergence(warp);
      }
  return ran;
}

bool Machine::run_by_seed() {
  std::vector<Warp*> ready;
  for (const auto& cluster : clusters_)
    for (const auto& cta : cluster->ctas)
      for (Warp& warp : cta->warps)
        if (warp.runnable != 0) ready.push_back(&warp);
  if (ready.empty()) return false;
  Warp& warp = *ready[schedule_.below(static_cast<std::uint32_t>(ready.size()))];
  // A warp keeps its turn for a while: switching after every instruction finds no more hazards.
  for (std::uint32_t turns = 1 + schedule_.below(256); turns > 0 && warp.runnable != 0; --turns) {
    std::uint32_t lanes = warp.runnable;
    for (std::uint32_t skip = schedule_.below(static_cast<std::uint32_t>(std::popcount(lanes)));
         skip > 0; --skip)
      lanes &= lanes - 1;
    run_lane(warp, std::countr_zero(lanes));
    if (stopped_) return true;
    if (schedule_.arrives()) {
      Cta& cta = *warp.cta;
      Thread& t = *cta.threads[schedule_.below(static_cast<std::uint32_t>(cta.threads.size()))];
      if (t.copies.in_flight() > 0)
        t.copies.complete_one(schedule_.below(t.copies.in_flight()), cta.shared);
      cta.cluster->async.complete_any(schedule_);
      compute_oldest_wgmma(*t.warp);
    }
  }
  if (warp.runnable == 0) check_convergence(warp);
  return true;
}

}  // namespace octavo::emulator
