//! A client, its server, and what lies between the two are stopped and go on, in all orders.

use crate::observe::{LONG, client, ms, until_free};
use crate::process::{Process, Resource};
use crate::proxy::Proxy;
use crate::server::{Server, soon};
use fairlock::RwLock;
use fairlock_support::random::{self, Rng};
use futures::future::join_all;
use std::collections::VecDeque;
use std::time::Duration;

const WORLDS: usize = 6;
const LEASE: Duration = Duration::from_secs(1);
/// Between two events. The longest is more than a lease.
const PAUSES_MS: [u64; 4] = [0, 30, 300, 1_300];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// SIGSTOP.
    Client,
    /// SIGSTOP.
    Server,
    /// Nothing passes, and no connection ends.
    Proxy,
}

/// All sequences in which each of the three occurs twice: its first time stops it, its second time lets it go on.
fn orders() -> Vec<Vec<Who>> {
    let mut orders: Vec<Vec<Who>> = vec![Vec::new()];
    for _ in 0..6 {
        let longer = orders.iter().flat_map(|order| {
            [Who::Client, Who::Server, Who::Proxy]
                .into_iter()
                .filter(|who| order.iter().filter(|other| *other == who).count() < 2)
                .map(|who| [&order[..], &[who]].concat())
        });
        orders = longer.collect();
    }
    orders
}

/// A server, and a process that uses it through a proxy.
struct World {
    server: Server,
    proxy: Proxy,
    far: Process,
    near: fairlock::Client,
    /// So that each request of the process has a number of its own.
    asked: usize,
}

impl World {
    async fn new() -> Self {
        let server = Server::start().await;
        let proxy = Proxy::to(server.port()).await;
        Self {
            far: Process::start(&proxy.url(), LEASE).await,
            near: client(server.url(), LONG).await,
            server,
            proxy,
            asked: 0,
        }
    }

    fn event(&self, who: Who, stops: bool) {
        match (who, stops) {
            (Who::Client, true) => self.far.freeze(),
            (Who::Client, false) => self.far.thaw(),
            (Who::Server, true) => self.server.freeze(),
            (Who::Server, false) => self.server.thaw(),
            (Who::Proxy, stops) => self.proxy.stall(stops),
        }
    }

    async fn far_enters(&mut self, name: &str) -> u64 {
        // On a busy machine a reply may take longer than a lease, and no request waits longer for one.
        for _ in 0..20 {
            self.asked += 1;
            self.far.ask(self.asked, 'w', name, None);
            match self.far.answer(self.asked).await {
                Ok(token) => return token,
                Err(line) => assert!(line.contains("did not answer"), "{line}"),
            }
        }
        panic!("{name}: no request got a reply in time");
    }

    async fn far_says(&mut self, order: &str) -> bool {
        let id = self.asked;
        self.far.tell(&format!("{order} {id}"));
        let line = self.far.line().await;
        let words: Vec<_> = line.split(' ').collect();
        assert_eq!(words[1], id.to_string(), "{line}");
        words[2] == "true"
    }

    /// The process holds and the near client waits while all is stopped in this order. Says whether the hold lasted.
    async fn survives(&mut self, name: &str, order: &[Who], random: &mut Rng) -> bool {
        let lock: RwLock = self.near.rw_lock(name);
        let far_token = self.far_enters(name).await;
        let mut waiter = tokio::spawn(lock.write().acquire_fair());
        self.server.until_queued(name, 1).await;
        let mut stopped = Vec::new();
        for who in order {
            let stops = !stopped.contains(who);
            stopped.push(*who);
            self.event(*who, stops);
            tokio::time::sleep(ms(PAUSES_MS[random.usize(..PAUSES_MS.len())])).await;
        }
        let mut resource = Resource::new(self.server.redis().await, name);
        if waiter.is_finished() {
            let next = (&mut waiter).await.unwrap().unwrap();
            assert!(next.fencing_token().get() > far_token, "{order:?}");
            assert!(resource.store(next.fencing_token().get()).await, "{order:?}");
            assert!(!self.far_says("held").await, "{order:?}: two are inside");
            assert!(
                !self.far_says("store").await,
                "{order:?}: a late write passed the fence"
            );
            assert!(
                !self.far_says("release").await,
                "{order:?}: a hold that was lost was released"
            );
            assert!(next.is_held(), "{order:?}: a late release ended another's hold");
            next.release().await.unwrap();
            until_free(&self.server, name).await;
            return false;
        }
        let lasted = self.far_says("release").await;
        let next = soon("the waiter's turn", waiter).await.unwrap().unwrap();
        assert!(next.fencing_token().get() > far_token, "{order:?}");
        next.release().await.unwrap();
        until_free(&self.server, name).await;
        lasted
    }
}

#[tokio::test]
async fn client_server_and_proxy_stopped_in_all_orders_never_let_two_in_and_hang_nobody() {
    let mut random = random::seeded();
    let mut shares = vec![VecDeque::new(); WORLDS];
    let orders = orders();
    assert_eq!(orders.len(), 90);
    for (n, order) in orders.into_iter().enumerate() {
        shares[n % WORLDS].push_back((format!("lock-{n}"), order, random.fork()));
    }
    let worlds = shares.into_iter().map(|share| async {
        let mut world = World::new().await;
        let mut lasted = 0;
        for (name, order, mut random) in share {
            lasted += usize::from(world.survives(&name, &order, &mut random).await);
        }
        lasted
    });
    let lasted: usize = join_all(worlds).await.iter().sum();
    println!("90 orders: {lasted} holds lasted, {} were lost", 90 - lasted);
    assert!(
        (1..90).contains(&lasted),
        "pauses of one kind only: {lasted} holds lasted"
    );
}
