//! The events of all locks, from one subscription, for all browsers. The feed keeps the latest ones for browsers that come
//! later.

use super::look::Looks;
use crate::clients::Clients;
use crate::json;
use crate::locks::Eye;
use fairlock::{Client, ClientInfo, Error, Events};
use futures::stream::{self, Stream};
use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::broadcast;
use tokio::time::{sleep, timeout, timeout_at};

/// How many events are kept for browsers that come later, and how many a slow browser may be behind.
const KEPT: usize = 500;
/// How long to wait until the server is asked for events again.
const RETRY: Duration = Duration::from_secs(10);
/// How often a browser hears something, so that it notices when nobody is there any more.
const ALIVE: Duration = Duration::from_secs(15);

/// An event as the browsers get it.
pub(crate) struct Said {
    number: u64,
    /// `None`: some events are missing.
    lock: Option<String>,
    text: String,
}

impl Said {
    /// For one browser. With a number the browser hears it once.
    fn missed(number: Option<u64>, why: &str) -> Self {
        Self {
            number: number.unwrap_or_default(),
            lock: None,
            text: text(number, &missed(why)),
        }
    }
}

pub(crate) struct Feed {
    latest: RefCell<VecDeque<Arc<Said>>>,
    /// The number before the next one: at first that of the microsecond in which this run began, so that a browser's number of
    /// an earlier run is told from one of this.
    last: Cell<u64>,
    sender: broadcast::Sender<Arc<Said>>,
}

impl Feed {
    pub(crate) fn new() -> Self {
        let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            latest: RefCell::default(),
            last: Cell::new(u64::try_from(begun.as_micros()).unwrap_or(0)),
            sender: broadcast::Sender::new(KEPT),
        }
    }

    /// What events there are: of all locks, of single ones (a cluster), or none: see [`Eye::no_events`].
    pub(crate) async fn scope(eye: &Eye<'_>) -> &'static str {
        match eye {
            Eye::One { client, .. } if eye.no_events().is_none() => match client.events().await {
                Err(Error::Unsupported { .. }) => "lock",
                _ => "all",
            },
            _ => "none",
        }
    }

    /// Reads the events of all locks for ever.
    pub(crate) async fn run(&self, looks: &Looks<'_>, client: &Client) -> Infallible {
        loop {
            let why = match client.events().await {
                Ok(events) => {
                    self.read(events, looks, client).await;
                    "the server refused to subscribe again; check which channels the ACL user may use".to_owned()
                }
                Err(error) => error.to_string(),
            };
            self.say(None, &missed(&why));
            sleep(RETRY).await;
        }
    }

    async fn read(&self, mut events: Events, looks: &Looks<'_>, client: &Client) {
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    looks.history.borrow_mut().event(&event, Instant::now());
                    let from = who(looks, client, &event.client_id).await;
                    self.say(Some(&event.lock), &json::event(&event, from.as_ref()));
                }
                Err(error) => self.say(None, &missed(&error.to_string())),
            }
        }
    }

    fn say(&self, lock: Option<&str>, event: &Value) {
        let mut latest = self.latest.borrow_mut();
        let number = self.last.get() + 1;
        self.last.set(number);
        let said = Arc::new(Said {
            number,
            lock: lock.map(str::to_owned),
            text: text(Some(number), event),
        });
        if latest.len() == KEPT {
            latest.pop_front();
        }
        latest.push_back(Arc::clone(&said));
        // Fails if no browser listens.
        let _ = self.sender.send(said);
    }

    /// The events after that number, first those that are kept, for one browser. 0: it has seen none.
    pub(crate) fn listen(
        &self,
        after: u64,
        lock: Option<String>,
    ) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + use<> {
        let receiver = self.sender.subscribe();
        let latest = self.latest.borrow();
        let last = self.last.get();
        let oldest = latest.front().map_or(last + 1, |said| said.number);
        // A number that was never given is that of another run.
        let is_gapless = after == 0 || (oldest..=last + 1).contains(&(after.saturating_add(1)));
        let missed = (!is_gapless).then(|| Arc::new(Said::missed(Some(oldest - 1), "they are no longer kept")));
        let after = if after > last { 0 } else { after };
        let kept = latest.iter().filter(|said| said.number > after).cloned();
        let kept: VecDeque<_> = missed.into_iter().chain(kept).collect();
        let matches = move |said: &Said| match (&said.lock, &lock) {
            (Some(of), Some(wanted)) => of == wanted,
            _ => true,
        };
        stream::unfold(
            (kept, receiver, matches),
            async move |(mut kept, mut receiver, matches)| {
                // Counted from what was sent last, whatever comes for others.
                let alive = tokio::time::Instant::now() + ALIVE;
                loop {
                    let said = match kept.pop_front() {
                        Some(said) => Ok(Ok(said)),
                        None => timeout_at(alive, receiver.recv()).await,
                    };
                    let text = match said {
                        Ok(Ok(said)) if matches(&said) => said.text.clone(),
                        Ok(Ok(_)) => continue,
                        Ok(Err(broadcast::error::RecvError::Lagged(_))) => {
                            Said::missed(None, "they were read too slowly").text
                        }
                        Ok(Err(broadcast::error::RecvError::Closed)) => return None,
                        Err(_) => ":\n\n".to_owned(),
                    };
                    return Some((Ok(Frame::data(text.into())), (kept, receiver, matches)));
                }
            },
        )
    }
}

/// The client of that number. `None`: it has ended, or not yet introduced itself.
async fn who(looks: &Looks<'_>, client: &Client, id: &str) -> Option<ClientInfo> {
    let known = looks.history.borrow().clients.get(id).cloned();
    if known.is_some() {
        return known;
    }
    let found = client.client_info(id).await.ok().flatten()?;
    looks.history.borrow_mut().clients.meet(&found);
    Some(found)
}

/// The events of one lock, from a subscription of its own: in a cluster there is no other one.
pub(crate) async fn of_lock(
    client: &Client,
    lock: &str,
) -> Result<impl Stream<Item = Result<Frame<Bytes>, Infallible>> + use<>, Error> {
    let events = client.rw_lock(lock).events().await?;
    let mut clients = Clients::of(client.clone());
    clients.learn(lock).await;
    let stream = stream::unfold((events, clients), async |(mut events, mut clients)| {
        let text = match timeout(ALIVE, events.next()).await {
            Ok(Some(Ok(event))) => {
                let from = clients.who(&event.client_id).await.ok().flatten();
                text(None, &json::event(&event, from))
            }
            Ok(Some(Err(error))) => text(None, &missed(&error.to_string())),
            Ok(None) => return None,
            Err(_) => ":\n\n".to_owned(),
        };
        Some((Ok(Frame::data(text.into())), (events, clients)))
    });
    Ok(stream)
}

/// As `fairlock watch --json` writes it.
fn missed(why: &str) -> Value {
    json!({"event": "missed", "why": why})
}

/// A message of the kind that browsers read. JSON has no line breaks, so it is one line.
fn text(number: Option<u64>, event: &Value) -> String {
    let number = number.map(|number| format!("id: {number}\n")).unwrap_or_default();
    format!("{number}data: {event}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{FutureExt as _, StreamExt as _};
    use std::pin::pin;

    #[tokio::test(start_paused = true)]
    async fn who_listens_to_a_quiet_lock_hears_something_while_others_are_busy() {
        let feed = Feed::new();
        let mut stream = pin!(feed.listen(0, Some("quiet".to_owned())));
        let busy = async {
            loop {
                sleep(ALIVE / 3).await;
                feed.say(Some("busy"), &json!({}));
            }
        };
        let heard = tokio::select! {
            heard = stream.next() => heard.expect("no end").expect("infallible"),
            () = busy => unreachable!("it never ends"),
            () = sleep(ALIVE * 4) => panic!("it heard nothing"),
        };
        assert_eq!(heard.into_data().expect("data"), ":\n\n");
    }

    /// What a browser hears at once that has seen the events up to that number.
    fn heard_after(feed: &Feed, after: u64) -> Vec<String> {
        let mut stream = pin!(feed.listen(after, None));
        let mut heard = Vec::new();
        while let Some(Some(Ok(frame))) = stream.next().now_or_never() {
            let data = frame.into_data().expect("data");
            heard.push(String::from_utf8(data.to_vec()).expect("text"));
        }
        heard
    }

    #[tokio::test]
    async fn who_comes_back_too_late_or_to_another_run_hears_that_events_are_missing() {
        let feed = Feed::new();
        let before = feed.last.get();
        for _ in 0..KEPT + 10 {
            feed.say(Some("a"), &json!({}));
        }
        let last = feed.last.get();
        let (new, in_time) = (heard_after(&feed, 0), heard_after(&feed, last - 3));
        assert!(new.len() == KEPT && !new[0].contains("missed"), "{}", new[0]);
        assert!(in_time.len() == 3 && !in_time[0].contains("missed"), "{in_time:?}");
        assert_eq!(heard_after(&feed, last), [""; 0]);
        assert_eq!(
            heard_after(&feed, before + 10).len(),
            KEPT,
            "all that came after are kept"
        );
        for (seen, kept) in [
            (before + 9, KEPT),
            (before, KEPT),
            (10, KEPT),
            (last + 1, KEPT),
            (u64::MAX, KEPT),
        ] {
            let heard = heard_after(&feed, seen);
            assert!(heard[0].contains(r#""event":"missed""#), "{seen}: {}", heard[0]);
            assert_eq!(heard.len(), 1 + kept);
            let number = format!("id: {}\n", last - KEPT as u64);
            assert!(heard[0].starts_with(&number), "{}", heard[0]);
        }
        assert_eq!(heard_after(&feed, last - KEPT as u64).len(), KEPT, "it is told once");
    }
}
