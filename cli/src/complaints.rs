//! Complaints of whoever must not be held up: nobody may read the pipe that is stderr, or Ctrl-S stopped the terminal.

use crate::outcome::complain;
use std::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};

/// A thread writes them, in order.
pub(crate) struct Complaints {
    queue: mpsc::Sender<String>,
    writer: JoinHandle<()>,
}

impl Complaints {
    pub(crate) fn start() -> Self {
        let (queue, complaints) = mpsc::channel::<String>();
        let writer = spawn_blocking(move || complaints.iter().for_each(|text| complain(&text)));
        Self { queue, writer }
    }

    pub(crate) fn add(&self, text: impl Into<String>) {
        // The writer stays for as long as there is a sender.
        let _ = self.queue.send(text.into());
    }

    /// Waits until all have been written.
    pub(crate) async fn written(self) {
        drop(self.queue);
        let _ = self.writer.await;
    }
}
