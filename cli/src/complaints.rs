//! Complaints that never block the command. A write to stderr may block for ever: nobody reads the pipe, or Ctrl-S has
//! stopped the terminal. So a thread of its own writes the complaints, from a queue without bound.

use crate::outcome::complain;
use std::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};

/// The queue of complaints and its writer.
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
        // The writer lives as long as there is a sender.
        let _ = self.queue.send(text.into());
    }

    /// Waits until the writer has written all complaints.
    pub(crate) async fn written(self) {
        drop(self.queue);
        let _ = self.writer.await;
    }
}
