#include "cluster.h"

#include <cstring>

#include "block.h"

namespace emulator {

// The blocks of a cooperative launch run as those of a cluster do, and are none.
static bool alone() { return runner->cluster() == nullptr || runner->launch().cooperative; }

namespace {

// The state of a transaction barrier, in 64 bits of shared memory.
struct TransactionBarrier {
    int32_t bytes;     // announced and not arrived; below zero if they arrive first
    uint16_t pending;  // announcements
    uint8_t parity;    // of the present round
    uint8_t opened;
};
static_assert(sizeof(TransactionBarrier) == 8, "");
constexpr uint8_t OPENED = 0xa5;

// fail never returns, and so must not be called under the cluster's lock.
TransactionBarrier& opened(void* state) {
    auto& barrier = *static_cast<TransactionBarrier*>(state);
    if (barrier.opened != OPENED) fail("a transaction barrier is used that nobody has opened");
    return barrier;
}

void close_round(Cluster& cluster, TransactionBarrier& barrier) {
    if (barrier.pending != 0 || barrier.bytes != 0) return;
    barrier.parity ^= 1;
    barrier.pending = 1;
    cluster.change();
}

Cluster& cluster_of_this() {
    if (alone()) fail("belongs to no cluster");
    return *runner->cluster();
}

}  // namespace

// Until `ready`, which is asked under the cluster's lock.
template <class Ready> void Runner::wait_for_cluster(const char* in, Site site, Ready ready) {
    Cluster& cluster = *cluster_;
    running_->site = site;
    for (;;) {
        {
            const std::lock_guard lock(cluster.mutex);
            if (ready()) return;
            if (parked_.empty()) seen_ = cluster.version;
        }
        parked_.push_back(running_->index);
        wait(in, site);
    }
}

// Nobody in the block can go on before another block has done something.
void Runner::wait_for_news() {
    Cluster& cluster = *cluster_;
    std::unique_lock lock(cluster.mutex);
    if (take_inbox(cluster)) return;
    if (parked_.empty()) seen_ = cluster.version;
    if (cluster.version == seen_ && ++cluster.asleep + cluster.returned == cluster.blocks) {
        lock.unlock();
        fail(deadlock());
    }
    cluster.changed.wait(lock, [&] { return cluster.version != seen_ || cluster.failed; });
    if (cluster.failed) {
        lock.unlock();
        fail("another block of the cluster has failed");
    }
    for (const unsigned thread : parked_) make_runnable(thread);
    parked_.clear();
}

// To be done by that block, which has this mbarrier.
void Runner::send(unsigned to, uint32_t mbarrier, const std::function<void()>& land) {
    const char* wrong = nullptr;
    {
        Cluster& cluster = *cluster_;
        const std::lock_guard lock(cluster.mutex);
        if (cluster.members[to] == nullptr) {
            wrong = "has not begun, or has returned";
        } else if (cluster.barriers.count({to, mbarrier}) == 0) {
            wrong = "has not initialised that, or not fenced since";
        } else {
            cluster.inboxes[to].push_back(land);
            cluster.change();
        }
    }
    if (wrong != nullptr) emulator::fail("reaches for mbarrier %#x of block %u of its cluster, which %s", mbarrier, to, wrong);
}

void Runner::publish(const std::vector<uint32_t>& mbarriers) {
    if (cluster_ == nullptr) return;
    const std::lock_guard lock(cluster_->mutex);
    for (const uint32_t mbarrier : mbarriers) cluster_->barriers.insert({rank_, mbarrier});
}

// Under the cluster's lock. False if there was nothing.
bool Runner::take_inbox(Cluster& cluster) {
    auto& inbox = cluster.inboxes[rank_];
    const bool any = !inbox.empty();
    for (auto& land : inbox) engine_.start(std::move(land));
    inbox.clear();
    return any;
}
void Runner::take_inbox() {
    if (cluster_ == nullptr) return;
    const std::lock_guard lock(cluster_->mutex);
    take_inbox(*cluster_);
}

// The cluster's barrier does not wait for the running thread any more.
void Runner::exit_cluster() {
    if (cluster_ == nullptr) return;
    const std::lock_guard lock(cluster_->mutex);
    ++cluster_->exited;
    if (!running_->arrived || running_->round != cluster_->rounds) cluster_->arrive();
}

void Runner::join(bool joins) {
    if (cluster_ == nullptr) return;
    const std::lock_guard lock(cluster_->mutex);
    cluster_->members[rank_] = joins ? this : nullptr;
    if (joins) return;
    if (!failed_ && !cluster_->inboxes[rank_].empty()) {
        failure = std::string(launch_->kernel.name) + ": a block has returned, and another of its cluster still sends to it";
        failed_ = true;
    }
    ++cluster_->returned;
    cluster_->failed |= failed_;
    cluster_->change();
}

unsigned cluster_rank() { return alone() ? 0 : runner->rank(); }
unsigned cluster_blocks() { return alone() ? 1 : runner->cluster()->blocks; }

void cluster_arrive(Site site) {
    Cluster& cluster = cluster_of_this();
    Thread& thread = runner->running();
    thread.site = site;
    if (thread.arrived) fail("arrives twice at the cluster's barrier");
    const std::lock_guard lock(cluster.mutex);
    thread.arrived = true;
    thread.round = cluster.rounds;
    cluster.arrive();
}

void cluster_wait(Site site) {
    Cluster& cluster = cluster_of_this();
    Thread& thread = runner->running();
    if (!thread.arrived) fail("waits at the cluster's barrier without having arrived");
    thread.arrived = false;
    runner->wait_for_cluster("barrier.cluster.wait", site, [&] { return cluster.rounds != thread.round; });
}

const void* in_block(const void* here, unsigned rank) {
    Cluster& cluster = cluster_of_this();
    if (rank >= cluster.blocks) fail("reads from block %u of a cluster of %u", rank, cluster.blocks);
    shared_address(here);
    const Runner* there = nullptr;
    {
        const std::lock_guard lock(cluster.mutex);
        there = cluster.members[rank];
    }
    if (there == nullptr) fail("reads from block %u of its cluster, which has not begun, or has returned", rank);
    return there->window().begin + (static_cast<const unsigned char*>(here) - runner->window().begin);
}

namespace {
struct Message {
    uint64_t word, tag;
};
Cluster& all_of_the_launch() {
    if (!runner->launch().cooperative) fail("waits for blocks that need not be running: the launch is no cooperative one");
    return *runner->cluster();
}
}  // namespace

void message_send(void* to, uint64_t word, uint64_t tag) {
    check_global(to, sizeof(Message));
    Cluster& blocks = all_of_the_launch();
    const Message message = {word, tag};
    const std::lock_guard lock(blocks.mutex);
    memcpy(to, &message, sizeof(message));
    blocks.change();
}

uint64_t message_wait(const void* at, uint64_t tag, Site site) {
    check_global(at, sizeof(Message));
    all_of_the_launch();
    Message seen = {};
    runner->wait_for_cluster("a message", site, [&] {
        memcpy(&seen, at, sizeof(seen));
        return seen.tag == tag;
    });
    return seen.word;
}

void transaction_barrier_open(uint64_t* state) {
    const TransactionBarrier barrier = {0, 1, 0, OPENED};
    memcpy(state, &barrier, sizeof(barrier));
}

void transaction_barrier_expect(uint64_t* state, uint32_t bytes) {
    Cluster& cluster = cluster_of_this();
    TransactionBarrier& barrier = opened(state);
    if (barrier.pending == 0) fail("announces the bytes of a round twice");
    const std::lock_guard lock(cluster.mutex);
    barrier.bytes += static_cast<int32_t>(bytes);
    --barrier.pending;
    close_round(cluster, barrier);
}

void transaction_barrier_send(uint64_t* state, void* buffer, unsigned rank, const void* data, unsigned bytes) {
    Cluster& cluster = cluster_of_this();
    if (rank >= cluster.blocks) fail("sends to block %u of a cluster of %u", rank, cluster.blocks);
    // Both lie in every block where they lie in this one.
    shared_pointer(shared_address(buffer), bytes, bytes);
    const char* wrong = nullptr;
    {
        const std::lock_guard lock(cluster.mutex);
        const Runner* const there = cluster.members[rank];
        const auto at = [&](void* here) {
            return there->window().begin + (static_cast<unsigned char*>(here) - runner->window().begin);
        };
        if (there == nullptr) {
            wrong = "not begun, or has returned";
        } else if (auto& barrier = *reinterpret_cast<TransactionBarrier*>(at(state)); barrier.opened != OPENED) {
            wrong = "not opened its transaction barrier";
        } else {
            memcpy(at(buffer), data, bytes);
            barrier.bytes -= static_cast<int32_t>(bytes);
            close_round(cluster, barrier);
        }
    }
    if (wrong != nullptr) fail("sends to block %u of its cluster, which has %s", rank, wrong);
}

void transaction_barrier_wait(uint64_t* state, uint32_t parity, Site site) {
    cluster_of_this();
    const TransactionBarrier& barrier = opened(state);
    runner->wait_for_cluster("mbarrier.try_wait", site, [&] { return barrier.parity != parity; });
}

}  // namespace emulator
