//! Reads the lock's keys at all servers: for the view, and for the judge of the order. Writes nothing.
//!
//! A request has its place once a majority of the servers shows it at the same place. From then on nobody who asks later
//! and conflicts may enter before it. A look that finds the request at fewer of these servers ends that.

use super::MAJORITY;
use crate::judge::Sight;
use crate::record::now_ns;
use crate::stage::{Scene, Snapshot};
use crate::view::owner_of;
use fairlock_support::packed::Packed;
use futures::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{Client, Pipeline, RedisResult};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

const LOOK: Duration = Duration::from_millis(20);
/// A server that does not answer within this time is away.
const PATIENCE: Duration = Duration::from_millis(500);

/// The packed state, the queue with the places, the leases, since when the server is known, and its clock.
type Keys = (
    Option<Vec<u8>>,
    Vec<(String, u64)>,
    Vec<String>,
    Option<String>,
    (u64, u64),
);

/// What one server shows.
struct Shown {
    mode: &'static str,
    queue: Vec<(String, u64)>,
    /// Requests that hold.
    holders: Vec<String>,
    /// How long the server's votes do not count yet.
    quarantine: Duration,
}

/// A server, and the connection to it.
struct Watched {
    client: Client,
    connection: Option<MultiplexedConnection>,
}

impl Watched {
    async fn look(&mut self, all: &Pipeline, longest_lease: Duration) -> Option<Shown> {
        let looked = timeout(PATIENCE, async {
            let mut connection = match self.connection.take() {
                Some(connection) => connection,
                None => self.client.get_multiplexed_async_connection().await.ok()?,
            };
            let reply: RedisResult<Keys> = all.query_async(&mut connection).await;
            self.connection = Some(connection);
            reply.map_err(|_| self.connection = None).ok()
        });
        let keys = looked.await.ok().flatten()?;
        Some(Shown::of(keys, longest_lease))
    }
}

impl Shown {
    fn of((state, queue, mut leases, life, (seconds, micros)): Keys, longest_lease: Duration) -> Self {
        let packed = state.and_then(|field| Packed::read(&field)).unwrap_or_default();
        if packed.sole {
            leases = vec![packed.holder.clone()];
        }
        let waits: BTreeSet<_> = queue.iter().map(|(request, _)| request.as_str()).collect();
        // In quarantine a server grants the lock to nobody, whose name has no owner after it.
        leases.retain(|request| !waits.contains(request.as_str()) && owner_of(request).is_some_and(is_of_worker));
        let since = life.as_deref().and_then(|life| life.split_once(' ')?.1.parse().ok());
        let age = (seconds * 1000 + micros / 1000).saturating_sub(since.unwrap_or(u64::MAX));
        Self {
            mode: packed.mode(),
            queue,
            holders: leases,
            quarantine: longest_lease.saturating_sub(Duration::from_millis(age)),
        }
    }
}

fn is_of_worker(owner: &str) -> bool {
    owner.bytes().any(|byte| byte != b'0')
}

/// Where a request has been since `first`.
struct Place {
    at: u64,
    servers: BTreeSet<usize>,
}

/// Looks again and again.
pub(super) fn look(
    urls: &[String],
    prefix: &str,
    lock: &str,
    longest_lease: Duration,
    scene: Arc<Scene>,
) -> RedisResult<impl Future<Output = ()> + use<>> {
    let watched = |url: &String| {
        let (client, connection) = (Client::open(url.as_str())?, None);
        Ok(Watched { client, connection })
    };
    let mut servers: Vec<Watched> = urls.iter().map(watched).collect::<RedisResult<_>>()?;
    let key = format!("{prefix}:{{{lock}}}");
    let mut all = redis::pipe();
    all.atomic().cmd("HGET").arg(&key).arg("s");
    all.cmd("ZRANGE")
        .arg(format!("{key}:q"))
        .arg(0)
        .arg(-1)
        .arg("WITHSCORES");
    all.cmd("ZRANGE").arg(format!("{key}:l")).arg(0).arg(-1);
    all.cmd("GET").arg(format!("{prefix}:life")).cmd("TIME");
    Ok(async move {
        let mut places = HashMap::new();
        loop {
            let begun = now_ns();
            let looks = servers.iter_mut().map(|server| server.look(&all, longest_lease));
            let looked = join_all(looks).await;
            note(&scene, &mut places, &looked, (begun, now_ns()));
            scene.set_snapshot(snapshot(&looked));
            sleep(LOOK).await;
        }
    })
}

/// Notes who has a place, and since when.
fn note(scene: &Scene, places: &mut HashMap<String, Place>, looked: &[Option<Shown>], (begun, ended): (u64, u64)) {
    let mut seen: HashMap<&str, BTreeMap<u64, BTreeSet<usize>>> = HashMap::new();
    for (server, shown) in looked.iter().enumerate() {
        for (request, at) in shown.iter().flat_map(|shown| &shown.queue) {
            let by_place = seen.entry(owner_of(request).unwrap_or_default()).or_default();
            by_place.entry(*at).or_default().insert(server);
        }
    }
    places.retain(|owner, _| seen.contains_key(owner.as_str()));
    let mut sights = scene.sights();
    for (owner, by_place) in seen {
        let Some((at, servers)) = by_place.into_iter().find(|(_, servers)| servers.len() >= MAJORITY) else {
            places.remove(owner);
            continue;
        };
        let former = places.get(owner).filter(|former| former.at == at);
        let lasting = former.map(|former| &former.servers & &servers);
        match lasting.filter(|lasting| lasting.len() >= MAJORITY) {
            Some(servers) => {
                places.insert(owner.to_owned(), Place { at, servers });
                if let Some(sight) = sights.get_mut(owner) {
                    sight.last = begun;
                }
            }
            None => {
                places.insert(owner.to_owned(), Place { at, servers });
                sights.insert(owner.to_owned(), Sight { first: ended, last: 0 });
            }
        }
    }
}

/// The lock as a majority shows it, and a line for each server.
fn snapshot(looked: &[Option<Shown>]) -> Snapshot {
    let mut held: BTreeMap<&str, usize> = BTreeMap::new();
    for request in looked.iter().flatten().flat_map(|shown| &shown.holders) {
        *held.entry(owner_of(request).unwrap_or_default()).or_default() += 1;
    }
    held.retain(|_, servers| *servers >= MAJORITY);
    let inside = |request: &String| held.contains_key(owner_of(request).unwrap_or_default());
    let mode = looked
        .iter()
        .flatten()
        .find(|shown| shown.holders.iter().any(inside))
        .map_or("free", |shown| shown.mode);
    let longest = looked.iter().flatten().max_by_key(|shown| shown.queue.len());
    let queue = longest.into_iter().flat_map(|shown| &shown.queue);
    Snapshot {
        mode: mode.to_owned(),
        holders: held.keys().map(|owner| (*owner).to_owned()).collect(),
        queue: queue.map(|(request, _)| request.clone()).collect(),
        servers: looked.iter().enumerate().map(line).collect(),
    }
}

fn line((at, shown): (usize, &Option<Shown>)) -> String {
    let number = at + 1;
    match shown {
        None => format!("{number}  killed"),
        Some(shown) => {
            let state = match shown.quarantine {
                Duration::ZERO => "votes".to_owned(),
                left => format!("votes in {:.1} s", left.as_secs_f64()),
            };
            let (holds, waiting) = (shown.holders.len(), shown.queue.len());
            format!("{number}  {state:<15} {holds:3} hold  {waiting:3} wait")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look at five servers: where each shows the request of the owner `a`.
    fn shows(places: [Option<u64>; 5]) -> Vec<Option<Shown>> {
        let shown = |place: Option<u64>| Shown {
            mode: "",
            queue: place.map(|place| ("w7:1:a".to_owned(), place)).into_iter().collect(),
            holders: Vec::new(),
            quarantine: Duration::ZERO,
        };
        places.map(|place| Some(shown(place))).into()
    }

    /// From when until when the request certainly had its place, after looks at the times 1, 2, 3 ...
    fn sight(looks: &[[Option<u64>; 5]]) -> Option<(u64, u64)> {
        let (scene, mut places) = (Scene::default(), HashMap::new());
        for (time, look) in (1..).zip(looks) {
            note(&scene, &mut places, &shows(*look), (time, time));
        }
        let sights = scene.sights();
        sights.get("a").map(|sight| (sight.first, sight.last))
    }

    #[test]
    fn a_request_has_its_place_while_the_same_majority_shows_it_there() {
        let (none, all) = ([None; 5], [Some(7); 5]);
        let first_three = [Some(7), Some(7), Some(7), None, None];
        let last_three = [None, None, Some(7), Some(7), Some(7)];
        let apart = [Some(7), Some(7), Some(8), Some(8), Some(9)];
        assert_eq!(sight(&[apart, apart]), None, "there is no place yet");
        assert_eq!(sight(&[apart, all, first_three, none]), Some((2, 3)));
        assert_eq!(
            sight(&[all, first_three, last_three, last_three]),
            Some((3, 4)),
            "another majority"
        );
        assert_eq!(
            sight(&[all, all, [Some(8); 5], [Some(8); 5]]),
            Some((3, 4)),
            "another place"
        );
        assert_eq!(sight(&[all, none, all]), Some((3, 0)), "it was away");
    }
}
