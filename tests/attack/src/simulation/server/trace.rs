//! What happened last, for the report of a failure.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The last calls and faults; several servers may share one.
#[derive(Clone, Default)]
pub struct Trace {
    lines: Arc<Mutex<Vec<String>>>,
    ended: Arc<AtomicBool>,
    /// Of a server among several.
    server: Option<u64>,
}

impl Trace {
    pub fn of(&self, server: u64) -> Self {
        Self {
            server: Some(server),
            ..self.clone()
        }
    }

    pub fn push(&mut self, line: String) {
        if !self.ended.load(Ordering::Relaxed) {
            let number = self
                .server
                .map_or_else(String::new, |number| format!("server {number}: "));
            self.lines().push(number + &line);
        }
    }

    /// Nothing that comes later belongs to it.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.lines.lock().expect("no panic while it is locked")
    }

    pub fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines())
    }
}
