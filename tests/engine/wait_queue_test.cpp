#include "engine/wait_queue.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pivot {
namespace {

class Queue {
 public:
  void push(int i, int priority = 0, const std::string& client = "") {
    queue.push(&items[i], priority, client);
  }
  int start() {
    int* const item = queue.front({});
    if (item == nullptr) return -1;
    queue.start(item);
    return static_cast<int>(item - items);
  }
  int items[64] = {};
  WaitQueue<int*> queue;
};

TEST(WaitQueue, FirstComeFirstServedWithinAClient) {
  Queue q;
  for (int i = 0; i < 5; ++i) q.push(i);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(q.start(), i);
  EXPECT_EQ(q.start(), -1);
  EXPECT_TRUE(q.queue.empty());
}

TEST(WaitQueue, ClientsTakeTurns) {
  Queue q;
  for (int i = 0; i < 10; ++i) q.push(i, 0, "greedy");
  q.push(10, 0, "a");
  q.push(11, 0, "b");
  std::vector<int> order;
  for (int i = 0; i < 6; ++i) order.push_back(q.start());
  EXPECT_EQ(order, (std::vector<int>{0, 10, 11, 1, 2, 3}));
}

TEST(WaitQueue, LowerPriorityNumberFirstAndResumedBeforeFresh) {
  Queue q;
  q.push(0, 1);
  q.push(1, 0);
  q.queue.push_resumed(&q.items[2], 0, 9);
  q.queue.push_resumed(&q.items[3], 0, 7);
  q.push(4, -3);
  std::vector<int> order;
  for (int i = 0; i < 5; ++i) order.push_back(q.start());
  EXPECT_EQ(order, (std::vector<int>{4, 3, 2, 1, 0}));
}

TEST(WaitQueue, ABlockedClientIsPassedOverAndKeepsItsTurn) {
  Queue q;
  q.push(0, 0, "full");
  q.push(1, 0, "other");
  const auto blocked = [](const std::string& client) { return client == "full"; };
  EXPECT_EQ(q.queue.front(blocked), &q.items[1]);
  q.queue.start(&q.items[1]);
  EXPECT_EQ(q.queue.front(blocked), nullptr);
  EXPECT_EQ(q.start(), 0);
}

TEST(WaitQueue, FurtherChoicesGoFirst) {
  Queue q;
  q.push(0, 0, "a");
  q.push(1, 0, "b");
  q.queue.push_front(&q.items[3], 0, "a");
  q.queue.push_front(&q.items[2], 0, "a");
  EXPECT_EQ(q.start(), 2);
}

TEST(WaitQueue, RemovedItemsAreGone) {
  Queue q;
  for (int i = 0; i < 4; ++i) q.push(i, 0, i % 2 == 0 ? "a" : "b");
  EXPECT_TRUE(q.queue.remove(&q.items[0]));
  EXPECT_FALSE(q.queue.remove(&q.items[0]));
  EXPECT_EQ(q.queue.size(), 3u);
  EXPECT_EQ(q.start(), 2);
  EXPECT_EQ(q.start(), 1);
  EXPECT_EQ(q.start(), 3);
}

}  // namespace
}  // namespace pivot
