//! `fairlock top`

use crate::args::TopArgs;
use crate::json;
use crate::locks::{Eye, Found};
use crate::ls::{held_by, longest_hold, longest_wait};
use crate::outcome::{Failure, Outcome, Status, complain, say};
use crate::quorum::Target;
use crate::text::{self, count, origin_in_short, safe, span};
use crate::watch::interrupted;
use fairlock::{Mode, Waiter};
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table, TableState};
use ratatui::{DefaultTerminal, Frame, Terminal};
use serde_json::Value;
use std::io::{self, IsTerminal as _};
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use tokio::time::sleep;
use unicode_width::UnicodeWidthStr;

pub(crate) async fn run(target: &Target, args: &TopArgs) -> Outcome {
    let eye = Eye::open(target).await?;
    let mut screen = Screen {
        server: format!("{}   prefix {}", target.shown(), target.prefix()),
        pattern: args.pattern.clone(),
        locks: Vec::new(),
        at: SystemTime::now(),
        selected: None,
        paused: false,
        trouble: None,
    };
    let complaints = screen.look(&eye).await?;
    let is_live = !args.output.json && !args.once && io::stdout().is_terminal();
    if is_live {
        screen.trouble = complaints.into_iter().next();
    } else {
        complaints.iter().for_each(|text| complain(text));
    }
    let done = if args.output.json {
        let locks = screen.locks.iter().map(|lock| json::status(&lock.name, &lock.status));
        json::document(&locks.collect::<Value>())
    } else if is_live {
        live(&mut screen, &eye, args.interval).await
    } else {
        say(&lines(&screen.drawn(args.size)))
    };
    eye.shutdown().await;
    done.map(|()| Status::OK)
}

/// The state of the screen.
struct Screen {
    server: String,
    pattern: Option<String>,
    /// The busiest first.
    locks: Vec<Found>,
    at: SystemTime,
    /// The name of the selected lock: its line moves as other locks become busier.
    selected: Option<String>,
    paused: bool,
    /// Why the screen is old, or which lock is missing.
    trouble: Option<String>,
}

async fn live(screen: &mut Screen, eye: &Eye<'_>, interval: Duration) -> Result<(), Failure> {
    let broken = |error: io::Error| Failure::new(Status::BROKEN, format!("cannot use the terminal: {error}"));
    let mut terminal = ratatui::try_init().map_err(broken)?;
    let shown = show(screen, eye, interval, &mut terminal).await;
    let restored = ratatui::try_restore();
    shown?.map_err(broken)?;
    restored.map_err(broken)
}

async fn show(
    screen: &mut Screen,
    eye: &Eye<'_>,
    interval: Duration,
    terminal: &mut DefaultTerminal,
) -> Result<io::Result<()>, Failure> {
    let mut keys = keys();
    let interrupted = interrupted();
    tokio::pin!(interrupted);
    loop {
        if let Err(error) = terminal.draw(|frame| screen.draw(frame)) {
            return Ok(Err(error));
        }
        tokio::select! {
            signal = &mut interrupted => return Err(Failure::signal(signal)),
            key = keys.recv() => match key {
                None | Some(Key::Quit) => return Ok(Ok(())),
                Some(key) => screen.press(&key),
            },
            () = sleep(interval.max(Duration::from_millis(50))), if !screen.paused => {
                screen.trouble = match screen.look(eye).await {
                    Ok(complaints) => complaints.into_iter().next(),
                    // Further lines say what to do.
                    Err(failure) => failure.message.lines().next().map(str::to_owned),
                };
            }
        }
    }
}

enum Key {
    Up,
    Down,
    Pause,
    Quit,
    Redraw,
}

/// A thread reads the keys, because reading asynchronously would need one more library.
fn keys() -> mpsc::UnboundedReceiver<Key> {
    let (sender, keys) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            let key = match event {
                Event::Resize(..) => Key::Redraw,
                Event::Key(key) if key.kind != KeyEventKind::Release => match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => Key::Quit,
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Key::Quit,
                    KeyCode::Up | KeyCode::Char('k') => Key::Up,
                    KeyCode::Down | KeyCode::Char('j') => Key::Down,
                    KeyCode::Char(' ') => Key::Pause,
                    _ => continue,
                },
                _ => continue,
            };
            if sender.send(key).is_err() {
                return;
            }
        }
    });
    keys
}

impl Screen {
    /// Looks again. Returns what is wrong with single locks.
    async fn look(&mut self, eye: &Eye<'_>) -> Result<Vec<String>, Failure> {
        let (mut locks, complaints) = eye.find(self.pattern.as_deref()).await?;
        locks.retain(Found::in_use);
        locks.sort_by(Found::order);
        self.locks = locks;
        self.at = SystemTime::now();
        Ok(complaints)
    }

    fn press(&mut self, key: &Key) {
        let at = self.position();
        let to = match key {
            Key::Up => at.saturating_sub(1),
            Key::Down => at + 1,
            Key::Pause => {
                self.paused = !self.paused;
                return;
            }
            Key::Quit | Key::Redraw => return,
        };
        if let Some(lock) = self.locks.get(to) {
            self.selected = Some(lock.name.clone());
        }
    }

    /// The line of the selected lock, or the first line if that lock is no longer in use.
    fn position(&self) -> usize {
        let selected = |lock: &Found| Some(&lock.name) == self.selected.as_ref();
        self.locks.iter().position(selected).unwrap_or(0)
    }

    fn drawn(&self, (columns, lines): (u16, u16)) -> Buffer {
        let Ok(mut terminal) = Terminal::new(TestBackend::new(columns, lines));
        let Ok(_) = terminal.draw(|frame| self.draw(frame));
        terminal.backend().buffer().clone()
    }

    fn draw(&self, frame: &mut Frame) {
        let details = match frame.area().height {
            0..20 => Constraint::Length(0),
            height => Constraint::Length(height * 2 / 5),
        };
        let [head, table, details] =
            Layout::vertical([Constraint::Length(2), Constraint::Min(3), details]).areas(frame.area());
        self.draw_head(frame, head);
        self.draw_table(frame, table);
        if let Some(lock) = self.locks.get(self.position()) {
            draw_details(frame, details, lock);
        }
    }

    fn draw_head(&self, frame: &mut Frame, area: Rect) {
        let sum = |number: fn(&Found) -> usize| self.locks.iter().map(number).sum();
        let locks = count(self.locks.len(), "lock", "locks");
        let holds = count(sum(|lock| lock.status.holding), "hold", "holds");
        let numbers = format!("{locks} in use, {holds}, {} waiting", sum(|lock| lock.status.waiting));
        let time = humantime::format_rfc3339_seconds(self.at).to_string();
        let first = Line::from_iter([
            "fairlock top".bold(),
            format!("   {}   {time}", safe(&self.server)).into(),
        ]);
        let second = match &self.trouble {
            Some(trouble) => Line::from(safe(trouble).red()),
            None if self.paused => Line::from(format!("{numbers}   paused").yellow()),
            None => Line::from(numbers),
        };
        frame.render_widget(Paragraph::new(Text::from_iter([first, second])), area);
    }

    fn draw_table(&self, frame: &mut Frame, area: Rect) {
        let heading = ["LOCK", "MODE", "HOLDS", "WAITS", "WAITED", "HELD", "HELD BY", "QUEUE"];
        let taken = |lock: &Found| text::taken(&lock.status).map_or(0, |taken| taken.len());
        let mode_width = self.locks.iter().map(taken).max().unwrap_or(0).clamp(5, 15);
        let rows = self.locks.iter().map(|lock| {
            let status = &lock.status;
            let time = |time: Option<Duration>| Cell::from(time.map_or("-".to_owned(), span));
            // A narrow column: of a semaphore it has the permits that are taken.
            let mode = match (status.mode, text::taken(status)) {
                (Some(Mode::Read), Some(taken)) => taken.fg(color(Mode::Read)),
                (Some(mode), _) => Span::from(text::mode(mode)).fg(color(mode)),
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
        let table = Table::new(rows, widths)
            .header(Row::new(heading).style(Style::new().fg(Color::DarkGray)))
            .row_highlight_style(Style::new().bold().reversed());
        let mut state = TableState::new();
        // A frame that is not live has no selected lock.
        state.select(self.selected.as_ref().map(|_| self.position()));
        frame.render_stateful_widget(table, area, &mut state);
    }
}

fn color(mode: Mode) -> Color {
    match mode {
        Mode::Read => Color::Cyan,
        Mode::Write => Color::Magenta,
    }
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
            format!("{:<5} ", text::mode(mode)).fg(color(mode)),
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
    let titled = |title: String| {
        Block::bordered()
            .title(title)
            .border_style(Style::new().fg(Color::DarkGray))
    };
    let holding = titled(format!(
        " {}: {} ",
        safe(&lock.name),
        count(status.holding, "hold", "holds")
    ));
    let waiting = titled(format!(" {} waiting ", status.waiting));
    frame.render_widget(Paragraph::new(Text::from_iter(holders)).block(holding), left);
    frame.render_widget(Paragraph::new(Text::from_iter(waiters)).block(waiting), right);
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
    use super::*;

    #[test]
    fn no_blank_follows_a_wide_character() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 8, 2));
        buffer.set_string(0, 0, "漢字ab", Style::new());
        assert_eq!(lines(&buffer), "漢字ab\n");
    }
}
