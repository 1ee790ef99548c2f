//! Sentinel: names the master to a client that connects, and tells connected clients when the master changes.

use super::backoff::Backoff;
#[cfg(feature = "tls-rustls")]
use super::server::choose_tls;
use super::server::{Connected, Purpose, Server};
use super::subscription::{Push, Subscription};
use super::wire::OnPush;
use crate::types::clock;
use crate::types::error::{disconnected, is_transient, timed_out};
use crate::types::remedy::without_arguments;
use crate::types::timers::{CONNECT_TIMEOUT, PING_INTERVAL};
use redis::sentinel::SentinelClient;
use redis::{PushInfo, PushKind, RedisError, Value};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, timeout};

/// How long the sentinels may take to name a server that calls itself the master.
const LOOKUP_TIMEOUT: Duration = CONNECT_TIMEOUT;

/// How long a sentinel may still name the master before a switch. Sentinels tell each other every two seconds. One that
/// tells of a switch and is then cut off from the others hears of no switch back.
const FORMER_FOR: Duration = Duration::from_secs(30);

pub(crate) struct Sentinel {
    lookups: tokio::sync::Mutex<Lookups>,
    master: Mutex<Master>,
    switched: Notify,
}

/// The sentinels are asked by one at a time. A sentinel that is silent costs each lookup a second, so those who wait together
/// take what the first of them finds.
struct Lookups {
    client: SentinelClient,
    /// The last lookup, and when it began.
    last: Option<(Instant, Result<redis::Client, RedisError>)>,
}

#[derive(Default)]
struct Master {
    /// Empty if the former master is no longer the master.
    address: String,
    /// How often the master has changed.
    term: u64,
    /// The master before the last switch that a sentinel told of, and when. Another one may name it for [`FORMER_FOR`].
    former: Option<(String, Instant)>,
}

impl Sentinel {
    pub(crate) fn new(client: SentinelClient) -> Self {
        // The sentinels are connected to before any server is, and the client does not tell whether by TLS.
        #[cfg(feature = "tls-rustls")]
        choose_tls();
        Self {
            lookups: tokio::sync::Mutex::new(Lookups { client, last: None }),
            master: Mutex::default(),
            switched: Notify::new(),
        }
    }

    /// The master and its term. A connection is outdated when another term has started.
    async fn master(&self) -> Result<(redis::Client, u64), RedisError> {
        let client = self.look_up().await;
        let client = client.map_err(|error| self.unless_first(without_arguments(error)))?;
        let address = client.get_connection_info().addr().to_string();
        let term = self
            .is_master(address, clock::now())
            .map_err(|error| self.unless_first(error))?;
        Ok((client, term))
    }

    async fn look_up(&self) -> Result<redis::Client, RedisError> {
        let begun = clock::now();
        let mut lookups = self.lookups.lock().await;
        // An earlier one may have been told the former master.
        if let Some((since, found)) = &lookups.last
            && *since >= begun
        {
            return found.clone();
        }
        let since = clock::now();
        // The wait for others is no part of this time: each of them would leave the next one less.
        let found = timeout(LOOKUP_TIMEOUT, lookups.client.async_get_client()).await;
        let found = found.unwrap_or_else(|_| Err(timed_out()));
        lookups.last = Some((since, found.clone()));
        found
    }

    /// A connection to the master.
    pub(crate) async fn connect(
        &self,
        label: Option<&str>,
        purpose: Purpose,
        on_push: Option<OnPush>,
    ) -> Result<Connected, RedisError> {
        let (master, term) = self.master().await?;
        Connected::greet(Server::of(&master)?.wire(on_push).await?, term, label, purpose).await
    }

    /// The sentinels have named a master before, so the client's settings are right. An error now belongs to a switch,
    /// whatever its text: callers wait until there is a master again. The first lookup reports its error as it is.
    fn unless_first(&self, error: RedisError) -> RedisError {
        if self.known().term == 0 || is_transient(&error) {
            return error;
        }
        io::Error::new(io::ErrorKind::NotConnected, format!("no master at the moment: {error}")).into()
    }

    fn is_master(&self, address: String, now: Instant) -> Result<u64, RedisError> {
        let mut master = self.known();
        let refused = master.former.as_ref();
        if refused.is_some_and(|(former, since)| *former == address && now < *since + FORMER_FOR) {
            let error = format!("a sentinel still names the former master, {address}");
            return Err(io::Error::new(io::ErrorKind::NotConnected, error).into());
        }
        if master.address != address {
            tracing::info!(master = address, "the sentinels name the master");
            master.address = address;
            master.term += 1;
            self.switched.notify_waiters();
        }
        Ok(master.term)
    }

    /// The client leaves the former master at once, whichever server is the next one. The message may concern another
    /// service, so only an address that this client uses matters.
    fn leave(&self, former: String, next: &str) {
        let mut master = self.known();
        if master.former.as_ref().is_some_and(|(former, _)| former == next) {
            master.former = None;
        }
        if master.address == former {
            master.address.clear();
            master.term += 1;
            master.former = Some((former, clock::now()));
            self.switched.notify_waiters();
        }
    }

    fn known(&self) -> MutexGuard<'_, Master> {
        // No code that can panic runs while it is locked.
        self.master.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until another term has started.
    pub(crate) async fn outdated(&self, term: u64) {
        loop {
            // Created before the check, so that no later change is missed.
            let switched = self.switched.notified();
            if self.known().term != term {
                return;
            }
            switched.await;
        }
    }

    /// Subscribes to the sentinels. Never ends.
    pub(crate) async fn watch(&self) {
        let mut backoff = Backoff::new();
        loop {
            if let Err(error) = self.listen(&mut backoff).await {
                tracing::warn!(%error, "no sentinel to listen to");
                // The redis crate may name a sentinel that is away, again and again. For the subscription it asks over
                // a connection that may lead to another sentinel. For the master it chooses among all.
                self.look().await;
            }
            backoff.pause().await;
        }
    }

    async fn listen(&self, backoff: &mut Backoff) -> Result<(), RedisError> {
        let mut lookups = self.lookups.lock().await;
        let sentinel = timeout(LOOKUP_TIMEOUT, lookups.client.async_get_sentinel_client()).await;
        drop(lookups);
        let sentinel = sentinel
            .unwrap_or_else(|_| Err(timed_out()))
            .map_err(without_arguments)?;
        let (tell, mut told) = mpsc::unbounded_channel();
        let on_push = move |push: PushInfo| match push.kind {
            PushKind::Message => {
                // This fails only when there are no receivers any more.
                let _ = tell.send(push.data);
                Push::Heard
            }
            PushKind::Subscribe => Push::Heard,
            _ => Push::Ends,
        };
        let server = Server::of(&sentinel)?;
        let mut subscription =
            Subscription::open(|on_push| server.connect(None, Purpose::Pushes, Some(on_push)), on_push).await?;
        let subscribed = timeout(CONNECT_TIMEOUT, subscription.wire.subscribe(&["+switch-master"])).await;
        subscribed.unwrap_or_else(|_| Err(timed_out()))?;
        *backoff = Backoff::new();
        // While there was no subscription it may have become the master again.
        self.known().former = None;
        // The master may have changed while there was no subscription.
        self.look().await;
        loop {
            tokio::select! {
                biased;
                // First: a sentinel may tell of a switch just before its connection closes.
                Some(message) = told.recv() => self.hear(&message).await,
                () = subscription.ended() => return Err(disconnected("the sentinel closed the connection")),
                () = sleep(PING_INTERVAL) => {
                    subscription.ping().await?;
                }
            }
        }
    }

    /// A message on the channel is `name old-address old-port new-address new-port`, of any master that the sentinels
    /// watch.
    async fn hear(&self, message: &[Value]) {
        if let Some((former, next)) = switch_in(message) {
            self.leave(former, &next);
        }
        self.look().await;
    }

    async fn look(&self) {
        if let Err(error) = self.master().await {
            tracing::debug!(%error, "the sentinels do not name a master");
        }
    }
}

/// The former master and the next one.
fn switch_in(message: &[Value]) -> Option<(String, String)> {
    let Some(Value::BulkString(text)) = message.get(1) else {
        return None;
    };
    let mut words = std::str::from_utf8(text).ok()?.split(' ').skip(1);
    let mut address = || Some(format!("{}:{}", words.next()?, words.next()?));
    Some((address()?, address()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlock_support::lateness::in_time;
    use fairlock_support::server as servers;
    use futures::future::join_all;
    use redis::sentinel::SentinelServerType;

    fn client(sentinels: Vec<String>) -> SentinelClient {
        SentinelClient::build(sentinels, "mine", None, SentinelServerType::Master).expect("addresses")
    }

    /// A sentinel, and the one master that it watches.
    async fn watched() -> [servers::Server; 2] {
        let master = servers::Server::start().await;
        let file = master.dir().join("sentinel.conf");
        std::fs::write(&file, format!("sentinel monitor mine 127.0.0.1 {} 1\n", master.port())).unwrap();
        let program = [
            "redis-server".to_owned(),
            file.display().to_string(),
            "--sentinel".to_owned(),
        ];
        [servers::Server::start_program(&program, &[]).await, master]
    }

    /// Each lookup takes a second, because the first sentinel is silent. With a wait for others in its time, it took too long.
    #[tokio::test]
    async fn those_who_look_up_the_master_together_all_learn_it() {
        in_time(async || {
            let [sentinel, _master] = watched().await;
            let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
            let silent = format!("redis://{}", silent.local_addr().expect("an address"));
            let sentinel = Sentinel::new(client(vec![silent, sentinel.url()]));
            let named = join_all((0..4).map(|_| sentinel.master())).await;
            for named in named {
                assert_eq!(named.expect("a master").1, 1);
            }
        })
        .await;
    }

    #[tokio::test]
    async fn a_sentinel_is_no_server_for_locks() {
        let [sentinel, _master] = watched().await;
        let client = redis::Client::open(sentinel.url()).expect("an address");
        let server = Server::of(&client).expect("an address");
        let connected = server.connect(None, Purpose::Pushes, None).await.expect("a sentinel");
        let refused = connected.of_one_server().err().expect("refused");
        assert!(refused.to_string().contains("is a sentinel"), "{refused}");
    }

    /// Rustls would panic at the first lookup if the features of the program leave the choice open.
    #[cfg(feature = "tls-rustls")]
    #[test]
    fn the_provider_of_tls_is_chosen_before_a_sentinel_is_asked() {
        drop(Sentinel::new(client(vec!["rediss://127.0.0.1:1".to_owned()])));
        assert!(rustls::crypto::CryptoProvider::get_default().is_some());
    }

    #[test]
    fn a_switch_names_both_masters() {
        let text = |text: &str| Value::BulkString(text.into());
        let message = [text("+switch-master"), text("mine 10.0.0.1 6379 10.0.0.2 6380")];
        let both = ("10.0.0.1:6379".to_owned(), "10.0.0.2:6380".to_owned());
        assert_eq!(switch_in(&message), Some(both));
        assert_eq!(switch_in(&[text("+switch-master"), text("mine 10.0.0.1 6379")]), None);
        assert_eq!(switch_in(&[]), None);
    }

    /// A sentinel that has not learned of the switch yet still names the former master, which still calls itself one.
    #[test]
    fn the_former_master_is_refused_until_a_sentinel_says_that_it_is_the_master_again() {
        let sentinel = Sentinel::new(client(vec!["redis://127.0.0.1:1".to_owned()]));
        let named = |address: &str| sentinel.is_master(address.to_owned(), clock::now()).ok();
        assert_eq!(named("a"), Some(1));
        sentinel.leave("of another service".to_owned(), "a");
        assert_eq!(named("a"), Some(1));
        sentinel.leave("a".to_owned(), "b");
        assert_eq!(named("a"), None);
        assert_eq!(named("b"), Some(3));
        assert_eq!(named("a"), None, "by another sentinel, after a connection broke");
        assert_eq!(named("b"), Some(3));
        sentinel.leave("b".to_owned(), "a");
        assert_eq!((named("b"), named("a")), (None, Some(5)));
        sentinel.leave("a".to_owned(), "b");
        // Before anybody named it.
        sentinel.leave("b".to_owned(), "a");
        assert_eq!(named("a"), Some(7));
    }

    /// The sentinel that told of the switch is cut off from the others, which have gone back.
    #[test]
    fn a_former_master_that_is_still_named_after_a_while_is_the_master() {
        let sentinel = Sentinel::new(client(vec!["redis://127.0.0.1:1".to_owned()]));
        let now = clock::now();
        let named = |address: &str, after| sentinel.is_master(address.to_owned(), now + after).ok();
        assert_eq!(named("a", Duration::ZERO), Some(1));
        sentinel.leave("a".to_owned(), "b");
        assert_eq!(named("b", Duration::ZERO), Some(3));
        assert_eq!(named("a", FORMER_FOR / 2), None);
        // The switch was heard after `now`, and a machine may be slow.
        assert_eq!(named("a", FORMER_FOR + Duration::from_secs(3600)), Some(4));
    }

    /// It may have become the master again while nobody listened.
    #[tokio::test]
    async fn a_new_subscription_to_a_sentinel_forgets_the_former_master() {
        let [server, _master] = watched().await;
        let sentinel = Sentinel::new(client(vec![server.url()]));
        let (master, _) = servers::soon("a master", sentinel.master()).await.expect("a master");
        let address = master.get_connection_info().addr().to_string();
        sentinel.leave(address.clone(), "elsewhere");
        assert!(sentinel.is_master(address.clone(), clock::now()).is_err());
        let forgotten = servers::eventually("it is forgotten", async || sentinel.known().former.is_none());
        tokio::select! {
            () = sentinel.watch() => {}
            () = forgotten => {}
        }
        assert!(sentinel.is_master(address, clock::now()).is_ok());
    }
}
