//! The live view: the lock as the server shows it, and what the workers told.

use crate::judge::Sight;
use crate::record::{Mode, now_ns};
use crate::stage::{Scene, Snapshot};
use fairlock_support::packed::Packed;
use redis::aio::MultiplexedConnection;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, interval, sleep};

pub(crate) const LOOK: Duration = Duration::from_millis(40);
const REDRAW: Duration = Duration::from_millis(100);
const PROGRESS: Duration = Duration::from_secs(1);
const SHOWN: usize = 6;

/// The packed state, the queue, the leases.
type Keys = (Option<Vec<u8>>, Vec<String>, Vec<String>);

/// Reads the lock's keys again and again: for the view, and for whoever has to judge without MONITOR. Writes nothing.
pub(crate) async fn look(mut redis: MultiplexedConnection, key: String, scene: Arc<Scene>) {
    let mut all = redis::pipe();
    all.atomic().cmd("HGET").arg(&key).arg("s");
    for requests in ["q", "l"] {
        all.cmd("ZRANGE").arg(format!("{key}:{requests}")).arg(0).arg(-1);
    }
    loop {
        let begun = now_ns();
        let reply: redis::RedisResult<Keys> = all.query_async(&mut redis).await;
        let ended = now_ns();
        if let Err(error) = &reply {
            scene.set_blind(error.to_string());
        }
        if let Ok((state, queue, mut leases)) = reply {
            let mut sights = scene.sights();
            for owner in queue.iter().filter_map(|request| owner_of(request)) {
                let sight = sights
                    .entry(owner.to_owned())
                    .or_insert(Sight { first: ended, last: 0 });
                sight.last = begun;
            }
            drop(sights);
            let packed = state.and_then(|field| Packed::read(&field)).unwrap_or_default();
            if packed.sole {
                leases = vec![packed.holder.clone()];
            }
            leases.retain(|request| !queue.contains(request));
            let holders = leases.iter().filter_map(|request| owner_of(request));
            let holders = holders.map(str::to_owned).collect();
            let mode = match packed.mode() {
                "" => "free".to_owned(),
                mode => mode.to_owned(),
            };
            let servers = Vec::new();
            scene.set_snapshot(Snapshot {
                mode,
                holders,
                queue,
                servers,
            });
        }
        sleep(LOOK).await;
    }
}

/// The owner in the name of a request. Every worker names one.
pub(crate) fn owner_of(request: &str) -> Option<&str> {
    request.splitn(3, ':').nth(2)
}

/// Colours, where they are wanted.
#[derive(Clone, Copy)]
pub(crate) struct Paint(pub(crate) bool);

impl Paint {
    pub(crate) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    pub(crate) fn good(self, text: &str) -> String {
        self.with("32", text)
    }

    pub(crate) fn bad(self, text: &str) -> String {
        self.with("1;31", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Shows the scene, until it is dropped at one of its awaits.
pub(crate) async fn show(scene: Arc<Scene>, paint: Paint) {
    let begun = now_ns();
    if !std::io::stdout().is_terminal() {
        return progress(&scene, begun).await;
    }
    let mut ticks = interval(REDRAW);
    let mut lines_drawn = 0;
    loop {
        ticks.tick().await;
        let frame = frame(&scene, begun, paint);
        // Up to where the last frame began, and clear from there on.
        let up = if lines_drawn > 0 {
            format!("\x1b[{lines_drawn}A")
        } else {
            String::new()
        };
        lines_drawn = frame.lines().count();
        let mut out = std::io::stdout().lock();
        let _ = write!(out, "{up}\r\x1b[J{frame}").and_then(|()| out.flush());
    }
}

/// Without a terminal: the news, and a line each second.
async fn progress(scene: &Scene, begun: u64) {
    let (mut told, mut next) = (0, Instant::now() + PROGRESS);
    loop {
        sleep(REDRAW).await;
        let news: Vec<_> = scene.news().iter().skip(told).cloned().collect();
        told += news.len();
        let mut out = std::io::stdout().lock();
        for (at, news) in news {
            let _ = writeln!(out, "{:5.1} s  {news}", since(begun, at));
        }
        if Instant::now() >= next {
            next += PROGRESS;
            let lock = scene.snapshot();
            let (reads, writes) = granted(scene);
            let _ = writeln!(
                out,
                "{:5.1} s  {:5}  {:3} inside  {:3} waiting  {:5} grants ({reads} read, {writes} write)",
                since(begun, now_ns()),
                lock.mode,
                lock.holders.len(),
                lock.queue.len(),
                reads + writes,
            );
        }
    }
}

fn since(begun: u64, at: u64) -> f64 {
    at.saturating_sub(begun) as f64 / 1e9
}

fn granted(scene: &Scene) -> (usize, usize) {
    let history = scene.history();
    (history.reads, history.writes)
}

fn frame(scene: &Scene, begun: u64, paint: Paint) -> String {
    let width = rustix::termios::tcgetwinsize(std::io::stdout()).map_or(80, |size| usize::from(size.ws_col));
    let lock = scene.snapshot();
    let (reads, writes) = granted(scene);
    let holders: Vec<_> = lock.holders.iter().map(|owner| who(scene, owner)).collect();
    let owners = lock.queue.iter().take(SHOWN);
    let owners = owners.map(|request| owner_of(request).unwrap_or_default());
    let first: Vec<_> = owners.map(|owner| who(scene, owner)).collect();
    let more = if lock.queue.len() > first.len() { ", ..." } else { "" };

    let mut rows = vec![
        format!(
            "{:.1} s   {} grants: {reads} read, {writes} write",
            since(begun, now_ns()),
            reads + writes
        ),
        format!("mode      {}", lock.mode),
        format!("inside    {:<3} {}", holders.len(), holders.join(", ")),
        format!("queue     {:<3} {}{more}", lock.queue.len(), first.join(", ")),
    ];
    rows.extend(lock.servers.iter().map(|server| format!("server    {server}")));
    rows.push(String::new());
    let told = rows.len();
    let news = scene.news();
    let recent = news.iter().skip(news.len().saturating_sub(SHOWN));
    rows.extend(recent.map(|(at, text)| format!("{:5.1} s   {text}", since(begun, *at))));

    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        // A line that wraps would make the frame higher than it counts.
        let row: String = row.chars().take(width.saturating_sub(1)).collect();
        let row = if index == 0 { paint.bold(&row) } else { row };
        let row = if index >= told { paint.dim(&row) } else { row };
        let _ = writeln!(text, "{row}");
    }
    text
}

/// `w2.5`: the writer that is task 5 of process 2.
fn who(scene: &Scene, owner: &str) -> String {
    match scene.history().get(owner) {
        Some(request) => {
            let letter = if request.mode == Mode::Read { 'r' } else { 'w' };
            let dead = if request.killed.is_some() { " dead" } else { "" };
            format!("{letter}{}.{}{dead}", request.process, request.task)
        }
        // The server was faster than the pipe.
        None => "?".to_owned(),
    }
}
