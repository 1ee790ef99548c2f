//! A server's clock that can be stepped.

use std::path::PathBuf;

/// The clock of one server, run under libfaketime: as far from the true one as its file says.
pub struct FakeClock {
    library: PathBuf,
    file: PathBuf,
}

impl FakeClock {
    /// `None`: the library is not on this machine.
    pub fn find(file: PathBuf) -> Option<Self> {
        let mut dirs = vec![
            PathBuf::from("/usr/lib/faketime"),
            PathBuf::from("/usr/local/lib/faketime"),
        ];
        for root in ["/usr/lib", "/usr/lib64"] {
            let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
            dirs.extend(entries.map(|entry| entry.path().join("faketime")));
        }
        let library = dirs
            .iter()
            .map(|dir| dir.join("libfaketime.so.1"))
            .find(|path| path.exists())?;
        let clock = Self { library, file };
        clock.step(0).ok()?;
        Some(clock)
    }

    /// The command that runs a server under this clock. libc comes right after the library, before the server's own
    /// jemalloc: that one reads the clock while the library is not ready yet, and the server would not start.
    pub fn command(&self, server: &str) -> Vec<String> {
        let words = [
            format!("LD_PRELOAD={}:libc.so.6", self.library.display()),
            format!("FAKETIME_TIMESTAMP_FILE={}", self.file.display()),
            "FAKETIME_NO_CACHE=1".to_owned(),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
        ];
        let mut command = vec!["env".to_owned()];
        command.extend(words);
        command.push(server.to_owned());
        command
    }

    /// Steps the clock to so many ms from the true time. In one step: the server must not read half a file.
    pub fn step(&self, offset_ms: i64) -> std::io::Result<()> {
        let new = self.file.with_extension("new");
        let text = format!(
            "{}{}.{:03}\n",
            sign(offset_ms),
            offset_ms.abs() / 1000,
            offset_ms.abs() % 1000
        );
        std::fs::write(&new, text)?;
        std::fs::rename(&new, &self.file)
    }
}

fn sign(number: i64) -> char {
    if number < 0 { '-' } else { '+' }
}
