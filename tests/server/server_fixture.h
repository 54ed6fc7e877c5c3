// A real server on the embedded model, in this process, on a free port of the loopback interface.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "http_client.h"
#include "server/instance.h"

namespace pivot::test {

class TestServer {
 public:
  using Change = std::function<void(server::InstanceOptions&)>;
  explicit TestServer(const Change& change = {});
  ~TestServer();

  HttpClient client() const;
  server::Instance& instance() { return *instance_; }
  // Waits until the engine runs nothing; false after ten seconds.
  bool is_idle() const;
  // The sum of a metric's series whose text contains `labels`.
  double metric(const std::string& name, const std::string& labels = "") const;

 private:
  std::unique_ptr<server::Instance> instance_;
};

}  // namespace pivot::test
