//! What the page asks for. The documents are those that `ls`, `show`, `blockers` and `evict` print with `--json`, or lists
//! of them.

use super::blame;
use super::feed::{self, Feed};
use super::history::{KEPT, Wait};
use super::http::{self, Answer, Door};
use super::look::Looks;
use crate::locks::{Eye, Findings, Found, Unread};
use crate::outcome::{Failure, Status};
use crate::quorum::Target;
use crate::{blockers, evict, json, ls, show};
use fairlock::{ClientInfo, Owner};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, HeaderValue};
use hyper::{HeaderMap, Method, Request, StatusCode};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;
use tokio::time::timeout;

/// How many lines a list has, unless the browser asks for fewer or more, and at most.
const LINES: usize = 50;
const MOST_LINES: usize = 200;
/// The last line where a list may begin. The numbers of scripts are doubles, so a greater rank would be refused.
const LAST_FIRST: usize = u32::MAX as usize;
/// How many complaints a list has.
const COMPLAINTS: usize = 5;
/// How many requests a lock of an answer about blockers lists.
const BLOCKERS: usize = 100;
/// How large the body of a request may be, and how long it may take.
const BODY_BYTES: usize = 16 * 1024;
const BODY: Duration = Duration::from_secs(10);

/// What is served.
pub(crate) struct Site<'a> {
    pub(crate) door: Door,
    pub(crate) target: &'a Target,
    pub(crate) looks: Looks<'a>,
    pub(crate) feed: Feed,
    /// `all`, `lock` or `none`: see [`Feed::scope`].
    pub(crate) events: &'static str,
    pub(crate) interval: Duration,
}

/// The files of the page.
const FILES: [(&str, &str, &str); 4] = [
    ("/", "text/html; charset=utf-8", include_str!("page/page.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    (
        "/page.js",
        "text/javascript; charset=utf-8",
        include_str!("page/page.js"),
    ),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];

/// Why a request has no document.
enum Refusal {
    Failure(Failure),
    Answer(Box<Answer>),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<fairlock::Error> for Refusal {
    fn from(error: fairlock::Error) -> Self {
        Self::Failure(error.into())
    }
}

impl From<Box<Answer>> for Refusal {
    fn from(answer: Box<Answer>) -> Self {
        Self::Answer(answer)
    }
}

impl Site<'_> {
    pub(crate) async fn respond(&self, request: Request<Incoming>, local: SocketAddr, peer: SocketAddr) -> Answer {
        let (head, body) = request.into_parts();
        let answered = async {
            self.door.must_know(&head.uri, &head.headers, local)?;
            let path = head.uri.path();
            if path == "/api/evict" {
                must_be(&head.method, &[Method::POST], "POST")?;
                self.door.must_have_token(&head.headers)?;
                return self.evict(body, peer).await;
            }
            must_be(&head.method, &[Method::GET, Method::HEAD], "GET, HEAD")?;
            if let Some((_, kind, text)) = FILES.iter().find(|(name, ..)| *name == path) {
                return Ok(http::whole(StatusCode::OK, kind, *text));
            }
            let query = Query::of(head.uri.query().unwrap_or_default());
            if path == "/api/events" {
                return self.events(&query, &head.headers).await;
            }
            let document = match path {
                "/api/site" => self.site(),
                "/api/locks" => self.locks(&query).await?,
                "/api/lock" => self.lock(&query).await?,
                "/api/waits" => self.waits().await?,
                "/api/blockers" => self.blockers(&query).await?,
                "/api/history" => self.history(&query).await?,
                _ => return Ok(http::text_of(StatusCode::NOT_FOUND, "there is no such page\n")),
            };
            Ok(http::document(StatusCode::OK, &document))
        };
        match answered.await {
            Ok(answer) => answer,
            Err(Refusal::Answer(answer)) => *answer,
            Err(Refusal::Failure(failure)) => {
                let status = match failure.status {
                    Status::NO_LOCK => StatusCode::NOT_FOUND,
                    Status::USAGE => StatusCode::BAD_REQUEST,
                    Status::UNAVAILABLE => StatusCode::BAD_GATEWAY,
                    _ => StatusCode::INTERNAL_SERVER_ERROR,
                };
                http::document(status, &json!({"error": failure.message}))
            }
        }
    }

    /// What does not change while this process lives.
    fn site(&self) -> Value {
        json!({
            "server": self.target.shown(),
            "prefix": self.target.prefix(),
            "interval_ms": json::ms(self.interval),
            "evict": self.door.token.is_some(),
            "events": self.events,
            "no_events": self.looks.eye().no_events(),
            "blockers": matches!(self.target, Target::One(_)),
            "history": KEPT,
            "version": env!("CARGO_PKG_VERSION"),
        })
    }

    /// A part of the list of locks, each as `fairlock ls --json` prints it.
    async fn locks(&self, query: &Query) -> Result<Value, Refusal> {
        let (first, limit) = query.lines()?;
        let (text, all) = (query.text("text").to_lowercase(), query.text("all") == "1");
        let order = query.text("order");
        let mut look = self.looks.latest().await?;
        let Findings { found, unread, .. } = &look.findings;
        let mut matching: Vec<usize> = (0..found.len())
            .filter(|at| (all || found[*at].in_use()) && is_about(&found[*at], &text))
            .collect();
        // The first ones, because any of them may be the busiest.
        let unread_matching: Vec<_> = unread
            .iter()
            .filter(|lock| lock.name.to_lowercase().contains(&text))
            .collect();
        match order {
            // As they are found.
            "" | "busy" => {}
            "waited" => matching.sort_by_cached_key(|at| Reverse(ls::longest_wait(&found[*at]))),
            "held" => matching.sort_by_cached_key(|at| Reverse(ls::longest_hold(&found[*at]))),
            "name" => matching.sort_by_key(|at| &found[*at].name),
            _ => return Err(wrong("order is one of busy, waited, held and name").into()),
        }
        let sum = |number: fn(&Found) -> usize| found.iter().map(number).sum::<usize>();
        let totals = json!({
            "in_use": found.iter().filter(|lock| lock.in_use()).count(),
            "holding": sum(|lock| lock.status.holding),
            "waiting": sum(|lock| lock.status.waiting),
            "unread": unread.len(),
        });
        let all_matching = unread_matching.len() + matching.len();
        let lines = unread_matching.iter().skip(first).take(limit);
        let mut lines: Vec<Value> = lines.map(|lock| lock.described()).collect();
        let (first_found, left) = (first.saturating_sub(unread_matching.len()), limit - lines.len());
        let shown: Vec<usize> = matching.iter().copied().skip(first_found).take(left).collect();
        self.looks.read_again(&mut look, &shown).await;
        let line = |at: &usize| look.lock(*at).map_or_else(|unread| unread.described(), ls::summary);
        lines.extend(shown.iter().map(line));
        let complaints = &look.findings.complaints;
        Ok(json!({
            "totals": totals,
            "matching": all_matching,
            "first": first,
            "looked_ms_ago": json::ms(look.ended.elapsed()),
            "complaints": complaints.iter().take(COMPLAINTS).collect::<Vec<_>>(),
            "further_complaints": complaints.len().saturating_sub(COMPLAINTS),
            "locks": lines,
        }))
    }

    /// A lock as `fairlock show --json` prints it, with a part of its holders and of its waiters.
    async fn lock(&self, query: &Query) -> Result<Value, Refusal> {
        let (first, limit) = query.lines()?;
        let mut seen = self.looks.status(query.needed("name")?, first).await?;
        // All holders tell it, also those that the answer leaves out.
        let is_expired = seen.found.status.is_expired();
        seen.found.status.holders.truncate(limit);
        seen.found.status.waiters.truncate(limit);
        if let Some(votes) = &mut seen.found.votes {
            votes.of_holders.truncate(limit);
        }
        let mut document = show::document(&seen.found, &seen.servers, false);
        document["expired"] = is_expired.into();
        Ok(document)
    }

    /// Who waits for whom, in all locks.
    async fn waits(&self) -> Result<Value, Refusal> {
        let look = self.looks.latest().await?;
        let Findings { found, unread, .. } = &look.findings;
        let (trees, more) = blame::trees(found);
        let mut unread = unread.clone();
        let all = match self.looks.eye() {
            Eye::One { client, .. } => Some(blockers::deadlocks(client, found).await?),
            Eye::Several(_) => None,
        };
        unread.extend(all.iter().flat_map(|all| all.unread.iter().cloned()));
        Ok(json!({
            "trees": trees,
            "more": more,
            "deadlocks": all.as_ref().map(|all| &all.deadlocks),
            "unsearched": all.as_ref().map(|all| all.unsearched),
            "unread": unread.iter().take(COMPLAINTS).map(Unread::described).collect::<Value>(),
            "further_unread": unread.len().saturating_sub(COMPLAINTS),
            "looked_ms_ago": json::ms(look.ended.elapsed()),
        }))
    }

    /// As `fairlock blockers --json` prints it, with at most a hundred requests in each list. `more` has the number of the
    /// rest.
    async fn blockers(&self, query: &Query) -> Result<Value, Refusal> {
        let subject = query.needed("subject")?;
        self.target.one(crate::NO_CHAIN, Some("blockers LOCK-OR-OWNER"))?;
        let Eye::One { client, .. } = self.looks.eye() else {
            return Err(wrong(crate::NO_CHAIN).into());
        };
        let mut look = self.looks.latest().await?;
        let mut unread = look.findings.complete(client).await?;
        unread.extend(look.findings.unread.iter().cloned());
        unread.truncate(BLOCKERS);
        let mut document = blockers::document(client, &look.findings.found, unread, subject).await?;
        for wait in document["waits"].as_array_mut().into_iter().flatten() {
            shorten(wait, &["places", "holders", "ahead"]);
        }
        if document["lock"].is_object() {
            shorten(&mut document["lock"], &["holders", "waiters"]);
        }
        shorten(&mut document, &["blame"]);
        Ok(document)
    }

    /// The waits that have ended lately.
    async fn history(&self, query: &Query) -> Result<Value, Refusal> {
        let (first, limit) = query.lines()?;
        let text = query.text("text").to_lowercase();
        // Without events only a look tells what has ended.
        if self.events != "all" {
            drop(self.looks.latest().await?);
        }
        let history = self.looks.history.borrow();
        let is_about = |wait: &&Wait| {
            wait.lock.to_lowercase().contains(&text) || client_is_about(&history.client(&wait.client), &text)
        };
        let mut waits: Vec<&Wait> = history.ended().filter(is_about).collect();
        match query.text("order") {
            "" | "latest" => {}
            "longest" => waits.sort_by_key(|wait| Reverse(wait.waited)),
            _ => return Err(wrong("order is latest or longest").into()),
        }
        let shown = waits.iter().skip(first).take(limit);
        let shown = shown.map(|wait| wait.described(&history.client(&wait.client)));
        Ok(json!({"matching": waits.len(), "first": first, "waits": shown.collect::<Value>()}))
    }

    /// Events as `fairlock watch --json` prints them, for an `EventSource`.
    async fn events(&self, query: &Query, headers: &HeaderMap) -> Result<Answer, Refusal> {
        let lock = query.get("lock");
        match (self.events, lock, self.looks.eye()) {
            ("all", lock, _) => {
                let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
                let after = match last.and_then(|id| id.parse().ok()) {
                    Some(after) => after,
                    None => query.number("after")?.unwrap_or(0),
                };
                Ok(http::stream(self.feed.listen(after, lock.map(str::to_owned))))
            }
            ("lock", Some(lock), Eye::One { client, .. }) => Ok(http::stream(feed::of_lock(client, lock).await?)),
            ("lock", None, _) => {
                Err(wrong("a cluster brings the events of single locks: name one by lock=NAME").into())
            }
            (_, _, eye) => Err(wrong(eye.no_events().unwrap_or_default()).into()),
        }
    }

    /// As `fairlock evict --json` prints it.
    async fn evict(&self, body: Incoming, peer: SocketAddr) -> Result<Answer, Refusal> {
        let body = timeout(BODY, Limited::new(body, BODY_BYTES).collect()).await;
        let body: Bytes = match body {
            Ok(Ok(body)) => body.to_bytes(),
            _ => return Err(wrong("the body is too long, or did not come").into()),
        };
        let form = || wrong(r#"the body has to be {"lock": NAME, "owner": OWNER}"#);
        let asked: Value = serde_json::from_slice(&body).map_err(|_| form())?;
        let (Some(lock), Some(owner)) = (asked["lock"].as_str(), asked["owner"].as_str()) else {
            return Err(form().into());
        };
        let owner: Owner = owner
            .parse()
            .map_err(|_| wrong("owner has to be an owner as the page shows it"))?;
        let evicted = evict::evict(self.looks.eye(), lock, &owner).await?;
        self.record(lock, &owner.to_string(), evicted.requests, peer);
        Ok(http::document(StatusCode::OK, &evict::document(lock, &owner, &evicted)))
    }
}

fn wrong(what: &str) -> Failure {
    Failure::usage(what)
}

fn must_be(method: &Method, allowed: &[Method], names: &'static str) -> Result<(), Box<Answer>> {
    if allowed.contains(method) {
        return Ok(());
    }
    let mut answer = http::text_of(StatusCode::METHOD_NOT_ALLOWED, "the page cannot be asked in this way\n");
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(names));
    Err(Box::new(answer))
}

/// Whether a lock's name, or a holder or waiter of it, has that text in lower case.
fn is_about(found: &Found, text: &str) -> bool {
    let holders = found.status.holders.iter().map(|holder| &holder.client);
    let mut clients = holders.chain(found.status.waiters.iter().map(|waiter| &waiter.client));
    text.is_empty() || found.name.to_lowercase().contains(text) || clients.any(|client| client_is_about(client, text))
}

fn client_is_about(client: &ClientInfo, text: &str) -> bool {
    let texts = [
        client.label.as_deref(),
        client.host.as_deref(),
        Some(client.id.as_str()),
    ];
    texts.into_iter().flatten().any(|of| of.to_lowercase().contains(text))
}

/// What stands behind the question mark.
struct Query(Vec<(String, String)>);

/// Cuts these lists of an object down to a hundred requests. `more` has the number of the rest.
fn shorten(object: &mut Value, lists: &[&str]) {
    for list in lists {
        let Some(requests) = object[*list].as_array_mut() else {
            continue;
        };
        let more = requests.len().saturating_sub(BLOCKERS);
        requests.truncate(BLOCKERS);
        if more > 0 {
            object["more"][*list] = more.into();
        }
    }
}

impl Query {
    fn of(text: &str) -> Self {
        Self(form_urlencoded::parse(text.as_bytes()).into_owned().collect())
    }

    fn get(&self, name: &str) -> Option<&str> {
        let pair = self.0.iter().find(|(known, _)| known == name);
        pair.map(|(_, value)| value.as_str())
    }

    fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    fn needed(&self, name: &str) -> Result<&str, Failure> {
        self.get(name).ok_or_else(|| wrong(&format!("{name}= is missing")))
    }

    fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>, Failure> {
        let number = self.get(name).map(str::parse).transpose();
        number.map_err(|_| wrong(&format!("{name} has to be a number")))
    }

    /// Where a list begins, and how many lines it has.
    fn lines(&self) -> Result<(usize, usize), Failure> {
        let (first, limit) = (self.number("first")?.unwrap_or(0), self.number("limit")?);
        if first > LAST_FIRST {
            return Err(wrong(&format!("first is at most {LAST_FIRST}")));
        }
        Ok((first, limit.unwrap_or(LINES).min(MOST_LINES)))
    }
}
