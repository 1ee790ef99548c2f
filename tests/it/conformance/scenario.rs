//! The scenarios as data: the README of the suite says what a step means.

use super::scripts::{read, suite};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub scenario: String,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Step {
    pub call: String,
    pub options: String,
    pub args: Vec<Value>,
    pub reply: Value,
    pub error: Option<String>,
    pub listened: bool,
    pub until: bool,
    #[serde(rename = "for")]
    pub range: Option<(u64, u64)>,
    pub messages: BTreeMap<String, Value>,
    pub events: Vec<(String, String, Value)>,
    pub expire: Vec<String>,
    pub set: BTreeMap<String, u64>,
    pub redis: Vec<String>,
    pub keys: Option<Left>,
}

/// What a step leaves.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Left {
    Keys(Keys),
    /// "same": what was there before the step.
    Same(String),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    pub state: BTreeMap<String, Value>,
    pub queue: Vec<String>,
    pub leases: BTreeMap<String, u64>,
    /// ms from the last deadline to the end of the keys: at least and at most.
    #[serde(default)]
    pub keep: Option<(u64, u64)>,
}

pub fn scenarios() -> Vec<(String, Scenario)> {
    let files = std::fs::read_dir(suite().join("scenarios")).expect("the scenarios");
    let mut files: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    files.sort();
    let of_file = |path: &PathBuf| {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        read::<Vec<Scenario>>(path)
            .into_iter()
            .map(move |scenario| (name.clone(), scenario))
    };
    files.iter().flat_map(of_file).collect()
}
