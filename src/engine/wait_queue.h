// Who runs next: by priority, then what was pre-empted, then client by client, each first come first served.
//
// Clients of one priority take turns, so one client's thousand requests delay another's single one by at most
// one start. Every operation is logarithmic or constant in the number of waiting items.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/check.h"

namespace pivot {

// Item: a pointer-like handle, unique in the queue.
template <class Item>
class WaitQueue {
 public:
  // `item` waits behind the other items of this client and priority.
  void push(Item item, std::int32_t priority, const std::string& client) {
    Class& cls = classes_[priority];
    auto [it, added] = cls.clients.try_emplace(client);
    if (it->second.items.empty()) it->second.turn = cls.turns.insert(cls.turns.end(), client);
    it->second.items.push_back(item);
    place(item, {priority, client, std::prev(it->second.items.end()), {}, false});
  }

  // `item` has run before: it waits ahead of all that has not, in order of `rank` (its first start).
  void push_resumed(Item item, std::int32_t priority, std::uint64_t rank) {
    Class& cls = classes_[priority];
    const auto it = cls.resumed.emplace(rank, item).first;
    place(item, {priority, {}, {}, it, true});
  }

  // `item` is the next of its client: a further choice of a request that has started.
  void push_front(Item item, std::int32_t priority, const std::string& client) {
    Class& cls = classes_[priority];
    auto [it, added] = cls.clients.try_emplace(client);
    if (it->second.items.empty()) it->second.turn = cls.turns.insert(cls.turns.begin(), client);
    it->second.items.push_front(item);
    place(item, {priority, client, it->second.items.begin(), {}, false});
  }

  // The next item, or a null Item. `blocked` tells whether a client may not start anything now (its own
  // ceiling); such a client is passed over and keeps its turn.
  Item front(const std::function<bool(const std::string& client)>& blocked) const {
    for (const auto& [priority, cls] : classes_) {
      if (!cls.resumed.empty()) return cls.resumed.begin()->second;
      for (const std::string& client : cls.turns)
        if (!blocked || !blocked(client)) return cls.clients.at(client).items.front();
    }
    return Item{};
  }

  // Takes an item out because it starts: its client's turn is over.
  void start(Item item) { erase(item, /*ends_turn=*/true); }
  // Takes an item out without having run (cancelled). False when it is not there.
  bool remove(Item item) { return places_.contains(item) && (erase(item, /*ends_turn=*/false), true); }

  std::size_t size() const { return places_.size(); }
  bool empty() const { return places_.empty(); }
  bool contains(Item item) const { return places_.contains(item); }
  // In no particular order.
  template <class Visit>
  void for_each(Visit visit) const {
    for (const auto& [item, place] : places_) visit(item);
  }

 private:
  struct Client {
    std::list<Item> items;
    std::list<std::string>::iterator turn;  // valid while items is not empty
  };
  struct Class {
    std::map<std::uint64_t, Item> resumed;
    std::unordered_map<std::string, Client> clients;  // those with items
    std::list<std::string> turns;
  };
  struct Place {
    std::int32_t priority = 0;
    std::string client;
    typename std::list<Item>::iterator item;
    typename std::map<std::uint64_t, Item>::iterator resumed;
    bool is_resumed = false;
  };

  void place(Item item, Place where) {
    const bool added = places_.emplace(item, std::move(where)).second;
    PIVOT_CHECK(added, "an item waits twice");
  }

  void erase(Item item, bool ends_turn) {
    const auto found = places_.find(item);
    PIVOT_CHECK(found != places_.end(), "an item that does not wait");
    const Place where = std::move(found->second);
    places_.erase(found);
    const auto cls = classes_.find(where.priority);
    if (where.is_resumed) {
      cls->second.resumed.erase(where.resumed);
    } else {
      const auto client = cls->second.clients.find(where.client);
      client->second.items.erase(where.item);
      std::list<std::string>& turns = cls->second.turns;
      if (client->second.items.empty()) {
        turns.erase(client->second.turn);
        cls->second.clients.erase(client);
      } else if (ends_turn) {
        turns.splice(turns.end(), turns, client->second.turn);
      }
    }
    if (cls->second.resumed.empty() && cls->second.clients.empty()) classes_.erase(cls);
  }

  std::map<std::int32_t, Class> classes_;  // lowest priority number first
  std::unordered_map<Item, Place> places_;
};

}  // namespace pivot
