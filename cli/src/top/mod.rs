//! `fairlock top`: all locks, or one, live.

mod draw;
mod keys;
mod screen;

use crate::args::TopArgs;
use crate::evict::{Evicted, evict};
use crate::json;
use crate::locks::{Eye, Findings, Found, Unread};
use crate::outcome::{Failure, Outcome, Status, say};
use crate::quorum::Target;
use crate::show;
use crate::text::{count, safe};
use crate::watch::interrupted;
use crossterm::clipboard::CopyToClipboard;
use crossterm::cursor::Show;
use crossterm::execute;
use fairlock::{Error, Event, Owner};
use futures::future::{LocalBoxFuture, OptionFuture};
use futures::stream::{self, LocalBoxStream, StreamExt, TryStreamExt as _};
use ratatui::DefaultTerminal;
use screen::{Action, Screen};
use serde_json::Value;
use std::io::{self, IsTerminal as _};
use std::mem::ManuallyDrop;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

pub(crate) async fn run(target: &Target, args: &TopArgs) -> Outcome {
    let eye = Eye::open(target).await?;
    let pattern = args.pattern.as_deref();
    let mut screen = Screen::new(format!("{}   prefix {}", target.shown(), target.prefix()));
    let is_live = !args.output.json && !args.once && io::stdout().is_terminal();
    let done = if is_live {
        let done = live(&mut screen, &eye, pattern, args.interval).await;
        done.map(|()| Status::OK)
    } else {
        let findings = eye.find(pattern).await?;
        let status = findings.status();
        findings.complain();
        screen.on_locks(findings);
        told(&mut screen, args).map(|()| status)
    };
    eye.shutdown().await;
    done
}

/// One look, as JSON or as a frame.
fn told(screen: &mut Screen, args: &TopArgs) -> Result<(), Failure> {
    if args.output.json {
        let locks = screen.locks.iter().map(|lock| show::document(lock, &[], false));
        let locks = screen.unread.iter().map(Unread::described).chain(locks);
        return json::document(&locks.collect::<Value>());
    }
    screen.trouble = None;
    say(&screen.text(args.size))
}

async fn live(screen: &mut Screen, eye: &Eye<'_>, pattern: Option<&str>, interval: Duration) -> Result<(), Failure> {
    let broken = |error: io::Error| Failure::new(Status::BROKEN, format!("cannot use the terminal: {error}"));
    // Its drop writes to stderr where the cursor cannot be shown. Without a terminal that fails too, and panics.
    let mut terminal = ManuallyDrop::new(ratatui::try_init().map_err(broken)?);
    let interval = interval.max(Duration::from_millis(50));
    let shown = show(screen, eye, pattern, interval, &mut terminal).await;
    let _ = execute!(io::stdout(), Show);
    let restored = ratatui::try_restore();
    shown?.map_err(broken)?;
    restored.map_err(broken)
}

/// What a look brought: all locks, or one.
enum Looked {
    Locks(Findings),
    /// And what the servers of a quorum say that could not read it.
    Lock(Box<Found>, Vec<String>),
}

async fn look(eye: &Eye<'_>, pattern: Option<&str>, opened: Option<String>) -> Result<Looked, Failure> {
    Ok(match opened {
        Some(name) => {
            let (found, servers) = eye.status(&name).await?;
            Looked::Lock(Box::new(found), servers.into_iter().filter_map(Result::err).collect())
        }
        None => Looked::Locks(eye.find(pattern).await?),
    })
}

/// The events of one lock, or why there are none.
fn events(eye: &Eye<'_>, name: &str) -> Result<LocalBoxStream<'static, Result<Event, Error>>, &'static str> {
    match (eye, eye.no_events()) {
        (Eye::One { client, .. }, None) => {
            let lock = client.rw_lock(name);
            let subscribed = stream::once(async move { lock.events().await });
            Ok(subscribed.try_flatten().boxed_local())
        }
        (_, why) => Err(why.unwrap_or_default()),
    }
}

/// Looks, evictions and events come beside the keys, so that a slow server makes no key wait.
async fn show(
    screen: &mut Screen,
    eye: &Eye<'_>,
    pattern: Option<&str>,
    interval: Duration,
    terminal: &mut DefaultTerminal,
) -> Result<io::Result<()>, Failure> {
    let mut keys = keys::read();
    let interrupted = interrupted(true);
    tokio::pin!(interrupted);
    // The first one begins after the first frame, which says so.
    let mut looking: Option<LocalBoxFuture<'_, Result<Looked, Failure>>> = Some(Box::pin(look(eye, pattern, None)));
    let mut evicting: Option<LocalBoxFuture<'_, (Owner, Result<Evicted, Failure>)>> = None;
    let mut of_lock = None;
    let mut next = Instant::now() + interval;
    loop {
        if let Err(error) = terminal.draw(|frame| screen.draw(frame)) {
            return Ok(Err(error));
        }
        let rests = looking.is_none() && !screen.paused;
        tokio::select! {
            signal = &mut interrupted => return Err(Failure::signal(signal)),
            key = keys.recv() => match key.map(|key| screen.press(key)) {
                None | Some(Some(Action::Quit)) => return Ok(Ok(())),
                Some(None) => {}
                Some(Some(Action::Open(name))) => {
                    of_lock = events(eye, &name).map_err(|why| screen.tell(why.to_owned())).ok();
                    (looking, next) = (None, Instant::now());
                }
                Some(Some(Action::Close)) => {
                    of_lock = None;
                    (looking, next) = (None, Instant::now());
                }
                Some(Some(Action::Evict(name, owner))) => {
                    let evicted = async move { (owner, evict(eye, &name, &owner).await) };
                    evicting = Some(Box::pin(evicted));
                }
                Some(Some(Action::Copy(text))) => {
                    if let Err(error) = execute!(io::stdout(), CopyToClipboard::to_clipboard_from(text)) {
                        return Ok(Err(error));
                    }
                }
            },
            Some(looked) = OptionFuture::from(looking.as_mut()) => {
                looking = None;
                next = Instant::now() + interval;
                match looked {
                    Ok(Looked::Locks(findings)) => screen.on_locks(findings),
                    Ok(Looked::Lock(found, complaints)) => screen.on_lock(*found, complaints),
                    // There is nothing to show yet, so the failure is that of the command.
                    Err(failure) if screen.is_first => return Err(failure),
                    Err(failure) => screen.on_failure(&failure),
                }
            }
            Some((owner, evicted)) = OptionFuture::from(evicting.as_mut()) => {
                evicting = None;
                screen.notice = Some(match evicted {
                    Ok(Evicted { requests: 0, .. }) => format!("{owner} had left already"),
                    Ok(evicted) => format!("evicted {owner}: {}", count(evicted.requests, "request", "requests")),
                    Err(failure) => safe(&failure.message),
                });
                next = Instant::now();
            }
            Some(event) = OptionFuture::from(of_lock.as_mut().map(StreamExt::next)) => match event {
                Some(Ok(event)) => screen.on_event(&event),
                Some(Err(error)) => screen.tell(safe(&error.to_string())),
                None => of_lock = None,
            },
            () = sleep_until(next), if rests => {
                let opened = screen.opened.as_ref().map(|opened| opened.name.clone());
                looking = Some(Box::pin(look(eye, pattern, opened)));
            }
        }
    }
}
