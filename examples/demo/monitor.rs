//! The order in which the server executed the calls of acquire, read from `MONITOR`.

use crate::judge::Arrival;
use futures::StreamExt;
use redis::aio::{Monitor, MultiplexedConnection};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Puts a word into the monitored stream, and looks for it there.
const ATTEMPT: Duration = Duration::from_secs(2);

/// What was seen so far.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    count: u64,
    /// By owner; every request of this program has its own. With the name under which it came first.
    seen: HashMap<String, (Arrival, String)>,
    last_echo: String,
}

impl Arrivals {
    fn take(&mut self, line: &str) {
        // What scripts call in turn is no business of this judge.
        if line.contains(" lua] ") {
            return;
        }
        let words = words(line);
        match words.first().map(String::as_str) {
            // The name of a function tells what it does.
            Some("FCALL") if words.get(1).is_some_and(|name| name.ends_with("_acquire")) => {}
            Some("EVALSHA" | "EVAL") => {}
            Some("ECHO") => {
                self.last_echo = words.last().cloned().unwrap_or_default();
                return;
            }
            _ => return,
        }
        // FCALL function 3 key key key options request lease, and perhaps a ticket. Without functions a renewal looks the
        // same; it takes no place, because its name was seen before.
        let (Some(options), Some(request), Some(lease)) = (words.get(6), words.get(7), words.get(8)) else {
            return;
        };
        if options.contains('t') || lease.parse::<u64>().is_err() {
            return;
        }
        let Some(owner) = request.splitn(3, ':').nth(2) else {
            return;
        };
        self.count += 1;
        let place = self.count;
        let first = (Arrival { place, again: false }, request.clone());
        let (arrival, name) = self.seen.entry(owner.to_owned()).or_insert(first);
        // EVAL follows a call whose script or function the server did not have: that one took no place.
        arrival.again |= name != request || words[0] == "EVAL";
    }

    fn by_owner(&self) -> HashMap<String, Arrival> {
        let copy = |(owner, (arrival, _)): (&String, &(Arrival, String))| (owner.clone(), *arrival);
        self.seen.iter().map(copy).collect()
    }
}

/// The quoted words of a line of MONITOR. None of those looked at here has an escaped character.
fn words(line: &str) -> Vec<String> {
    let Some((_, rest)) = line.split_once("] \"") else {
        return Vec::new();
    };
    rest.trim_end_matches('"').split("\" \"").map(str::to_owned).collect()
}

/// Follows the server from now on. `None`: it does not let us.
pub(crate) async fn follow(server: &redis::Client, own: &mut MultiplexedConnection) -> Option<Arc<Mutex<Arrivals>>> {
    let monitor = timeout(ATTEMPT, server.get_async_monitor()).await.ok()?.ok()?;
    let arrivals = Arc::new(Mutex::new(Arrivals::default()));
    tokio::spawn(read(monitor, Arc::clone(&arrivals)));
    // A refusal looks like an empty stream.
    caught_up(&arrivals, own).await.then_some(arrivals)
}

async fn read(monitor: Monitor, arrivals: Arc<Mutex<Arrivals>>) {
    let mut lines = monitor.into_on_message::<String>();
    while let Some(line) = lines.next().await {
        lock(&arrivals).take(&line);
    }
}

/// Waits until everything that the server executed so far has been read. `false`: the stream has broken off.
pub(crate) async fn caught_up(arrivals: &Mutex<Arrivals>, own: &mut MultiplexedConnection) -> bool {
    let word = uuid::Uuid::new_v4().simple().to_string();
    let sent = redis::cmd("ECHO").arg(&word).exec_async(own).await;
    let begun = Instant::now();
    while sent.is_ok() && begun.elapsed() < ATTEMPT {
        let heard = lock(arrivals).last_echo == word;
        if heard {
            return true;
        }
        sleep(Duration::from_millis(5)).await;
    }
    false
}

/// The order so far.
pub(crate) fn by_owner(arrivals: &Mutex<Arrivals>) -> HashMap<String, Arrival> {
    lock(arrivals).by_owner()
}

fn lock(arrivals: &Mutex<Arrivals>) -> std::sync::MutexGuard<'_, Arrivals> {
    arrivals.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACQUIRE: &str = r#""FCALL" "fairlock_5f_acquire""#;

    fn call(what: &str, request: &str, options: &str) -> String {
        format!(
            r#"1763649511.123456 [0 127.0.0.1:6379] {what} "3" "p:{{a}}" "p:{{a}}:q" "p:{{a}}:l" "{options}" "{request}" "2000""#
        )
    }

    #[test]
    fn acquire_calls_take_places_in_the_order_of_their_lines() {
        let mut arrivals = Arrivals::default();
        arrivals.take(&call(ACQUIRE, "w0a:1:bob", ""));
        arrivals.take(&call(r#""EVALSHA" "5f3c""#, "r0b:1:eve", ""));
        arrivals.take(&call(ACQUIRE, "w0a:1:bob", ""));
        let by_owner = arrivals.by_owner();
        assert!(by_owner["bob"].place < by_owner["eve"].place);
        assert!(!by_owner["bob"].again, "sent twice is asked once");
    }

    #[test]
    fn a_second_name_of_one_owner_is_noticed() {
        let mut arrivals = Arrivals::default();
        arrivals.take(&call(ACQUIRE, "w0a:1:bob", ""));
        arrivals.take(&call(ACQUIRE, "w0a:7:bob", ""));
        assert!(arrivals.by_owner()["bob"].again);
    }

    #[test]
    fn other_lines_take_no_place() {
        let mut arrivals = Arrivals::default();
        let renew = &call(r#""FCALL" "fairlock_5f_renew""#, "w0a:1:bob", "");
        let only_now = &call(ACQUIRE, "w0a:1:bob", "t");
        let inner = r#"1763649511.1 [0 lua] "ZADD" "a" "1" "w0a:1:bob""#;
        for line in [renew, only_now, inner, "OK", "", r#"1.1 [0 unix:/s] "PING""#] {
            arrivals.take(line);
        }
        assert!(arrivals.by_owner().is_empty());
        arrivals.take(r#"1.1 [0 unix:/s] "ECHO" "word""#);
        assert_eq!(arrivals.last_echo, "word");
    }
}
