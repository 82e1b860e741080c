#include "launcher/binding/deal_nics.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/binding/path_class.h"

namespace dgxrun {
namespace {

struct Card {
  std::vector<const v1::NicPlace*> devices;  // of one PCI function
  const v1::NicPlace& place() const { return *devices.front(); }
};

// The best state of the ports: one that is active is enough.
v1::PortState StateOf(const v1::NicPlace& nic) {
  v1::PortState state = v1::PORT_STATE_DOWN;
  if (nic.ports().empty()) return v1::PORT_STATE_UNSPECIFIED;
  for (const v1::NicPort& port : nic.ports()) {
    if (port.state() == v1::PORT_STATE_ACTIVE) return v1::PORT_STATE_ACTIVE;
    if (port.state() == v1::PORT_STATE_UNSPECIFIED) state = v1::PORT_STATE_UNSPECIFIED;
  }
  return state;
}

uint32_t RateOf(const v1::NicPlace& nic) {
  uint32_t rate = 0;
  for (const v1::NicPort& port : nic.ports()) {
    if (port.state() != v1::PORT_STATE_DOWN) rate = std::max(rate, port.rate_mbps());
  }
  return rate;
}

v1::LinkLayer LinkLayerOf(const v1::NicPlace& nic) {
  return nic.ports().empty() ? v1::LINK_LAYER_UNSPECIFIED : nic.ports(0).link_layer();
}

bool IsNamed(const v1::NicPlace& nic, absl::string_view word) {
  return word.substr(0, word.find(':')) == nic.name();
}

absl::Status CheckNames(const v1::NodeTopology& topology, const std::vector<std::string>& allowed) {
  for (const std::string& word : allowed) {
    const auto& nics = topology.nics();
    if (std::any_of(nics.begin(), nics.end(), [&](const v1::NicPlace& nic) { return IsNamed(nic, word); }))
      continue;
    std::vector<std::string> names;
    std::string meant;
    for (const v1::NicPlace& nic : nics) {
      names.push_back(nic.name());
      if (!nic.netdev().empty() && nic.netdev() == word)
        meant = absl::StrCat(" (", word, " is ", nic.name(), ")");
    }
    return absl::NotFoundError(absl::StrCat("there is no RDMA device \"", word, "\" here", meant,
                                            "; there are ",
                                            names.empty() ? "none" : absl::StrJoin(names, ", ")));
  }
  return absl::OkStatus();
}

// Cards whose ports are of one kind, and how much they carry together.
std::vector<Card> Rails(const v1::NodeTopology& topology, const std::vector<std::string>& allowed,
                        std::vector<std::string>* warnings) {
  const bool chosen = !allowed.empty();
  std::vector<const v1::NicPlace*> usable;
  std::vector<const v1::NicPlace*> unknown;
  for (const v1::NicPlace& nic : topology.nics()) {
    const bool named = std::any_of(allowed.begin(), allowed.end(),
                                   [&](const std::string& word) { return IsNamed(nic, word); });
    if (chosen ? !named : nic.never_a_rail()) continue;
    const v1::PortState state = StateOf(nic);
    if (state == v1::PORT_STATE_ACTIVE) usable.push_back(&nic);
    if (state == v1::PORT_STATE_UNSPECIFIED) unknown.push_back(&nic);
    if (chosen && state == v1::PORT_STATE_DOWN) {
      warnings->push_back(absl::StrCat(nic.name(), " was asked for, and its port is down"));
    }
  }
  if (usable.empty() && !unknown.empty()) {
    usable = unknown;
    warnings->push_back("whether the ports of the network cards are up is not known");
  }
  if (usable.empty() && !topology.nics().empty()) {
    warnings->push_back(absl::StrCat("none of ", topology.nics_size(), " RDMA devices has an active port"));
  }
  // PCI functions of one kind. A function with several devices counts all of them.
  using Kind = std::tuple<uint32_t, int>;  // rate (of the port, else of the PCI link), link layer
  std::map<Kind, std::vector<const v1::NicPlace*>> kinds;
  for (const v1::NicPlace* nic : usable) {
    const uint32_t rate = RateOf(*nic) != 0 ? RateOf(*nic) : nic->pci_mbps();
    kinds[chosen ? Kind{0, 0} : Kind{rate, -LinkLayerOf(*nic)}].push_back(nic);
  }
  std::vector<const v1::NicPlace*> best;
  uint64_t most = 0;
  for (const auto& [kind, nics] : kinds) {
    const uint64_t bandwidth = std::max<uint64_t>(1, std::get<0>(kind)) * nics.size();
    if (best.empty() || bandwidth >= most) best = nics;
    most = std::max(most, bandwidth);
  }
  std::vector<Card> cards;
  for (const v1::NicPlace* nic : best) {
    if (cards.empty() || cards.back().place().pci() != nic->pci()) cards.push_back({});
    cards.back().devices.push_back(nic);
  }
  return cards;
}

// Path class, one package before another.
int TierOf(const v1::GpuPlace& gpu, const v1::NicPlace& nic) {
  return PathBetween(gpu, nic) * 2 + (CrossesPackages(gpu.locality(), nic.locality()) ? 1 : 0);
}

constexpr int kLastTier = v1::PATH_CLASS_SYS * 2 + 1;

// Grows a matching tier by tier; a GPU that has a card keeps one, though perhaps another of its tier or
// nearer ones.
class Dealer {
 public:
  Dealer(const v1::NodeTopology& topology, const std::vector<Card>& cards)
      : tiers_(static_cast<size_t>(topology.gpus_size())), load_(cards.size(), 0), card_of_(tiers_.size()) {
    for (size_t g = 0; g < tiers_.size(); ++g) {
      for (const Card& card : cards)
        tiers_[g].push_back(TierOf(topology.gpus(static_cast<int>(g)), card.place()));
    }
    if (!cards.empty()) slots_ = (tiers_.size() + cards.size() - 1) / cards.size();
  }

  const std::vector<std::optional<size_t>>& Deal() {
    for (int tier = 1; tier <= kLastTier; ++tier) {
      for (size_t g = 0; g < tiers_.size(); ++g) {
        if (card_of_[g].has_value()) continue;
        seen_.assign(load_.size(), 0);
        Place(g, tier);
      }
    }
    return card_of_;
  }

  int tier(size_t gpu, size_t card) const { return tiers_[gpu][card]; }

 private:
  // A free slot, the emptiest card first; else a slot whose holder can go elsewhere within `tier`.
  bool Place(size_t g, int tier) {
    std::optional<size_t> best;
    for (size_t c = 0; c < load_.size(); ++c) {
      if (tiers_[g][c] > tier || load_[c] >= slots_) continue;
      if (!best || std::pair(tiers_[g][c], load_[c]) < std::pair(tiers_[g][*best], load_[*best])) best = c;
    }
    if (best.has_value()) {
      card_of_[g] = best;
      ++load_[*best];
      return true;
    }
    for (size_t c = 0; c < load_.size(); ++c) {
      if (tiers_[g][c] > tier || seen_[c] != 0) continue;
      seen_[c] = 1;
      for (size_t other = 0; other < tiers_.size(); ++other) {
        if (card_of_[other] != c || !Place(other, tier)) continue;
        card_of_[g] = c;  // the other one took its slot elsewhere, this one is taken over: the load stays
        return true;
      }
    }
    return false;
  }

  std::vector<std::vector<int>> tiers_;
  std::vector<size_t> load_;
  std::vector<std::optional<size_t>> card_of_;
  std::vector<char> seen_;
  size_t slots_ = 0;
};

// A card that is nearer than the one dealt, and why it is not used.
std::string NearerUnused(const v1::NodeTopology& topology, const v1::GpuPlace& gpu, v1::PathClass path) {
  for (const v1::NicPlace& nic : topology.nics()) {
    const v1::PathClass nearer = PathBetween(gpu, nic);
    if (StateOf(nic) != v1::PORT_STATE_DOWN || nic.never_a_rail()) continue;
    if (nearer <= v1::PATH_CLASS_PXB && (path == v1::PATH_CLASS_UNSPECIFIED || nearer < path)) {
      return absl::StrCat(nic.name(), " is nearer (", PathName(nearer), "), and its port is down");
    }
  }
  return "";
}

}  // namespace

absl::StatusOr<NicDeal> DealNics(const v1::NodeTopology& topology, const std::vector<std::string>& allowed) {
  if (absl::Status status = CheckNames(topology, allowed); !status.ok()) return status;
  NicDeal deal;
  const std::vector<Card> cards = Rails(topology, allowed, &deal.warnings);
  Dealer dealer(topology, cards);
  std::vector<std::vector<size_t>> hands;
  std::vector<char> used(cards.size(), 0);
  for (const std::optional<size_t>& card : dealer.Deal()) {
    hands.emplace_back();
    if (!card.has_value()) continue;
    hands.back().push_back(*card);
    used[*card] = 1;
  }
  // More cards than GPUs: those behind the same switch.
  for (size_t c = 0; c < cards.size() && !hands.empty(); ++c) {
    if (used[c] != 0) continue;
    size_t nearest = 0;
    for (size_t g = 1; g < hands.size(); ++g) {
      if (std::pair(dealer.tier(g, c), hands[g].size()) <
          std::pair(dealer.tier(nearest, c), hands[nearest].size()))
        nearest = g;
    }
    if (dealer.tier(nearest, c) / 2 <= v1::PATH_CLASS_PXB) hands[nearest].push_back(c);
  }
  for (size_t g = 0; g < hands.size(); ++g) {
    const v1::GpuPlace& gpu = topology.gpus(static_cast<int>(g));
    NicHand hand;
    for (size_t c : hands[g]) {
      for (const v1::NicPlace* nic : cards[c].devices) hand.nics.push_back(nic->name());
    }
    if (!hands[g].empty()) hand.path = PathBetween(gpu, cards[hands[g].front()].place());
    hand.note = NearerUnused(topology, gpu, hand.path);
    deal.hands.push_back(std::move(hand));
  }
  return deal;
}

}  // namespace dgxrun
