//! A server in a network namespace of its own, whose cable is pulled: no proxy that answers for it, no reset, silence.
//! Needs root and iproute2; skipped aloud without.

use crate::observe::{LONG, ms};
use crate::server::{Server, connected, soon};
use fairlock::{Client, LostReason};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

fn ip(args: &str) -> Result<Output, String> {
    run("ip", args)
}

fn run(program: &str, args: &str) -> Result<Output, String> {
    let output = Command::new(program).args(args.split(' ')).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let error = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} {args}: {}", error.trim()))
}

/// A namespace, and a cable to it.
pub struct Namespace {
    name: String,
    subnet: String,
}

impl Namespace {
    pub fn new() -> Result<Self, String> {
        static NUMBER: AtomicU8 = AtomicU8::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("fl{}-{number}", std::process::id());
        ip(&format!("netns add {name}"))?;
        let [.., high, low] = std::process::id().to_be_bytes();
        let namespace = Self {
            subnet: format!("10.{}.{low}", 100 + (high ^ number) % 100),
            name,
        };
        let Self { name, subnet } = &namespace;
        ip(&format!("link add {name} type veth peer name {name}p netns {name}"))?;
        ip(&format!("addr add {subnet}.1/24 dev {name}"))?;
        ip(&format!("link set {name} up"))?;
        ip(&format!("-n {name} addr add {subnet}.2/24 dev {name}p"))?;
        ip(&format!("-n {name} link set {name}p up"))?;
        ip(&format!("-n {name} link set lo up"))?;
        Ok(namespace)
    }

    pub async fn server(&self) -> Server {
        let binary = std::env::var("FAIRLOCK_TEST_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let program = ["ip", "netns", "exec", &self.name, &binary].map(str::to_owned);
        Server::start_program(
            &program,
            &["--bind", &format!("{}.2", self.subnet), "--protected-mode", "no"],
        )
        .await
    }

    pub fn url(&self, server: &Server) -> String {
        format!("redis://{}.2:{}", self.subnet, server.port())
    }

    /// Every packet is lost, in both directions, and nobody is told. The kernel's shaper does it: no packet fits into it.
    pub fn drop_packets(&self, drop: bool) -> Result<(), String> {
        let Self { name, .. } = self;
        let (what, how) = if drop {
            ("replace", " tbf rate 8bit burst 1 limit 1")
        } else {
            ("del", "")
        };
        run("tc", &format!("qdisc {what} dev {name} root{how}"))?;
        run("tc", &format!("-n {name} qdisc {what} dev {name}p root{how}"))?;
        Ok(())
    }

    fn pull_the_cable(&self) {
        ip(&format!("-n {0} link set {0}p down", self.name)).unwrap();
    }

    fn put_it_back(&self) {
        ip(&format!("-n {0} link set {0}p up", self.name)).unwrap();
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = ip(&format!("netns del {}", self.name)) {
            println!("left behind: {error}");
        }
    }
}

#[tokio::test]
async fn whoever_sits_behind_a_dead_cable_knows_of_its_loss_first_and_is_not_deaf_after() {
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(why) => return println!("skipped: {why}"),
    };
    let server = namespace.server().await;
    let far = connected(Client::builder().lease(ms(3000)), namespace.url(&server)).await;
    // The server's socket needs no cable.
    let socket = format!("redis+unix://{}", server.socket().display());
    let near = connected(Client::builder().lease(LONG), socket).await;

    let guard = far.rw_lock("a").write().acquire_fair().await.unwrap();
    let token = guard.fencing_token();
    let next = tokio::spawn(near.rw_lock("a").write().acquire_fair());
    // Nobody's lease ends while the other waits: its place is kept for minutes.
    let (near_b, far_b) = (near.rw_lock("b"), far.rw_lock("b"));
    let held = near_b.write().acquire_fair().await.unwrap();
    let waiter = tokio::spawn(far_b.write().lease(LONG).acquire_fair());
    while far_b.status().await.unwrap().waiters.is_empty()
        || near.rw_lock("a").status().await.unwrap().waiters.is_empty()
    {
        tokio::task::yield_now().await;
    }

    namespace.pull_the_cable();
    let lost = async {
        let reason = guard.lost().await;
        (reason, Instant::now())
    };
    let entered = async {
        let guard = next.await.unwrap().unwrap();
        (guard, Instant::now())
    };
    let ((reason, lost), (next, entered)) = soon("the loss and the next", futures::future::join(lost, entered)).await;
    assert_eq!(reason, LostReason::LeaseExpired);
    assert!(lost <= entered, "two were inside for {:?}", lost - entered);
    assert!(next.fencing_token() > token);
    // Its grant is told to nobody.
    held.release().await.unwrap();
    assert!(!waiter.is_finished());
    namespace.put_it_back();
    let late = soon("the grant that it missed", waiter).await.unwrap().unwrap();
    late.release().await.unwrap();
}
