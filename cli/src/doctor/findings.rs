//! What doctor found, and how it says so.

use crate::text::safe;
use serde_json::{Value, json};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Good,
    /// Locks work, but something may come as a surprise.
    Note,
    /// Locks do not work, or may be lost.
    Wrong,
    /// Doctor could not find out.
    Unknown,
}

impl Level {
    fn shown(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Note => "note",
            Self::Wrong => "WRONG",
            Self::Unknown => "?",
        }
    }
}

pub(super) struct Finding {
    pub(super) level: Level,
    pub(super) about: &'static str,
    pub(super) text: String,
    pub(super) remedy: Option<String>,
}

#[derive(Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    pub(super) fn good(&mut self, about: &'static str, text: impl Into<String>) {
        self.add(Level::Good, about, text, None);
    }

    pub(super) fn note(&mut self, about: &'static str, text: impl Into<String>, remedy: &str) {
        self.add(Level::Note, about, text, Some(remedy));
    }

    pub(super) fn wrong(&mut self, about: &'static str, text: impl Into<String>, remedy: &str) {
        self.add(Level::Wrong, about, text, Some(remedy));
    }

    pub(super) fn unknown(&mut self, about: &'static str, text: impl Into<String>, remedy: &str) {
        self.add(Level::Unknown, about, text, Some(remedy));
    }

    fn add(&mut self, level: Level, about: &'static str, text: impl Into<String>, remedy: Option<&str>) {
        self.0.push(Finding {
            level,
            about,
            text: text.into(),
            remedy: remedy.map(str::to_owned),
        });
    }

    pub(super) fn number(&self, level: Level) -> usize {
        self.0.iter().filter(|finding| finding.level == level).count()
    }

    /// A line for each finding, and under it what to do.
    pub(super) fn report<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> String {
        let mut report = String::new();
        for finding in findings {
            report += &format!(
                "{:<5}  {:<11}  {}\n",
                finding.level.shown(),
                finding.about,
                safe(&finding.text)
            );
            if let Some(remedy) = &finding.remedy {
                report += &format!("{:20}-> {remedy}\n", "");
            }
        }
        report
    }

    pub(super) fn described(&self) -> Value {
        self.0.iter().map(Finding::described).collect()
    }
}

impl Finding {
    fn described(&self) -> Value {
        let level = match self.level {
            Level::Good => "ok",
            Level::Note => "note",
            Level::Wrong => "wrong",
            Level::Unknown => "unknown",
        };
        json!({"level": level, "about": self.about, "text": self.text, "remedy": self.remedy})
    }
}
