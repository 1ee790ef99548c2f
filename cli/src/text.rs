//! Text for people: safe to print, short durations, aligned columns.

use fairlock::{ClientInfo, Mode, Policy, Status};
use std::time::Duration;
use unicode_width::UnicodeWidthStr;

/// The text with escapes in place of control and invisible characters. A terminal acts on those, and names and labels come
/// from everybody who can write to the server.
pub(crate) fn safe(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\'' => shown.push(c),
            _ => shown.extend(c.escape_debug()),
        }
    }
    shown
}

/// The same for what is one word, so that it cannot pass for several: everybody who can write to the server chooses it.
pub(crate) fn safe_word(text: &str) -> String {
    safe(text).replace(' ', "\\u{20}")
}

/// The same for bytes that may not be UTF-8.
pub(crate) fn safe_bytes(bytes: &[u8]) -> String {
    let chunks = bytes.utf8_chunks();
    chunks
        .flat_map(|chunk| [safe(chunk.valid()), chunk.invalid().escape_ascii().to_string()])
        .collect()
}

/// A message that this program wrote around words of a server: the same, but the message keeps its line breaks, and its
/// backslashes, because names in it may be escaped already.
pub(crate) fn safe_lines(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => shown.push(c),
            _ if is_unprintable(c) => shown.extend(c.escape_debug()),
            _ => shown.push(c),
        }
    }
    shown
}

fn is_unprintable(c: char) -> bool {
    !matches!(c, '"' | '\'' | '\\') && c.escape_debug().len() > 1
}

/// The text as one word of a shell. For what cannot be printed that is `$'...'`, which bash, zsh and ksh know: with the
/// bytes in octal, because those have the same length in all of them.
pub(crate) fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+=,".contains(c);
    // In zsh a word that begins with = is the path of a command.
    if !text.is_empty() && !text.starts_with('=') && text.chars().all(is_plain) {
        return text.to_owned();
    }
    if !text.chars().any(is_unprintable) {
        return format!("'{}'", text.replace('\'', "'\\''"));
    }
    let mut word = "$'".to_owned();
    for c in text.chars() {
        match c {
            '\'' | '\\' => word.extend(['\\', c]),
            _ if is_unprintable(c) => {
                let mut bytes = [0; 4];
                word.extend(c.encode_utf8(&mut bytes).bytes().map(|byte| format!("\\{byte:03o}")));
            }
            _ => word.push(c),
        }
    }
    word + "'"
}

/// The same for a name among the arguments of this command, where a dash begins an option.
pub(crate) fn operand(name: &str) -> String {
    let dashes = if name.starts_with('-') { "-- " } else { "" };
    format!("{dashes}{}", quoted(name))
}

/// A duration in at most five characters or so: 850ms, 12.3s, 3m20s, 2h05m, 3d04h.
pub(crate) fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        1..60 => format!("{seconds}.{}s", duration.subsec_millis() / 100),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86400, seconds / 3600 % 24),
    }
}

/// The rest of a lease, or the time since its end.
pub(crate) fn lease(left: Duration, expired_for: Option<Duration>) -> String {
    expired_for.map_or_else(|| span(left), expired)
}

pub(crate) fn expired(since: Duration) -> String {
    format!("expired {} ago", span(since))
}

/// The mode of a request, and how many permits of a semaphore it takes.
pub(crate) fn share(mode: Mode, permits: u32) -> String {
    match permits {
        1 => mode.to_string(),
        _ => format!("{mode}, {permits} permits"),
    }
}

/// How many permits of a semaphore are taken: `3/4`.
pub(crate) fn taken(status: &Status) -> Option<String> {
    let limit = status.limit?;
    Some(format!("{}/{limit}", status.used))
}

pub(crate) fn policy(policy: Policy) -> &'static str {
    match policy {
        Policy::Fifo => "fifo",
        Policy::WriterFirst => "writer-first",
        Policy::ReaderFirst => "reader-first",
        Policy::Bounded => "bounded",
        _ => "unknown",
    }
}

pub(crate) fn count(number: usize, one: &str, many: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {many}"),
    }
}

/// Label, process and host: three columns.
pub(crate) fn origin(client: &ClientInfo) -> [String; 3] {
    let text = |text: &Option<String>| text.as_deref().map_or("-".to_owned(), safe_word);
    let process = client.process.map_or("-".to_owned(), |process| process.to_string());
    [text(&client.label), process, text(&client.host)]
}

/// The same in one column: `label 4711@host`. The client 0 holds a lock during a quarantine, so that nobody enters.
pub(crate) fn origin_in_short(client: &ClientInfo) -> String {
    match (&client.label, client.process) {
        (None, None) if client.id == "0" => "nobody".to_owned(),
        (None, None) => format!("client {}", safe_word(&client.id)),
        _ => {
            let [label, process, host] = origin(client);
            format!("{label} {process}@{host}")
        }
    }
}

/// The same in a narrow column: the host goes first, then a part of the label, and the process last.
pub(crate) fn origin_within(client: &ClientInfo, width: usize) -> String {
    let full = origin_in_short(client);
    let length = |text: &str| text.chars().count();
    let (Some(_), Some(_)) = (&client.label, client.process) else {
        return full;
    };
    if length(&full) <= width {
        return full;
    }
    let [label, process, _] = origin(client);
    let room = width.saturating_sub(length(&process) + 1);
    match length(&label) <= room {
        true => format!("{label} {process}"),
        false => {
            let kept: String = label.chars().take(room.saturating_sub(1)).collect();
            format!("{kept}\u{2026} {process}")
        }
    }
}

/// Rows under a heading, each as long as the heading. Each column is as wide as its widest cell.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    indent: &'static str,
}

impl Table {
    pub(crate) fn new<'a>(heading: impl IntoIterator<Item = &'a str>) -> Self {
        let heading = heading.into_iter().map(str::to_owned);
        Self {
            rows: vec![heading.collect()],
            indent: "",
        }
    }

    pub(crate) fn indented(mut self, indent: &'static str) -> Self {
        self.indent = indent;
        self
    }

    pub(crate) fn row(&mut self, row: impl IntoIterator<Item = String>) {
        self.rows.push(row.into_iter().collect());
    }

    pub(crate) fn render(&self) -> String {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| self.rows.iter().map(|row| row[column].width()).max().unwrap_or(0);
        let widths: Vec<_> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = self.indent.to_owned();
            for (cell, width) in row.iter().zip(&widths) {
                line += cell;
                line.extend(std::iter::repeat_n(' ', width + 2 - cell.width()));
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

/// The numbers of a lock's state, by the names of PROTOCOL.md.
pub(crate) fn raw(raw: &fairlock::RawState) -> [(&'static str, u64); 14] {
    [
        ("seq", raw.seq),
        ("token", raw.token),
        ("first", raw.first),
        ("near", raw.near),
        ("keep", raw.keep),
        ("cap", raw.cap),
        ("reads", raw.reads),
        ("writes", raw.writes),
        ("waiting", raw.waiting),
        ("sole", raw.sole),
        ("more", raw.more),
        ("up", raw.up),
        ("limit", raw.limit),
        ("used", raw.used),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_acts_on_survives() {
        let hostile = "a\u{1b}[2J\r\nb\u{7f}\u{9b}c\u{202e}d\u{200b}e\u{2028}\0";
        let shown = safe(hostile);
        assert!(shown.chars().all(|c| c.is_ascii_graphic()), "{shown}");
        assert_eq!(
            safe("Gr\u{fc}\u{df}e 'a b' \"c\" \u{65e5}"),
            "Gr\u{fc}\u{df}e 'a b' \"c\" \u{65e5}"
        );
        assert_eq!(safe_bytes(b"a\xff\x1bb"), "a\\xff\\u{1b}b");
        let word = safe_word("a b\tc\u{a0}d\u{3000}e");
        assert_eq!(word, "a\\u{20}b\\tc\\u{a0}d\\u{3000}e");
    }

    #[test]
    fn a_narrow_column_keeps_the_process() {
        let mut client = ClientInfo::default();
        (client.label, client.process) = (Some("deploy-nightly".to_owned()), Some(123_456));
        client.host = Some("web-1".to_owned());
        for (width, text) in [
            (40, "deploy-nightly 123456@web-1"),
            (26, "deploy-nightly 123456"),
            (21, "deploy-nightly 123456"),
            (14, "deploy\u{2026} 123456"),
            (3, "\u{2026} 123456"),
        ] {
            assert_eq!(origin_within(&client, width), text);
        }
        client.label = None;
        assert_eq!(
            origin_within(&client, 8),
            "- 123456@web-1",
            "without a label it is cut at its end"
        );
    }

    #[test]
    fn a_name_is_one_word_of_a_shell() {
        assert_eq!(quoted("invoice:42"), "invoice:42");
        assert_eq!(quoted("a b; rm -r $HOME"), "'a b; rm -r $HOME'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("a\\b c"), "'a\\b c'", "a quoted backslash stands for itself");
        assert_eq!(quoted("d\u{e9}p\u{f4}t"), "'d\u{e9}p\u{f4}t'");
        assert_eq!(quoted("a\u{1b}[2J\n1'\\"), r"$'a\033[2J\0121\'\\'");
        assert_eq!(quoted("\u{202e}1"), r"$'\342\200\2561'");
        assert_eq!(operand("a-b"), "a-b");
        assert_eq!(operand("-x y"), "-- '-x y'", "no option");
    }

    #[test]
    fn durations_are_short() {
        for (ms, text) in [
            (0, "0ms"),
            (999, "999ms"),
            (12_345, "12.3s"),
            (200_000, "3m20s"),
            (7_500_000, "2h05m"),
            (273_600_000, "3d04h"),
        ] {
            assert_eq!(span(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn columns_are_aligned_also_with_wide_characters() {
        let mut table = Table::new(["A", "B"]);
        table.row(["\u{65e5}\u{672c}".to_owned(), "1".to_owned()]);
        table.row(["x".to_owned(), "2".to_owned()]);
        assert_eq!(table.render(), "A     B\n\u{65e5}\u{672c}  1\nx     2\n");
    }
}
