//! The keys of the terminal.

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Backspace,
    Interrupt,
    /// The terminal has another size.
    Redraw,
}

impl Key {
    fn of(event: &Event) -> Option<Self> {
        let key = match event {
            Event::Resize(..) => return Some(Self::Redraw),
            Event::Key(key) if key.kind != KeyEventKind::Release => key,
            _ => return None,
        };
        let with_control = key.modifiers.contains(KeyModifiers::CONTROL);
        Some(match key.code {
            KeyCode::Char('c') if with_control => Self::Interrupt,
            KeyCode::Char(_) if with_control => return None,
            KeyCode::Char(c) => Self::Char(c),
            KeyCode::Up => Self::Up,
            KeyCode::Down => Self::Down,
            KeyCode::PageUp => Self::PageUp,
            KeyCode::PageDown => Self::PageDown,
            KeyCode::Home => Self::Home,
            KeyCode::End => Self::End,
            KeyCode::Enter => Self::Enter,
            KeyCode::Esc => Self::Escape,
            KeyCode::Backspace => Self::Backspace,
            _ => return None,
        })
    }
}

/// A thread reads the keys, because reading asynchronously would need one more library.
pub(super) fn read() -> mpsc::UnboundedReceiver<Key> {
    let (sender, keys) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if Key::of(&event).is_some_and(|key| sender.send(key).is_err()) {
                return;
            }
        }
    });
    keys
}
