//! The picture at the head of the README: who waited how long for one lock, under a lock that polls and under fairlock.

use crate::clock;
use crate::env::Env;
use crate::peers::{Kind, Locks};
use crate::svg::{Canvas, MIDDLE};
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::sleep;

const ASKING: usize = 40;
/// So long that nobody overtakes another on the way to the server.
const APART: Duration = Duration::from_millis(3);
const HOLD: Duration = Duration::from_millis(8);

/// Where the picture goes.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The picture
    #[arg(long, default_value = "tests/bench/contention.svg")]
    file: PathBuf,
    /// The server's program
    #[arg(long, default_value = "redis-server")]
    server: String,
}

/// One task's time at the lock, in ms since the first one asked.
#[derive(Clone, Copy, Debug)]
struct Stay {
    asked: f64,
    entered: f64,
    left: f64,
}

/// Says what was written, or why not.
pub async fn run(args: &Args) -> Result<String, String> {
    let env = Env::start(&args.server, 1, false).await;
    let mut panels = Vec::new();
    for (kind, title) in [
        (Kind::Rslock, "A lock that polls (rslock, every ms)"),
        (Kind::Fairlock, "fairlock"),
    ] {
        let locks = Locks::connect(kind, &env.server.url()).await;
        // A type of key for each.
        let name = format!("picture-{}", kind.name());
        // Scripts are loaded and connections made.
        locks.mutex(&name).acquire().await.release().await;
        let stays = stays(&locks, &name).await;
        panels.push(Panel { title, stays });
    }
    std::fs::write(&args.file, svg(&panels)).map_err(|error| format!("{}: {error}", args.file.display()))?;
    let marked = unluckiest(&panels);
    let said: Vec<String> = panels
        .iter()
        .map(|panel| format!("{}: {}", panel.title, panel.said(marked)))
        .collect();
    Ok(format!("{}\nwrote {}", said.join("\n"), args.file.display()))
}

/// In the order in which they asked.
async fn stays(locks: &Locks, name: &str) -> Vec<Stay> {
    let begun = clock::now();
    let since = move || (clock::now() - begun) / 1e3;
    let mut tasks = Vec::new();
    for _ in 0..ASKING {
        let lock = locks.mutex(name);
        tasks.push(tokio::spawn(async move {
            let asked = since();
            let held = lock.acquire().await;
            let entered = since();
            sleep(HOLD).await;
            let left = since();
            held.release().await;
            Stay { asked, entered, left }
        }));
        sleep(APART).await;
    }
    let mut stays = Vec::new();
    for task in tasks {
        stays.push(task.await.expect("a task that asked"));
    }
    stays
}

struct Panel {
    title: &'static str,
    stays: Vec<Stay>,
}

impl Panel {
    /// How many who came after it entered before it.
    fn passed(&self, at: usize) -> usize {
        let later = &self.stays[at + 1..];
        later
            .iter()
            .filter(|stay| stay.entered < self.stays[at].entered)
            .count()
    }

    /// The one that was passed by most, and by how many.
    fn unluckiest(&self) -> (usize, usize) {
        let all = (0..self.stays.len()).map(|at| (at, self.passed(at)));
        all.max_by_key(|(_, passed)| *passed).unwrap_or_default()
    }

    /// The marked one is the unluckiest of any panel.
    fn said(&self, marked: usize) -> String {
        let stay = self.stays[marked];
        let waited = format!("number {} waited {:.0} ms", marked + 1, stay.entered - stay.asked);
        match (self.unluckiest(), self.passed(marked)) {
            ((_, 0), _) => format!("{waited}; nobody was passed"),
            (_, passed) => format!("{waited}, passed by {passed} who came later"),
        }
    }
}

/// The one that was passed by most in any of them.
fn unluckiest(panels: &[Panel]) -> usize {
    let all = panels.iter().map(Panel::unluckiest);
    all.max_by_key(|(_, passed)| *passed).unwrap_or_default().0
}

const WIDTH: f64 = 900.0;
const LEFT: f64 = 44.0;
const PANEL: f64 = 400.0;
const GAP: f64 = 36.0;
const TOP: f64 = 92.0;
const ROW: f64 = 8.0;

const COLOURS: &str = "\n\
    .head { font-weight: 600 } .wait { fill: #c3ccd6 } .inside { fill: #0550ae } .unlucky { fill: #e8873a }\n\
    @media (prefers-color-scheme: dark) { .wait { fill: #444c56 } .inside { fill: #58a6ff } .unlucky { fill: #f0883e } }";

fn svg(panels: &[Panel]) -> String {
    let end = panels
        .iter()
        .flat_map(|panel| &panel.stays)
        .map(|stay| stay.left)
        .fold(1.0, f64::max);
    let rows = panels.iter().map(|panel| panel.stays.len()).max().unwrap_or_default();
    let bottom = TOP + ROW * rows as f64 + 6.0;
    let height = bottom + 64.0;
    let title = format!(
        "{rows} tasks ask for one lock, {} ms apart; each keeps it for {} ms. Who gets in when?",
        APART.as_millis(),
        HOLD.as_millis(),
    );
    let mut canvas = Canvas::new([WIDTH, height], COLOURS, &title);
    canvas.text("class=\"title\"", [LEFT, 26.0], &title);
    canvas.upward([24.0, (TOP + bottom) / 2.0], "\u{2190} who came later");
    let marked = unluckiest(panels);
    for (n, panel) in panels.iter().enumerate() {
        let left = LEFT + (PANEL + GAP) * n as f64;
        panel.draw(&mut canvas, left, bottom, end, marked);
    }
    let at = height - 14.0;
    let keys = [
        ("wait", "waits"),
        ("inside", "has the lock"),
        ("unlucky", "the same task in both"),
    ];
    for (n, (class, text)) in keys.into_iter().enumerate() {
        let x = LEFT + 130.0 * n as f64;
        canvas.rect(class, [x, at - 9.0, 18.0, 7.0]);
        canvas.text("", [x + 25.0, at], text);
    }
    canvas.done()
}

impl Panel {
    fn draw(&self, canvas: &mut Canvas, left: f64, bottom: f64, end: f64, marked: usize) {
        let x = |ms: f64| left + ms / end * PANEL;
        canvas.text("class=\"head\"", [left, 56.0], self.title);
        canvas.text("", [left, 75.0], &self.said(marked));
        let mut tick = 0.0;
        while tick <= end {
            canvas.line("grid", [x(tick), TOP, x(tick), bottom]);
            canvas.text(MIDDLE, [x(tick), bottom + 18.0], &format!("{tick} ms"));
            tick += 100.0;
        }
        for (at, stay) in self.stays.iter().enumerate() {
            let y = TOP + 3.0 + ROW * at as f64;
            let waits = if at == marked { "unlucky" } else { "wait" };
            for (class, from, to) in [(waits, stay.asked, stay.entered), ("inside", stay.entered, stay.left)] {
                canvas.rect(class, [x(from), y, x(to) - x(from), ROW - 2.0]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(entered: &[f64]) -> Panel {
        let stay = |(at, entered): (usize, &f64)| Stay {
            asked: at as f64,
            entered: *entered,
            left: entered + 1.0,
        };
        let stays = entered.iter().enumerate().map(stay).collect();
        Panel { title: "a", stays }
    }

    #[test]
    fn who_was_passed_by_most_is_named() {
        assert_eq!(
            panel(&[10.0, 11.0, 12.0]).said(1),
            "number 2 waited 10 ms; nobody was passed"
        );
        let scrambled = panel(&[12.0, 30.0, 11.0, 13.0]);
        assert_eq!(scrambled.unluckiest(), (1, 2));
        assert_eq!(scrambled.said(1), "number 2 waited 29 ms, passed by 2 who came later");
    }

    #[test]
    fn everybody_is_drawn_and_one_task_is_marked_in_each_panel() {
        let svg = svg(&[panel(&[12.0, 30.0, 11.0]), panel(&[10.0, 11.0, 12.0])]);
        assert_eq!(svg.matches("class=\"inside\"").count(), 6 + 1);
        assert_eq!(svg.matches("class=\"unlucky\"").count(), 2 + 1);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && !svg.contains("NaN"));
    }
}
