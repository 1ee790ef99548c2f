//! What the screen shows, and what each key does to it. No terminal and no server: both are arguments.

use super::keys::Key;
use crate::locks::{Findings, Found, Unread};
use crate::ls::{longest_hold, longest_wait};
use crate::outcome::Failure;
use crate::text::{self, safe_lines, safe_word};
use fairlock::{ClientInfo, Event, FencingToken, Mode, Owner};
use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

/// Events of a lock that are kept, and looks of which the longest wait is.
const KEPT: usize = 500;

/// The state of the screen.
pub(super) struct Screen {
    pub(super) server: String,
    /// All locks in use, in the order of `sort`.
    pub(super) locks: Vec<Found>,
    /// Locks that could not be read, in the order of their names. They are the first lines.
    pub(super) unread: Vec<Unread>,
    pub(super) at: SystemTime,
    /// The name of the selected lock: its line moves as other locks become busier.
    pub(super) selected: Option<String>,
    /// The first line that the table shows.
    pub(super) offset: Cell<usize>,
    /// How many lines the table has.
    pub(super) lines: Cell<usize>,
    pub(super) sort: Sort,
    pub(super) reversed: bool,
    /// Only locks whose name, or the label of a holder or a waiter, has this in it.
    pub(super) filter: String,
    pub(super) opened: Option<Opened>,
    pub(super) prompt: Option<Prompt>,
    pub(super) paused: bool,
    /// Why the screen is old, or which lock is missing.
    pub(super) trouble: Option<String>,
    /// No look has ended yet: of very many locks, or from far away, the first one takes seconds.
    pub(super) is_first: bool,
    /// What the last key did.
    pub(super) notice: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Waiting,
    Waited,
    Held,
    Name,
}

impl Sort {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Waited => "longest wait",
            Self::Held => "longest hold",
            Self::Name => "name",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Waiting => Self::Waited,
            Self::Waited => Self::Held,
            Self::Held => Self::Name,
            Self::Name => Self::Waiting,
        }
    }

    fn compare(self, one: &Found, other: &Found) -> Ordering {
        match self {
            Self::Waiting | Self::Name => Ordering::Equal,
            Self::Waited => longest_wait(other).cmp(&longest_wait(one)),
            Self::Held => longest_hold(other).cmp(&longest_hold(one)),
        }
        .then_with(|| match self {
            Self::Name => one.name.cmp(&other.name),
            _ => one.order(other),
        })
    }
}

/// What takes the keys instead of the table.
pub(super) enum Prompt {
    Help,
    Filter { before: String },
    Evict { owner: Owner, of: String },
}

/// A line of the table of locks.
#[derive(Clone, Copy)]
pub(super) enum Entry<'a> {
    Lock(&'a Found),
    Unread(&'a Unread),
}

impl<'a> Entry<'a> {
    fn name(self) -> &'a str {
        match self {
            Self::Lock(lock) => &lock.name,
            Self::Unread(lock) => &lock.name,
        }
    }
}

/// One lock on the whole screen.
pub(super) struct Opened {
    pub(super) name: String,
    pub(super) found: Option<Found>,
    /// The selected request, by its owner and whether it waits, and how many of these stand before it.
    selected: Option<(Owner, bool, usize)>,
    /// The oldest first.
    pub(super) events: VecDeque<String>,
    /// The longest wait at each look, in ms, the oldest first.
    pub(super) waits: VecDeque<u64>,
    pub(super) offset: Cell<usize>,
}

/// A line of an opened lock: a holder or a waiter.
pub(super) struct Request<'a> {
    pub(super) owner: Owner,
    pub(super) client: &'a ClientInfo,
    pub(super) mode: Mode,
    pub(super) permits: u32,
    /// Of a waiter.
    pub(super) place: Option<usize>,
    pub(super) upgrade: bool,
    pub(super) time: Duration,
    pub(super) lease: String,
    pub(super) token: Option<FencingToken>,
}

/// What a key asks of the server or of the terminal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    Quit,
    Open(String),
    Close,
    Evict(String, Owner),
    Copy(String),
}

impl Opened {
    pub(super) fn new(name: String) -> Self {
        Self {
            name,
            found: None,
            selected: None,
            events: VecDeque::new(),
            waits: VecDeque::new(),
            offset: Cell::new(0),
        }
    }

    /// The holders, then the waiters.
    pub(super) fn requests(&self) -> Vec<Request<'_>> {
        let Some(Found { status, .. }) = &self.found else {
            return Vec::new();
        };
        let holders = status.holders.iter().map(|holder| Request {
            owner: holder.owner,
            client: &holder.client,
            mode: holder.mode,
            permits: holder.permits,
            place: None,
            upgrade: false,
            time: holder.held_for,
            lease: text::lease(holder.lease_left, holder.expired_for),
            token: Some(holder.token),
        });
        let waiters = status.waiters.iter().enumerate().map(|(place, waiter)| Request {
            owner: waiter.owner,
            client: &waiter.client,
            mode: waiter.mode,
            permits: waiter.permits,
            place: Some(place),
            upgrade: waiter.upgrade,
            time: waiter.waited,
            lease: text::lease(waiter.lease_left, waiter.expired_for),
            token: None,
        });
        holders.chain(waiters).collect()
    }

    /// The line of the selected request: of one that entered meanwhile its new line, of one that has left the first line.
    pub(super) fn position(&self) -> usize {
        let Some((owner, waits, before)) = self.selected else {
            return 0;
        };
        let requests = self.requests();
        let of_owner = |waits: Option<bool>| {
            let is = |request: &Request<'_>| {
                request.owner == owner && waits.is_none_or(|waits| waits == request.place.is_some())
            };
            let lines = requests.iter().enumerate().filter(|(_, request)| is(request));
            lines.map(|(line, _)| line).take(before + 1).last()
        };
        of_owner(Some(waits)).or_else(|| of_owner(None)).unwrap_or(0)
    }

    fn select(&mut self, at: usize) {
        let requests = self.requests();
        let key = |request: &Request<'_>| (request.owner, request.place.is_some());
        if let Some(selected) = requests.get(at).map(key) {
            let before = requests[..at].iter().filter(|request| key(request) == selected).count();
            self.selected = Some((selected.0, selected.1, before));
        }
    }
}

impl Screen {
    pub(super) fn new(server: String) -> Self {
        Self {
            server,
            locks: Vec::new(),
            unread: Vec::new(),
            at: SystemTime::now(),
            selected: None,
            offset: Cell::new(0),
            lines: Cell::new(1),
            sort: Sort::Waiting,
            reversed: false,
            filter: String::new(),
            opened: None,
            prompt: None,
            paused: false,
            trouble: None,
            is_first: true,
            notice: None,
        }
    }

    pub(super) fn on_locks(&mut self, findings: Findings) {
        self.is_first = false;
        self.locks = findings.found;
        self.locks.retain(Found::in_use);
        self.unread = findings.unread;
        self.at = SystemTime::now();
        self.trouble = findings.complaints.into_iter().next();
        self.order();
    }

    pub(super) fn on_lock(&mut self, found: Found, complaints: Vec<String>) {
        self.at = SystemTime::now();
        self.trouble = complaints.into_iter().next();
        if let Some(opened) = self.opened.as_mut().filter(|opened| opened.name == found.name) {
            let wait = longest_wait(&found).unwrap_or_default();
            keep(&mut opened.waits, u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
            opened.found = Some(found);
        }
    }

    pub(super) fn on_failure(&mut self, failure: &Failure) {
        // Further lines say what to do.
        self.trouble = failure.message.lines().next().map(safe_lines);
    }

    pub(super) fn on_event(&mut self, event: &Event) {
        let at = humantime::format_rfc3339_millis(event.at).to_string();
        // The day is that of the first line of the screen.
        let time = at.get(11..23).unwrap_or_default();
        let token = event.token.map_or(String::new(), |token| format!("  token {token}"));
        let kind = event.kind.as_str();
        self.tell(format!(
            "{time}  {kind:<8}  {:<5}  {}{token}",
            event.mode.as_str(),
            event.owner
        ));
    }

    /// A line among the events.
    pub(super) fn tell(&mut self, line: String) {
        if let Some(opened) = &mut self.opened {
            keep(&mut opened.events, line);
        }
    }

    fn order(&mut self) {
        let (sort, reversed) = (self.sort, self.reversed);
        self.locks.sort_by(|one, other| match reversed {
            false => sort.compare(one, other),
            true => sort.compare(other, one),
        });
    }

    /// The locks that the filter lets through.
    pub(super) fn shown(&self) -> Vec<Entry<'_>> {
        let wanted = self.filter.to_lowercase();
        let labelled = |client: &ClientInfo| {
            let label = client.label.as_deref().unwrap_or_default();
            label.to_lowercase().contains(&wanted)
        };
        let is_wanted = |lock: &&Found| {
            lock.name.to_lowercase().contains(&wanted)
                || lock.status.holders.iter().any(|holder| labelled(&holder.client))
                || lock.status.waiters.iter().any(|waiter| labelled(&waiter.client))
        };
        let unread = self
            .unread
            .iter()
            .filter(|lock| lock.name.to_lowercase().contains(&wanted));
        let locks = self.locks.iter().filter(is_wanted);
        unread.map(Entry::Unread).chain(locks.map(Entry::Lock)).collect()
    }

    /// The line of the selected lock, or the first line if that lock is no longer in use.
    pub(super) fn position(&self, shown: &[Entry<'_>]) -> usize {
        let selected = |entry: &Entry<'_>| self.selected.as_deref() == Some(entry.name());
        shown.iter().position(selected).unwrap_or(0)
    }

    pub(super) fn press(&mut self, key: Key) -> Option<Action> {
        if key == Key::Interrupt {
            return Some(Action::Quit);
        }
        if key != Key::Redraw {
            self.notice = None;
        }
        match self.prompt.take() {
            Some(Prompt::Help) => {
                // Any key closes the help.
                self.prompt = (key == Key::Redraw).then_some(Prompt::Help);
                None
            }
            Some(Prompt::Filter { before }) => {
                self.press_in_filter(key, before);
                None
            }
            Some(Prompt::Evict { owner, of }) => match (key, &self.opened) {
                (Key::Char('y' | 'Y'), Some(opened)) => Some(Action::Evict(opened.name.clone(), owner)),
                (Key::Redraw, _) => {
                    self.prompt = Some(Prompt::Evict { owner, of });
                    None
                }
                _ => {
                    self.notice = Some("nothing was evicted".to_owned());
                    None
                }
            },
            None => self.press_in_table(key),
        }
    }

    fn press_in_filter(&mut self, key: Key, before: String) {
        match key {
            Key::Enter => return,
            Key::Escape => {
                self.filter = before;
                return;
            }
            Key::Char(c) => self.filter.push(c),
            Key::Backspace => drop(self.filter.pop()),
            _ => {}
        }
        self.prompt = Some(Prompt::Filter { before });
    }

    fn press_in_table(&mut self, key: Key) -> Option<Action> {
        match key {
            Key::Char('q') => return Some(Action::Quit),
            Key::Char('?' | 'h') => self.prompt = Some(Prompt::Help),
            Key::Char(' ') => self.paused = !self.paused,
            key => {
                return if self.opened.is_some() {
                    self.press_in_lock(key)
                } else {
                    self.press_in_locks(key)
                };
            }
        }
        None
    }

    fn press_in_locks(&mut self, key: Key) -> Option<Action> {
        match key {
            Key::Char('/') => {
                let before = self.filter.clone();
                self.prompt = Some(Prompt::Filter { before });
            }
            Key::Char('s') => {
                self.sort = self.sort.next();
                self.order();
            }
            Key::Char('r') => {
                self.reversed = !self.reversed;
                self.order();
            }
            Key::Escape if !self.filter.is_empty() => self.filter.clear(),
            Key::Escape => return Some(Action::Quit),
            Key::Enter => {
                let shown = self.shown();
                let name = shown.get(self.position(&shown))?.name().to_owned();
                self.selected = Some(name.clone());
                self.opened = Some(Opened::new(name.clone()));
                return Some(Action::Open(name));
            }
            key => {
                let shown = self.shown();
                let to = moved(key, self.position(&shown), shown.len(), self.lines.get())?;
                self.selected = shown.get(to).map(|entry| entry.name().to_owned());
            }
        }
        None
    }

    fn press_in_lock(&mut self, key: Key) -> Option<Action> {
        let opened = self.opened.as_mut()?;
        let at = opened.position();
        match key {
            Key::Escape | Key::Backspace => {
                self.opened = None;
                return Some(Action::Close);
            }
            Key::Char('e') => {
                let requests = opened.requests();
                let request = requests.get(at)?;
                let (owner, of) = (request.owner, text::origin_in_short(request.client));
                self.prompt = Some(Prompt::Evict { owner, of });
            }
            Key::Char(c @ ('o' | 'l')) => {
                let requests = opened.requests();
                let request = requests.get(at)?;
                let text = match c {
                    'o' => request.owner.to_string(),
                    _ => safe_word(request.client.label.as_deref()?),
                };
                self.notice = Some(format!("copied {text}"));
                return Some(Action::Copy(text));
            }
            key => {
                let to = moved(key, at, opened.requests().len(), self.lines.get())?;
                opened.select(to);
            }
        }
        None
    }
}

/// Where a key moves from a line of so many. `None`: the key moves nothing.
fn moved(key: Key, at: usize, of: usize, lines: usize) -> Option<usize> {
    let last = of.saturating_sub(1);
    Some(match key {
        Key::Up | Key::Char('k') => at.saturating_sub(1),
        Key::Down | Key::Char('j') => (at + 1).min(last),
        Key::PageUp => at.saturating_sub(lines),
        Key::PageDown => (at + lines).min(last),
        Key::Home | Key::Char('g') => 0,
        Key::End | Key::Char('G') => last,
        _ => return None,
    })
}

fn keep<T>(kept: &mut VecDeque<T>, one: T) {
    if kept.len() == KEPT {
        kept.pop_front();
    }
    kept.push_back(one);
}

/// The number of lines above the first one that is shown, so that the selected one is among `lines`. A terminal of a few
/// lines has room for none: then the selected one would be the first.
pub(super) fn scrolled(offset: &Cell<usize>, at: usize, lines: usize) -> usize {
    let least = (at + 1).saturating_sub(lines.max(1));
    offset.set(offset.get().clamp(least, at.max(least)));
    offset.get()
}
