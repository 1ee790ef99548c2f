//! The events of all locks, from one subscription, for all browsers. The feed keeps the latest ones for browsers that come
//! later.

use super::look::Looks;
use crate::clients::Clients;
use crate::json;
use crate::locks::Eye;
use crate::quorum::Target;
use fairlock::{Client, ClientInfo, Error, Events};
use futures::stream::{self, Stream};
use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
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

pub(crate) struct Feed {
    latest: RefCell<VecDeque<Arc<Said>>>,
    sender: broadcast::Sender<Arc<Said>>,
}

impl Feed {
    pub(crate) fn new() -> Self {
        Self {
            latest: RefCell::default(),
            sender: broadcast::Sender::new(KEPT),
        }
    }

    /// What events there are: of all locks, of single ones (a cluster), or none (a quorum).
    pub(crate) async fn scope(looks: &Looks<'_>, target: &Target) -> &'static str {
        match (target, looks.eye()) {
            (Target::Several(_), _) | (_, Eye::Several(_)) => "none",
            (_, Eye::One(_, client)) => match client.events().await {
                Err(Error::Unsupported { .. }) => "lock",
                _ => "all",
            },
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
                    let from = who(looks, client, &event.client).await;
                    self.say(Some(&event.lock), &json::event(&event, from.as_ref()));
                }
                Err(error) => self.say(None, &missed(&error.to_string())),
            }
        }
    }

    fn say(&self, lock: Option<&str>, event: &Value) {
        let mut latest = self.latest.borrow_mut();
        let number = latest.back().map_or(1, |said| said.number + 1);
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

    /// The events after that number, first those that are kept, for one browser.
    pub(crate) fn listen(
        &self,
        after: u64,
        lock: Option<String>,
    ) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + use<> {
        let receiver = self.sender.subscribe();
        let latest = self.latest.borrow();
        // A number that was never given is that of an earlier run.
        let newest = latest.back().map_or(0, |said| said.number);
        let after = if after > newest { 0 } else { after };
        let kept: VecDeque<_> = latest.iter().filter(|said| said.number > after).cloned().collect();
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
                            text(None, &missed("they were read too slowly"))
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
            Ok(Some(Ok(event))) => text(None, &json::event(&event, clients.who(&event.client).await)),
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
    use futures::StreamExt as _;
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
}
