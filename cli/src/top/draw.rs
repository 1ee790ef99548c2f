//! The frames.

use super::screen::{Entry, Opened, Prompt, Screen, scrolled};
use crate::locks::{Found, Unread};
use crate::ls::{held_by, longest_hold, longest_wait};
use crate::text::{self, count, origin_in_short, safe, span};
use fairlock::{Mode, Waiter};
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Sparkline, Table, TableState, Wrap};
use ratatui::{Frame, Terminal};
use std::time::Duration;
use unicode_width::UnicodeWidthStr;

const KEYS_OF_LOCKS: &str = "q quit  ? help  / filter  s sort  r reverse  Enter open  Space pause";
const KEYS_OF_LOCK: &str = "q quit  ? help  Esc back  e evict  o copy owner  l copy label  Space pause";

const HELP: [(&str, &str); 12] = [
    ("Up Down j k", "move by a line"),
    ("PgUp PgDn", "move by a page"),
    ("Home End g G", "move to the first or the last line"),
    ("Enter", "open the lock: its requests, events and waits"),
    ("Esc", "back; clear the filter; leave"),
    ("/", "show only names and labels that contain a text"),
    ("s  r", "sort by waiting, longest wait, longest hold, name; reverse"),
    ("e", "evict the owner of the selected request, after a question"),
    ("o  l", "copy the owner or the label to the terminal's clipboard"),
    ("Space", "pause, go on"),
    ("? h", "this help; any key closes it"),
    ("q  Ctrl-C", "leave"),
];

impl Screen {
    /// A frame as text. It has no keys, because nobody can press one.
    pub(super) fn text(&self, (columns, rows): (u16, u16)) -> String {
        let Ok(mut terminal) = Terminal::new(TestBackend::new(columns, rows));
        let Ok(_) = terminal.draw(|frame| self.draw_all(frame, frame.area()));
        lines(terminal.backend().buffer())
    }

    pub(super) fn draw(&self, frame: &mut Frame) {
        let [all, foot] = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
        self.draw_all(frame, all);
        self.draw_foot(frame, foot);
        if let Some(Prompt::Help) = self.prompt {
            draw_help(frame);
        }
    }

    fn draw_all(&self, frame: &mut Frame, area: Rect) {
        let [head, rest] = Layout::vertical([Constraint::Length(2), Constraint::Min(0)]).areas(area);
        self.draw_head(frame, head);
        match &self.opened {
            Some(opened) => self.draw_opened(frame, rest, opened),
            None => self.draw_locks(frame, rest),
        }
    }

    fn draw_head(&self, frame: &mut Frame, area: Rect) {
        let time = humantime::format_rfc3339_seconds(self.at).to_string();
        let first = Line::from_iter([
            "fairlock top".bold(),
            format!("   {}   {time}", safe(&self.server)).into(),
        ]);
        let paused = if self.paused { "   paused" } else { "" };
        let second = match (&self.trouble, &self.opened) {
            (Some(trouble), _) => Line::from(safe(trouble).red()),
            (None, Some(opened)) => Line::from(summary(opened) + paused),
            (None, None) if self.is_first => Line::from("reading the locks ..."),
            (None, None) => Line::from(self.numbers() + &self.order_shown() + paused),
        };
        let second = if self.paused && self.trouble.is_none() {
            second.yellow()
        } else {
            second
        };
        frame.render_widget(Paragraph::new(Text::from_iter([first, second])), area);
    }

    /// Of all locks, whatever the filter.
    fn numbers(&self) -> String {
        let sum = |number: fn(&Found) -> usize| self.locks.iter().map(number).sum();
        let locks = count(self.locks.len(), "lock", "locks");
        let holds = count(sum(|lock| lock.status.holding), "hold", "holds");
        let mut numbers = format!("{locks} in use, {holds}, {} waiting", sum(|lock| lock.status.waiting));
        if !self.unread.is_empty() {
            numbers += &format!(", {} not readable", self.unread.len());
        }
        if !self.filter.is_empty() {
            numbers += &format!("   with {}: {}", safe(&self.filter), self.shown().len());
        }
        numbers
    }

    fn order_shown(&self) -> String {
        let reversed = if self.reversed { ", reversed" } else { "" };
        format!("   by {}{reversed}", self.sort.name())
    }

    fn draw_foot(&self, frame: &mut Frame, area: Rect) {
        let line = match (&self.prompt, &self.notice) {
            (Some(Prompt::Filter { .. }), _) => {
                Line::from(format!("/{}_   Enter keeps it, Esc does not", safe(&self.filter))).yellow()
            }
            (Some(Prompt::Evict { owner, of }), _) => Line::from(format!("evict {of}, owner {owner}? y/n")).yellow(),
            (_, Some(notice)) => Line::from(notice.as_str()).yellow(),
            _ if self.opened.is_some() => Line::from(KEYS_OF_LOCK).fg(Color::DarkGray),
            _ => Line::from(KEYS_OF_LOCKS).fg(Color::DarkGray),
        };
        frame.render_widget(Paragraph::new(line), area);
    }

    fn draw_locks(&self, frame: &mut Frame, area: Rect) {
        let details = match area.height {
            0..18 => 0,
            height => height * 2 / 5,
        };
        let [table, details] = Layout::vertical([Constraint::Min(0), Constraint::Length(details)]).areas(area);
        let shown = self.shown();
        self.draw_table(frame, table, &shown);
        match shown.get(self.position(&shown)) {
            Some(Entry::Lock(lock)) => draw_details(frame, details, lock),
            Some(Entry::Unread(lock)) => draw_error(frame, details, lock),
            None => {}
        }
    }

    /// Only the lines that fit are made: there may be thousands of locks.
    fn draw_table(&self, frame: &mut Frame, area: Rect, shown: &[Entry<'_>]) {
        let heading = ["LOCK", "MODE", "HOLDS", "WAITS", "WAITED", "HELD", "HELD BY", "QUEUE"];
        let lines = usize::from(area.height.saturating_sub(1));
        self.lines.set(lines);
        let at = self.position(shown);
        let from = scrolled(&self.offset, at, lines).min(shown.len());
        let visible = &shown[from..shown.len().min(from + lines)];
        let taken = |entry: &Entry<'_>| match entry {
            Entry::Lock(lock) => text::taken(&lock.status).map_or(0, |taken| taken.len()),
            Entry::Unread(_) => 0,
        };
        let mode_width = visible.iter().map(taken).max().unwrap_or(0).clamp(5, 15);
        let rows = visible.iter().map(|entry| match entry {
            Entry::Lock(lock) => row(lock),
            Entry::Unread(lock) => row_of_error(lock),
        });
        let widths = [
            Constraint::Fill(3),
            Constraint::Length(mode_width as u16),
            Constraint::Length(5),
            Constraint::Length(5),
            Constraint::Length(6),
            Constraint::Length(6),
            Constraint::Fill(3),
            Constraint::Fill(2),
        ];
        // A frame that is not live has no selected lock.
        let selected = self.selected.as_ref().map(|_| at - from);
        draw_rows(frame, area, heading, rows, widths, selected);
    }

    fn draw_opened(&self, frame: &mut Frame, area: Rect, opened: &Opened) {
        let below = (area.height / 3).min(16);
        let [table, below] = Layout::vertical([Constraint::Min(0), Constraint::Length(below)]).areas(area);
        self.draw_requests(frame, table, opened);
        let [events, waits] = Layout::horizontal([Constraint::Fill(2), Constraint::Fill(1)]).areas(below);
        let newest = opened
            .events
            .iter()
            .rev()
            .take(usize::from(events.height.saturating_sub(2)));
        let newest: Vec<_> = newest.map(|line| Line::from(line.as_str())).collect();
        let newest = Text::from_iter(newest.into_iter().rev());
        frame.render_widget(Paragraph::new(newest).block(titled(" events ".to_owned())), events);
        let width = usize::from(waits.width.saturating_sub(2));
        let seen: Vec<u64> = opened.waits.iter().rev().take(width).rev().copied().collect();
        let most = seen.iter().max().copied().unwrap_or_default();
        let title = format!(" longest wait, up to {} ", span(Duration::from_millis(most)));
        frame.render_widget(Sparkline::default().data(&seen).block(titled(title)), waits);
    }

    fn draw_requests(&self, frame: &mut Frame, area: Rect, opened: &Opened) {
        let heading = ["PLACE", "MODE", "OWNER", "BY", "FOR", "LEASE", "TOKEN"];
        let requests = opened.requests();
        let lines = usize::from(area.height.saturating_sub(1));
        self.lines.set(lines);
        let at = opened.position();
        let from = scrolled(&opened.offset, at, lines).min(requests.len());
        let visible = &requests[from..requests.len().min(from + lines)];
        // An owner is always whole, so that it can be copied by hand. The token has no room on a narrow screen.
        let token = if area.width < 120 { 0 } else { 16 };
        let mode = visible
            .iter()
            .map(|request| text::share(request.mode, request.permits).len())
            .max();
        let fixed = [5, mode.unwrap_or(0).max(7) as u16, 36, 6, 6, token];
        let gaps = heading.len() as u16 - 1;
        let by = area.width.saturating_sub(fixed.iter().sum::<u16>() + gaps);
        let rows = visible.iter().map(|request| {
            let mode = if request.upgrade {
                "upgrade".to_owned()
            } else {
                text::share(request.mode, request.permits)
            };
            Row::new([
                Cell::from(request.place.map_or("holds".to_owned(), |place| place.to_string())),
                Cell::from(mode.fg(color(request.mode))),
                Cell::from(request.owner.to_string()),
                Cell::from(text::origin_within(request.client, by.into())),
                Cell::from(span(request.time)),
                Cell::from(request.lease.clone()),
                Cell::from(request.token.map_or("-".to_owned(), |token| token.to_string())),
            ])
        });
        let [place, mode, owner, time, lease, token] = fixed.map(Constraint::Length);
        let widths = [place, mode, owner, Constraint::Fill(1), time, lease, token];
        draw_rows(
            frame,
            area,
            heading,
            rows,
            widths,
            (!requests.is_empty()).then(|| at - from),
        );
    }
}

fn row(lock: &Found) -> Row<'_> {
    let status = &lock.status;
    let time = |time: Option<Duration>| Cell::from(time.map_or("-".to_owned(), span));
    // A narrow column: of a semaphore it has the permits that are taken.
    let mode = match (status.mode, text::taken(status)) {
        (Some(Mode::Read), Some(taken)) => taken.fg(color(Mode::Read)),
        (Some(mode), _) => Span::from(mode.as_str()).fg(color(mode)),
        (None, _) => "free".into(),
    };
    Row::new([
        Cell::from(safe(&lock.name)),
        Cell::from(mode),
        Cell::from(status.holding.to_string()),
        Cell::from(status.waiting.to_string()),
        time(longest_wait(lock)),
        time(longest_hold(lock)),
        Cell::from(held_by(lock)),
        Cell::from(queue(&status.waiters)),
    ])
}

fn row_of_error(lock: &Unread) -> Row<'_> {
    let cells = [&safe(&lock.name), "error", "-", "-", "-", "-", &safe(&lock.why)];
    Row::new(cells.map(|text| Cell::from(text.to_owned()))).fg(Color::Red)
}

fn summary(opened: &Opened) -> String {
    let name = safe(&opened.name);
    let Some(Found { status, .. }) = &opened.found else {
        return format!("{name}: looking");
    };
    let mode = status.mode.map_or("free", Mode::as_str);
    let taken = text::taken(status).map_or(String::new(), |taken| format!(" {taken}"));
    let holds = count(status.holding, "hold", "holds");
    let listed = status.holders.len() + status.waiters.len();
    let more = match status.holding + status.waiting - listed {
        0 => String::new(),
        more => format!(", {more} not listed"),
    };
    let policy = text::policy(status.policy);
    format!(
        "{name}: {mode}{taken}, {holds}, {} waiting{more}, {policy}",
        status.waiting
    )
}

fn draw_rows<'a, const N: usize>(
    frame: &mut Frame,
    area: Rect,
    heading: [&'a str; N],
    rows: impl Iterator<Item = Row<'a>>,
    widths: [Constraint; N],
    selected: Option<usize>,
) {
    let table = Table::new(rows, widths)
        .header(Row::new(heading).style(Style::new().fg(Color::DarkGray)))
        .row_highlight_style(Style::new().bold().reversed());
    let mut state = TableState::new();
    state.select(selected);
    frame.render_stateful_widget(table, area, &mut state);
}

fn color(mode: Mode) -> Color {
    match mode {
        Mode::Read => Color::Cyan,
        Mode::Write => Color::Magenta,
    }
}

fn titled(title: String) -> Block<'static> {
    Block::bordered()
        .title(title)
        .border_style(Style::new().fg(Color::DarkGray))
}

/// The queue, the first waiter first.
fn queue(waiters: &[Waiter]) -> Line<'static> {
    let spans = waiters
        .iter()
        .take(200)
        .map(|waiter| match (waiter.upgrade, waiter.mode) {
            (true, _) => "U".fg(Color::Yellow),
            (false, mode @ Mode::Read) => "R".fg(color(mode)),
            (false, mode @ Mode::Write) => "W".fg(color(mode)),
        });
    Line::from_iter(spans)
}

fn draw_details(frame: &mut Frame, area: Rect, lock: &Found) {
    if area.is_empty() {
        return;
    }
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(area);
    let status = &lock.status;
    let line = |mode: Mode, client: String, times: String| {
        Line::from_iter([
            format!("{:<5} ", mode.as_str()).fg(color(mode)),
            format!("{client}  ").into(),
            times.fg(Color::DarkGray),
        ])
    };
    let holders = status.holders.iter().take(usize::from(left.height)).map(|holder| {
        let lease = text::lease(holder.lease_left, holder.expired_for);
        let times = format!("{}, lease {lease}", span(holder.held_for));
        line(holder.mode, origin_in_short(&holder.client), times)
    });
    let waiters = status.waiters.iter().take(usize::from(right.height)).map(|waiter| {
        let lease = text::lease(waiter.lease_left, waiter.expired_for);
        let times = format!("{}, lease {lease}", span(waiter.waited));
        line(waiter.mode, origin_in_short(&waiter.client), times)
    });
    let holding = titled(format!(
        " {}: {} ",
        safe(&lock.name),
        count(status.holding, "hold", "holds")
    ));
    let waiting = titled(format!(" {} waiting ", status.waiting));
    frame.render_widget(Paragraph::new(Text::from_iter(holders)).block(holding), left);
    frame.render_widget(Paragraph::new(Text::from_iter(waiters)).block(waiting), right);
}

fn draw_error(frame: &mut Frame, area: Rect, lock: &Unread) {
    let why = Paragraph::new(safe(&lock.why)).wrap(Wrap { trim: false });
    frame.render_widget(why.block(titled(format!(" {}: error ", safe(&lock.name)))), area);
}

fn draw_help(frame: &mut Frame) {
    let lines = HELP.map(|(keys, what)| Line::from_iter([format!("{keys:<14}").bold(), what.into()]));
    let area = frame
        .area()
        .centered(Constraint::Max(78), Constraint::Max(HELP.len() as u16 + 2));
    frame.render_widget(Clear, area);
    let help = Paragraph::new(Text::from_iter(lines)).wrap(Wrap { trim: false });
    frame.render_widget(help.block(titled(" keys ".to_owned())), area);
}

fn lines(buffer: &Buffer) -> String {
    let lines = (0..buffer.area.height).map(|line| {
        let mut text = String::new();
        let mut column = 0;
        while let Some(cell) = buffer.cell((column, line)) {
            text += cell.symbol();
            // A wide character covers the next cell too.
            column += u16::try_from(cell.symbol().width()).map_or(1, |columns| columns.max(1));
        }
        text.trim_end().to_owned() + "\n"
    });
    let text: String = lines.collect();
    text.trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::super::keys::Key;
    use super::*;
    use crate::locks::Findings;

    #[test]
    fn before_the_first_look_the_screen_says_what_it_waits_for() {
        let mut screen = Screen::new("redis://a   prefix fairlock".to_owned());
        assert!(screen.text((80, 24)).contains("reading the locks ..."));
        screen.on_locks(Findings::default());
        let text = screen.text((80, 24));
        assert!(text.contains("0 locks in use") && !text.contains("reading"), "{text}");
    }

    #[test]
    fn a_terminal_of_a_few_lines_is_drawn_too() {
        let unread = |name: &str| Unread {
            name: name.to_owned(),
            why: "it is odd".to_owned(),
        };
        let mut screen = Screen::new("redis://a   prefix fairlock".to_owned());
        screen.on_locks(Findings {
            unread: vec![unread("a"), unread("b")],
            ..Findings::default()
        });
        for key in [Key::Down, Key::Up] {
            screen.press(key);
            for lines in 1..8 {
                screen.text((80, lines));
            }
        }
    }

    #[test]
    fn the_selected_line_is_the_first_one_where_no_line_fits() {
        for at in [0, 3] {
            assert_eq!(scrolled(&std::cell::Cell::new(0), at, 0), at);
        }
    }

    #[test]
    fn no_blank_follows_a_wide_character() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 8, 2));
        buffer.set_string(0, 0, "漢字ab", Style::new());
        assert_eq!(lines(&buffer), "漢字ab\n");
    }
}
