//! Guides: how to choose, what happens, and why. This module has pages and no code.
//!
//! | page | answers |
//! |---|---|
//! | [`programs`] | how to connect to each kind of server, and where the lock stands in a service: programs that are compiled |
//! | [`life`] | what happens to a request, and in a hand-over: two pictures |
//! | [`glossary`] | the terms, one paragraph each |
//! | [`leases`] | which lease, and what it costs; formulae |
//! | [`failures`] | what happens when processes, networks, servers and people fail: a table, with a test for each cell |
//! | [`cancellation`] | what a dropped future leaves behind, for each method at each await |
//! | [`owners`] | reentry, and how to hand a lock to another process |
//! | [`deadlocks`] | owners that wait for each other: who is told, what is found, what the search costs |
//! | [`election`] | how to elect a leader, and how to watch who leads |
//! | [`several_locks`] | several locks in one guard, without deadlocks |
//! | [`semaphores`] | so many at a time: permits, limits, big requests, a bounded queue, and how far one's turn is |
//! | [`testing`] | how to test a program that uses the lock: in memory, in paused time, or with a Redis |
//! | [`tuning`] | server and client settings, many locks, hot locks |
//! | [`comparison`] | which lock to take, and what each does better |
//! | [`migration`] | from Redisson, redsync and rslock, call by call |
//! | [`faq`] | why not Redlock, why a queue, is it safe without fencing, ... |
//! | [`scale`] | what a lock costs; a million locks on paper; what does not scale |
//! | [`cluster`] | where calls go and grants arrive in a cluster; how long a waiter is deaf |
//! | [`failover`] | how the client finds a new master, what a fail-over costs, replicas, quarantine |
//! | [`quorum`] | a lock on 3, 5, 7 or 9 servers: when, what is promised, Kleppmann's critique, coming from Redlock |
//! | [`observing`] | why records, gauges and events are right, and what they cost |
//! | [`command`] | what the command `fairlock` promises, and what it does not do |
//! | [`json`] | what the command prints for programs: an example of each document |
//! | [`client`] | inside the client: connections, order of calls, silences, ends of runtimes |
//! | [`scripts`] | the scripts: functions, costs, ways not taken |
//!
//! The [`design`](crate::design) says how fairlock is built.
//!
//! The pages are the files in `docs/` of the repository. Links to tests and to the protocol lead into the repository.

// Of two definitions of a link the first one counts. The definitions here lead to the items. The ones at the end of each
// file lead to the sources, for readers in the repository.

#[doc = "[quorum]: crate::guide::quorum"]
#[doc = "[failures]: crate::guide::failures#where-exclusion-is-not-kept"]
#[doc = "[testing]: crate::guide::testing"]
#[doc = "[tuning]: crate::guide::tuning"]
#[cfg_attr(feature = "blocking", doc = "[`blocking`]: crate::blocking")]
#[doc = "[`Error::Shutdown`]: crate::Error::Shutdown"]
#[doc = "[`Error::Server`]: crate::Error::Server"]
#[doc = "[`Status`]: crate::Status"]
#[doc = "[`Place`]: crate::Place"]
#[doc = "[`Leader`]: crate::Leader"]
#[doc = "[`Blocked`]: crate::Blocked"]
#[doc = "[`Event`]: crate::Event\n\n"]
#[doc = include_str!("../docs/programs.md")]
pub mod programs {}

#[doc = "[design]: crate::design"]
#[doc = "[glossary]: crate::guide::glossary\n\n"]
#[doc = include_str!("../docs/life.md")]
pub mod life {}

#[doc = "[quorum]: crate::guide::quorum\n\n"]
#[doc = include_str!("../docs/glossary.md")]
pub mod glossary {}

#[doc = "[semaphores]: crate::guide::semaphores"]
#[doc = "[`ClientBuilder::lease`]: crate::ClientBuilder::lease"]
#[doc = "[`Acquire::lease`]: crate::Acquire::lease"]
#[doc = "[`Acquire::max_hold`]: crate::Acquire::max_hold"]
#[doc = "[`Acquire::hold_at_least`]: crate::Acquire::hold_at_least"]
#[doc = "[`Acquire::lock_delay`]: crate::Acquire::lock_delay"]
#[doc = "[`ClientBuilder::lock_delay`]: crate::ClientBuilder::lock_delay"]
#[doc = "[`Guard::is_held`]: crate::Guard::is_held"]
#[doc = "[`Error::Unavailable`]: crate::Error::Unavailable\n\n"]
#[doc = include_str!("../docs/leases.md")]
pub mod leases {}

#[doc = "[quorum]: crate::guide::quorum"]
#[doc = "[`FencingToken`]: crate::FencingToken"]
#[doc = "[failover]: crate::guide::failover#the-servers-clock"]
#[doc = "[design]: crate::design\n\n"]
#[doc = include_str!("../docs/failures.md")]
pub mod failures {}

#[doc = "[`Acquire::acquire_fair`]: crate::Acquire::acquire_fair"]
#[doc = "[`Acquire::try_acquire_for`]: crate::Acquire::try_acquire_for"]
#[doc = "[`Acquire::try_acquire`]: crate::Acquire::try_acquire"]
#[doc = "[`Acquire::enqueue`]: crate::Acquire::enqueue"]
#[doc = "[`Acquire::enqueue_for`]: crate::Acquire::enqueue_for"]
#[doc = "[`Queued`]: crate::Queued"]
#[doc = "[`Queued::place`]: crate::Queued::place"]
#[doc = "[`Guard`]: crate::Guard"]
#[doc = "[`Guard::release`]: crate::Guard::release"]
#[doc = "[`Guard::while_held`]: crate::Guard::while_held"]
#[doc = "[`Guard::lost`]: crate::Guard::lost"]
#[doc = "[`ReadGuard::upgrade`]: crate::ReadGuard::upgrade"]
#[doc = "[`ReadGuard::try_upgrade`]: crate::ReadGuard::try_upgrade"]
#[doc = "[`WriteGuard::downgrade`]: crate::WriteGuard::downgrade"]
#[doc = "[`Guard::contended`]: crate::Guard::contended"]
#[doc = "[`Election::campaign`]: crate::Election::campaign"]
#[doc = "[`Election::leader`]: crate::Election::leader"]
#[doc = "[`Election::observe`]: crate::Election::observe"]
#[doc = "[`Owner::scope`]: crate::Owner::scope"]
#[doc = "[`AcquireAll::acquire_fair`]: crate::AcquireAll::acquire_fair"]
#[doc = "[`AcquireAll::try_acquire`]: crate::AcquireAll::try_acquire"]
#[doc = "[`AcquireAll::try_acquire_for`]: crate::AcquireAll::try_acquire_for"]
#[doc = "[`AllGuard`]: crate::AllGuard"]
#[doc = "[`AllGuard::release`]: crate::AllGuard::release"]
#[doc = "[`AllGuard::contended`]: crate::AllGuard::contended"]
#[doc = "[`Events::next`]: crate::Events::next"]
#[doc = "[`Leaders::next`]: crate::Leaders::next"]
#[doc = "[`Locks::next`]: crate::Locks::next"]
#[doc = "[`RwLock::status`]: crate::RwLock::status"]
#[doc = "[`RwLock::status_from`]: crate::RwLock::status_from"]
#[doc = "[`RwLock::exists`]: crate::RwLock::exists"]
#[doc = "[`Client::locks`]: crate::Client::locks"]
#[doc = "[`Client::client_info`]: crate::Client::client_info"]
#[doc = "[`RwLock::evict`]: crate::RwLock::evict"]
#[doc = "[`RwLock::events`]: crate::RwLock::events"]
#[doc = "[`Client::events`]: crate::Client::events"]
#[doc = "[`Client::shutdown`]: crate::Client::shutdown"]
#[cfg_attr(feature = "blocking", doc = "[`blocking`]: crate::blocking")]
#[doc = "[`RwLock::with_write`]: crate::RwLock::with_write"]
#[doc = "[`RwLock::with_read`]: crate::RwLock::with_read"]
#[doc = "[`AllGuard::while_held`]: crate::AllGuard::while_held"]
#[doc = "[`AllGuard::lost`]: crate::AllGuard::lost"]
#[doc = "[`Leading::while_leading`]: crate::Leading::while_leading"]
#[doc = "[`Leading::lost`]: crate::Leading::lost"]
#[doc = "[`Leading::contended`]: crate::Leading::contended"]
#[doc = "[`Leading::resign`]: crate::Leading::resign"]
#[doc = "[`Quorum`]: crate::Quorum"]
#[doc = "[`Client`]: crate::Client"]
#[doc = "[`ClientBuilder::connect`]: crate::ClientBuilder::connect\n\n"]
#[doc = include_str!("../docs/cancellation.md")]
pub mod cancellation {}

#[doc = "[deadlocks]: crate::guide::deadlocks"]
#[doc = "[`Owner`]: crate::Owner"]
#[doc = "[`Owner::scope`]: crate::Owner::scope"]
#[doc = "[`Owner::current`]: crate::Owner::current"]
#[doc = "[`Error::UpgradeConflict`]: crate::Error::UpgradeConflict"]
#[doc = "[`Error::OwnerWaiting`]: crate::Error::OwnerWaiting"]
#[doc = "[`Error::InvalidOwner`]: crate::Error::InvalidOwner"]
#[doc = "[`RwLock::status`]: crate::RwLock::status\n\n"]
#[doc = include_str!("../docs/owners.md")]
pub mod owners {}

#[doc = "[`Error::Deadlock`]: crate::Error::Deadlock"]
#[doc = "[`Blocked`]: crate::Blocked"]
#[doc = "[`Owner::scope`]: crate::Owner::scope"]
#[doc = "[`hold_at_least`]: crate::Acquire::hold_at_least"]
#[doc = "[`ClientBuilder::deadlock_timeout`]: crate::ClientBuilder::deadlock_timeout\n\n"]
#[doc = include_str!("../docs/deadlocks.md")]
pub mod deadlocks {}

#[doc = "[failures]: crate::guide::failures"]
#[doc = "[`Error::Unavailable`]: crate::Error::Unavailable"]
#[doc = "[`Leading::term`]: crate::Leading::term"]
#[doc = "[`Election::lease`]: crate::Election::lease"]
#[doc = "[`Election::leader`]: crate::Election::leader"]
#[doc = "[`Election::observe`]: crate::Election::observe\n\n"]
#[doc = include_str!("../docs/election.md")]
pub mod election {}

#[doc = "[`Client::all`]: crate::Client::all"]
#[doc = "[semaphores]: crate::guide::semaphores"]
#[doc = "[`AcquireAll::permits`]: crate::AcquireAll::permits"]
#[doc = "[`Owner::scope`]: crate::Owner::scope"]
#[doc = "[`Error::Lost`]: crate::Error::Lost"]
#[doc = "[`AllGuard::lost`]: crate::AllGuard::lost"]
#[doc = "[`AllGuard::while_held`]: crate::AllGuard::while_held"]
#[doc = "[`AllGuard::is_held`]: crate::AllGuard::is_held"]
#[doc = "[`AllGuard::release`]: crate::AllGuard::release"]
#[doc = "[`AllGuard::fencing_token`]: crate::AllGuard::fencing_token\n\n"]
#[doc = include_str!("../docs/several-locks.md")]
pub mod several_locks {}

#[doc = "[`Semaphore`]: crate::Semaphore"]
#[doc = "[`RwLock::max_readers`]: crate::RwLock::max_readers"]
#[doc = "[`Acquire::max_queue`]: crate::Acquire::max_queue"]
#[doc = "[`Acquire::enqueue`]: crate::Acquire::enqueue"]
#[doc = "[`Acquire::enqueue_for`]: crate::Acquire::enqueue_for"]
#[doc = "[`Queued`]: crate::Queued"]
#[doc = "[`Queued::place`]: crate::Queued::place"]
#[doc = "[`Error::InvalidPermits`]: crate::Error::InvalidPermits"]
#[doc = "[`Error::PolicyMismatch`]: crate::Error::PolicyMismatch"]
#[doc = "[`Error::QueueFull`]: crate::Error::QueueFull"]
#[doc = "[several locks]: crate::guide::several_locks"]
#[doc = "[leases]: crate::guide::leases\n\n"]
#[doc = include_str!("../docs/semaphores.md")]
pub mod semaphores {}

#[doc = "[`ClientBuilder::wait_for_replicas`]: crate::ClientBuilder::wait_for_replicas"]
#[doc = "[`ClientBuilder::wait_for_disks`]: crate::ClientBuilder::wait_for_disks"]
#[doc = "[`ClientBuilder::quarantine`]: crate::ClientBuilder::quarantine"]
#[doc = "[`Acquire::wait_for_replicas`]: crate::Acquire::wait_for_replicas"]
#[doc = "[leases]: crate::guide::leases"]
#[doc = "[`Client`]: crate::Client"]
#[doc = "[`ClientBuilder::label`]: crate::ClientBuilder::label"]
#[doc = "[`Acquire::max_hold`]: crate::Acquire::max_hold"]
#[doc = "[`Acquire::try_acquire_for`]: crate::Acquire::try_acquire_for"]
#[doc = "[`Client::all`]: crate::Client::all\n\n"]
#[doc = include_str!("../docs/tuning.md")]
pub mod tuning {}

#[doc = "[migration]: crate::guide::migration"]
#[doc = "[quorum]: crate::guide::quorum"]
#[doc = "[`ClientBuilder::lock_delay`]: crate::ClientBuilder::lock_delay"]
#[doc = "[`ClientBuilder::wait_for_replicas`]: crate::ClientBuilder::wait_for_replicas\n\n"]
#[doc = include_str!("../docs/comparison.md")]
pub mod comparison {}

#[doc = "[`Acquire::max_hold`]: crate::Acquire::max_hold"]
#[doc = "[`Owner`]: crate::Owner"]
#[doc = "[quorum]: crate::guide::quorum"]
#[doc = "[several locks]: crate::guide::several_locks"]
#[doc = "[semaphores]: crate::guide::semaphores"]
#[doc = "[failover]: crate::guide::failover"]
#[doc = "[owners]: crate::guide::owners\n\n"]
#[doc = include_str!("../docs/migration.md")]
pub mod migration {}

#[doc = "[deadlocks]: crate::guide::deadlocks"]
#[doc = "[quorum]: crate::guide::quorum"]
#[doc = "[failures]: crate::guide::failures"]
#[doc = "[leases]: crate::guide::leases"]
#[doc = "[tuning]: crate::guide::tuning"]
#[doc = "[`FencingToken`]: crate::FencingToken"]
#[doc = "[`Owner`]: crate::Owner"]
#[doc = "[`Policy`]: crate::Policy"]
#[doc = "[`RwLock::status`]: crate::RwLock::status"]
#[doc = "[`RwLock::events`]: crate::RwLock::events\n\n"]
#[doc = include_str!("../docs/faq.md")]
pub mod faq {}

#[doc = "[tuning]: crate::guide::tuning\n\n"]
#[doc = include_str!("../docs/scale.md")]
pub mod scale {}

#[doc = "[client]: crate::guide::client\n\n"]
#[doc = include_str!("../docs/cluster.md")]
pub mod cluster {}

#[doc = "[failures]: crate::guide::failures"]
#[doc = "[semaphores]: crate::guide::semaphores"]
#[doc = "[design]: crate::design\n\n"]
#[doc = include_str!("../docs/failover.md")]
pub mod failover {}

#[doc = "[`observe`]: crate::observe"]
#[doc = "[command]: crate::guide::command"]
#[doc = "[`Client`]: crate::Client"]
#[doc = "[`ClientBuilder::quarantine`]: crate::ClientBuilder::quarantine"]
#[doc = "[`ClientBuilder::wait_for_replicas`]: crate::ClientBuilder::wait_for_replicas"]
#[doc = "[`QuorumGuard::fencing_token`]: crate::QuorumGuard::fencing_token"]
#[doc = "[`acquire_fair`]: crate::QuorumAcquire::acquire_fair"]
#[doc = "[`try_acquire`]: crate::QuorumAcquire::try_acquire"]
#[doc = "[`try_acquire_for`]: crate::QuorumAcquire::try_acquire_for"]
#[doc = "[`Policy`]: crate::Policy\n\n"]
#[doc = include_str!("../docs/quorum.md")]
pub mod quorum {}

#[doc = "[`observe`]: crate::observe"]
#[doc = "[quorum]: crate::guide::quorum"]
#[doc = "[command]: crate::guide::command\n\n"]
#[doc = include_str!("../docs/observing.md")]
pub mod observing {}

#[doc = "[quorum]: crate::guide::quorum"]
#[doc = "[deadlocks]: crate::guide::deadlocks\n\n"]
#[doc = "[JSON]: crate::guide::json\n\n"]
#[doc = include_str!("../docs/command.md")]
pub mod command {}

#[doc = "[the command]: crate::guide::command\n\n"]
#[doc = include_str!("../docs/json.md")]
pub mod json {}

#[doc = "[deadlocks]: crate::guide::deadlocks"]
#[doc = "[design]: crate::design"]
#[doc = "[cluster]: crate::guide::cluster"]
#[doc = "[scripts]: crate::guide::scripts\n\n"]
#[doc = include_str!("../docs/client.md")]
pub mod client {}

#[doc = "[scale]: crate::guide::scale"]
#[doc = "[a hot lock]: crate::guide::tuning#a-hot-lock\n\n"]
#[doc = include_str!("../docs/scripts.md")]
pub mod scripts {}

#[doc = "[`ClientBuilder::prefix`]: crate::ClientBuilder::prefix\n\n"]
#[doc = include_str!("../docs/testing.md")]
pub mod testing {}
